"""``python -m esscher``: the command line, also where the script is not on the path."""

from __future__ import annotations

from esscher.cli.program import main

if __name__ == "__main__":
    main(prog_name="esscher")
