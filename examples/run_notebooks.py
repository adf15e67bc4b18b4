"""Run the notebooks of this folder and keep their outputs: ``make notebooks``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

#: Seconds that a cell may take.
PATIENCE = 600


def main() -> None:
    """Run every notebook in an empty folder, without the times of its cells."""
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
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
