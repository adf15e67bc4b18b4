"""Manual pages: complete, well formed, installed where asked."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from esscher.cli import main
from esscher.cli.describe import describe, describe_all
from esscher.cli.man import _tagged, _text, manual_page

SECTIONS = ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "EXIT STATUS")
#: Requests of the man macros that the pages use.
REQUESTS = {"TH", "SH", "PP", "TP", "B", "BR", "nf", "fi"}


@pytest.mark.parametrize("page", describe_all(main), ids=lambda page: page.name)
def test_structure(page) -> None:
    text = manual_page(page)
    lines = text.splitlines()
    assert lines[0].startswith(f'.TH "{page.name.upper().replace(" ", "-")}" "1"')
    headings = [line.removeprefix(".SH ") for line in lines if line.startswith(".SH ")]
    assert [heading for heading in headings if heading in SECTIONS] == list(SECTIONS)
    assert headings[-3:] == ["ENVIRONMENT", "FILES", "SEE ALSO"]
    for line in lines:
        if line.startswith((".", "'")):
            assert line[1:].split()[0] in REQUESTS, line
        assert line.isprintable()
        assert re.sub(r"\\[e&-]", "", line).count("\\") == 0, line
    assert lines.count(".nf") == lines.count(".fi")
    for written, meaning in [*page.options, *page.commands]:
        assert lines[lines.index(f".B {_text(written)}") + 1] == _text(meaning)
    for example in page.examples:
        assert f"$ {_text(example)}" in lines


def test_text_that_roff_would_take_for_something_else() -> None:
    assert _text(".jsonl or a\\b - c") == "\\&.jsonl or a\\eb \\- c"
    assert _text("'quoted'") == "\\&'quoted'"
    assert _tagged([("--n INTEGER", "Size.  [default: 3]")]) == [
        ".TP", ".B \\-\\-n INTEGER", "Size.  [default: 3]",
    ]  # fmt: skip


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_reads_every_page_without_complaint() -> None:
    together = "".join(manual_page(page) for page in describe_all(main))
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z"], input=together, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr == ""


def test_the_command_prints_a_page() -> None:
    result = CliRunner().invoke(main, ["man", "probe"])
    assert result.exit_code == 0
    assert result.output == manual_page(describe(main.commands["probe"], "esscher probe"))
    assert CliRunner().invoke(main, ["man"]).output.startswith('.TH "ESSCHER" "1"')


def test_all_pages_are_installed(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["man", "--install", str(tmp_path / "man")])
    assert result.exit_code == 0, result.output
    names = {path.name for path in (tmp_path / "man" / "man1").iterdir()}
    assert names == {"esscher.1", *(f"esscher-{name}.1" for name in main.commands)}
    assert str(len(names)) in result.output


def test_wrong_use_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["man", "prob"])
    assert result.exit_code == 2
    assert "'prob'" in result.output
    assert "probe" in result.output
    result = CliRunner().invoke(main, ["man", "probe", "--install", str(tmp_path / "new")])
    assert result.exit_code == 2
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    assert CliRunner().invoke(main, ["man", "--install", str(tmp_path / "file")]).exit_code == 2
