"""Run the notebooks of this folder and keep their outputs: ``make notebooks``.

``python examples/run_notebooks.py first-steps`` runs one of them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

#: Seconds that a cell may take.
PATIENCE = 600


def main() -> None:
    """Run the notebooks in an empty folder each, without the times of their cells."""
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        if sys.argv[1:] and path.stem not in sys.argv[1:]:
            continue
        book = nbformat.read(path, 4)
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(
                book,
                timeout=PATIENCE,
                record_timing=False,
                resources={"metadata": {"path": folder}},
            ).execute()
        nbformat.write(book, path)
        print(path.name)


if __name__ == "__main__":
    main()
