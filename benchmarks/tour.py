"""Run the commands of docs/tour.md in an empty folder, and write what they print into the page.

    python -m benchmarks.tour

A ``console`` block of the page is a command behind ``$`` and its output, which is replaced.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "tour.md"
BLOCK = re.compile(r"^```console\n\$ (?P<command>[^\n]+)\n.*?^```$", re.MULTILINE | re.DOTALL)
#: Columns of the terminal that commands print to.
WIDTH = 100


def printed(command: str, folder: str) -> str:
    """What a command prints, errors after output."""
    words = shlex.split(command)
    if words[0] != "esscher":
        raise SystemExit(f"the tour runs esscher, not {words[0]!r}")
    print(f"$ {command}", flush=True)
    ran = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=os.environ | {"COLUMNS": str(WIDTH), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(f"{command} ended with {ran.returncode}:\n{ran.stderr}")
    lines = [line.rstrip() for line in (ran.stdout + ran.stderr).splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def with_outputs(text: str, folder: str) -> str:
    """A page with the outputs of its commands, which run in order in one folder."""

    def run(block: re.Match[str]) -> str:
        command = block["command"]
        return f"```console\n$ {command}\n{printed(command, folder)}\n```"

    return BLOCK.sub(run, text)


def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory() as folder:
        text = with_outputs(PAGE.read_text(encoding="utf-8"), folder)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
