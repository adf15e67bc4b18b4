"""The study of the guide: run, resumed, listed, shown, loaded, in other processes, refused."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import esscher
from esscher.cli.program import main
from esscher.cli.study import study_command
from esscher.core.errors import InputError
from esscher.runs import registry
from tests.cli.printed import run
from tests.docs.pages import ROOT, blocks
from tests.engine.models.folders import WORDS, save


@pytest.fixture
def guide(tmp_path, monkeypatch):
    """The guide's module as a file that other processes find, and its line."""
    page = (ROOT / "docs/guides/add-a-study.md").read_text(encoding="utf-8")
    code, line = (block.text for block in blocks(page) if block.language == "python")
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide/norms.py").write_text(code)
    (tmp_path / "sitecustomize.py").write_text(
        "import esscher.studies\nesscher.studies.STUDIES['norms'] = ('guide.norms:NormsStudy', '')"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    ((place, sentence),) = eval(f"{{{line}}}").values()
    assert place == "esscher.studies.norms:NormsStudy"
    monkeypatch.setitem(registry.STUDIES, "norms", ("guide.norms:NormsStudy", sentence))
    registry.study_named.cache_clear()
    command = study_command("norms")
    assert command.get_short_help_str(1000) == sentence
    monkeypatch.setitem(main.commands, "norms", command)
    yield
    registry.study_named.cache_clear()
    for name in ("guide", "guide.norms"):
        del sys.modules[name]


@pytest.fixture
def files(tmp_path):
    save(tmp_path / "model")
    words = np.random.default_rng(0).choice(WORDS, size=2000)
    (tmp_path / "text.txt").write_text(" ".join(words))
    return [str(tmp_path / "model"), "--text", str(tmp_path / "text.txt")]


def test_the_guides_study_has_everything(guide, files, tmp_path):
    out = str(tmp_path / "run")
    done = run("norms", *files, "--context", "48", "--out", out)
    assert done.exit_code == 0, done.output
    assert "The median head has keys of norm" in done.output
    result = esscher.load(out)
    assert result.complete
    assert len(result.table()) == result["largest"].size
    assert (result["norm"].sel(bound="value") < result["largest"]).all()
    assert json.loads(run("show", out, "--json").stdout) == result.to_dict()
    assert json.loads(run("ls", str(tmp_path), "--json").stdout)["runs"][0]["kind"] == "norms"
    page = tmp_path / "report.html"
    assert run("report", out, "-o", str(page)).exit_code == 0
    assert "Norms of the keys" in page.read_text()
    # the same call finds everything stored; another first is told what differs
    assert run("norms", *files, "--context", "48", "--out", out).exit_code == 0
    other = run("norms", *files, "--context", "48", "--passages", "5", "--out", out)
    assert other.exit_code == 2
    assert "passages: stored 4, now 5" in other.output
    with pytest.raises(InputError, match="passages is 1; it must be a whole number of at least 2"):
        esscher.norms(files[0], files[2], passages=1)


@pytest.mark.slow
def test_the_guides_study_in_other_processes(guide, files):
    done = run("norms", *files, "--json")
    assert done.exit_code == 0, done.output
    first = json.loads(done.stdout)
    second = json.loads(run("norms", *files, "--workers", "2", "--json").stdout)
    assert first["variables"] == second["variables"]
