"""The tour's outputs are what its commands print."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.tour import PAGE, with_outputs


def test_outputs_are_replaced(tmp_path: Path) -> None:
    command = "esscher theory --horizon 0.5 --sizes 1e3:1e6:2"
    page = f"# Page\n\n```console\n$ {command}\nsomething else\n```\n\nText.\n\n```sh\nls\n```\n"
    made = with_outputs(page, str(tmp_path))
    assert "something else" not in made
    assert "converges" in made
    assert made.startswith(f"# Page\n\n```console\n$ {command}\n")
    assert made.endswith("\n```\n\nText.\n\n```sh\nls\n```\n")
    assert with_outputs(made, str(tmp_path)) == made


def test_other_commands_are_not_run(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not 'rm'"):
        with_outputs("```console\n$ rm -r x\n```\n", str(tmp_path))


def test_the_page_has_outputs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "earned its place" in text
    assert "report.html" in text
