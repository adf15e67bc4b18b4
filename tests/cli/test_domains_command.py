"""``esscher domains`` as a user meets it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from esscher.cli.program import main
from tests.engine.models.folders import WORDS, save
from tests.studies.domains.corpora import corpus

SIZES = (
    "--blocks", "6", "--block-tokens", "60", "--context", "64", "--layers", "0", "--heads", "1,2",
)  # fmt: skip


@pytest.fixture
def place(tmp_path):
    """A folder with a model and two corpora."""
    save(tmp_path / "model", "bert")
    (tmp_path / "a.txt").write_text(corpus(1, tokens=1500)[0])
    (tmp_path / "b.txt").write_text(corpus(2, WORDS[:9], tokens=1500)[0])
    return tmp_path


def run(place, *arguments):
    given = [str(place / a) if a in ("model", "run", "figure.png") else a for a in arguments]
    given = [a.replace("@", f"{place}/") for a in given]
    return CliRunner().invoke(main, ["domains", *given])


def test_tables_and_figure(place):
    result = run(
        place, "model", "--text", "plain=@a.txt", "--text", "../few words=@b.txt", *SIZES,
        "--out", "run", "--figure", "figure.png",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    for words in ("tokens that a head needs", "medians over heads", "undecided", "../few words"):
        assert words in result.output
    assert (place / "figure.png").stat().st_size > 10_000
    # names of corpora are no names of files
    assert sorted(path.name for path in place.iterdir()) == sorted(
        ["a.txt", "b.txt", "figure.png", "model", "run"]
    )
    shown = CliRunner().invoke(main, ["show", str(place / "run")])
    assert shown.exit_code == 0
    assert shown.output.splitlines()[0] == result.output.splitlines()[0]
    stored = CliRunner().invoke(main, ["show", str(place / "run"), "--json"])
    results = json.loads(stored.output)
    assert results["kind"] == "domains"
    assert [c["name"] for c in results["corpora"]] == ["plain", "../few words"]
    listed = CliRunner().invoke(main, ["ls", str(place)])
    assert "domains" in listed.output
    assert "complete" in listed.output


def test_json(place):
    result = run(place, "model", "--text", "a=@a.txt", "--text", "b=@b.txt", *SIZES, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {"corpora", "tests", "layers", "numbers", "headline"} <= set(found)
    assert {"p", "adjusted", "share", "verdict", "pairs"} == set(found["tests"]["tokens"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--text", "a=@a.txt"], "there is only one corpus; a comparison needs at least two"),
        ([], "there are no corpora"),
        (["--text", "@a.txt", "--text", "b=@b.txt"], "has no name"),
        (["--text", "=@a.txt", "--text", "b=@b.txt"], "has no name"),
        (["--text", "a=", "--text", "b=@b.txt"], "has no source"),
        (["--text", "a=@a.txt", "--text", "a=@b.txt"], "the name 'a' is taken"),
        (["--text", "a=@a.txt", "--text", "b=@no.txt"], "corpus 'b'"),
        (["--text", "a=@a.txt", "--text", "b=@b.txt", "--blocks", "50"], "only 1,500 tokens"),
        (["--text", "a=@a.txt", "--text", "b=@b.txt", "--blocks", "3"], "give more blocks"),
        (["--text", "a=@a.txt", "--text", "b=@b.txt", "--layers", "9"], "layers contains 9"),
        (["--text", "a=@a.txt", "--text", "b=@b.txt", "--figure", "x.txt"], "must end in"),
        (["--text", "a=@a.txt", "--text", "b=@b.txt", "--fdr", "2"], "fdr is 2"),
    ],
)
def test_bad_input_ends_with_a_message(arguments, words, place):
    sizes = [] if "--layers" in arguments else ["--layers", "0"]
    blocks = [] if "--blocks" in arguments else ["--blocks", "6"]
    result = run(
        place, "model", *arguments, *sizes, *blocks, "--block-tokens", "60", "--context", "64",
        "--out", "run",
    )  # fmt: skip
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert not (place / "run").exists()
