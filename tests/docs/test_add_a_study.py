"""The study of the guide: run, resumed, listed, shown, loaded, in other processes, refused."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import esscher
from esscher.cli.program import main
from esscher.cli.study import study_command
from esscher.core.errors import InputError
from esscher.runs import registry
from tests.docs.pages import ROOT, blocks
from tests.engine.models.folders import WORDS, save


@pytest.fixture
def guide(tmp_path, monkeypatch):
    """The guide's module as a file that other processes find, and its two lines."""
    page = (ROOT / "docs/guides/add-a-study.md").read_text(encoding="utf-8")
    code, line, sentence = (block.text for block in blocks(page) if block.language == "python")
    (tmp_path / "norms_guide").mkdir()
    (tmp_path / "norms_guide" / "study.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    entry = eval(f"{{{line}}}")
    assert entry == {"norms": "esscher.studies.norms.study:NormsStudy"}
    monkeypatch.setitem(registry.STUDIES, "norms", "norms_guide.study:NormsStudy")
    registry.study_named.cache_clear()
    command = study_command("norms")
    assert eval(f"{{{sentence}}}") == {"norms": command.get_short_help_str(1000)}
    monkeypatch.setitem(main.commands, "norms", command)
    yield sys.modules["norms_guide.study"]
    registry.study_named.cache_clear()
    for name in ("norms_guide", "norms_guide.study"):
        del sys.modules[name]


@pytest.fixture
def files(tmp_path):
    save(tmp_path / "model")
    words = np.random.default_rng(0).choice(WORDS, size=2000)
    (tmp_path / "text.txt").write_text(" ".join(words))
    return [str(tmp_path / "model"), "--text", str(tmp_path / "text.txt")]


def run(*words: str):
    return CliRunner().invoke(main, list(words))


def test_the_guides_study_has_everything(guide, files, tmp_path):
    out = str(tmp_path / "run")
    done = run("norms", *files, "--layers", "0-1", "--out", out)
    assert done.exit_code == 0, done.output
    assert "The longest keys have norm" in done.output
    assert "key head" in done.output
    found = esscher.load(out)
    assert found.complete
    assert len(found.table()) == 2 * len(found.layers[0].norms)
    assert json.loads(run("show", out, "--json").stdout) == found.to_dict()
    assert json.loads(run("ls", str(tmp_path), "--json").stdout)["runs"][0]["kind"] == "norms"
    # the same call finds everything stored; another one is told what differs
    assert run("norms", *files, "--layers", "0-1", "--out", out).exit_code == 0
    other = run("norms", *files, "--layers", "0-1", "--tokens", "500", "--out", out)
    assert other.exit_code == 2
    assert "tokens: stored 1000, now 500" in other.output
    with pytest.raises(InputError, match="tokens is 3; it must be a whole number of at least 10"):
        guide.norms(files[0], files[2], tokens=3)


@pytest.mark.slow
def test_the_guides_study_in_other_processes(guide, files, tmp_path):
    one = json.loads(run("norms", *files, "--json").stdout)
    two = json.loads(run("norms", *files, "--workers", "2", "--json").stdout)
    assert one["layers"] == two["layers"]
