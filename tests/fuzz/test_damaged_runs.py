"""Damaged runs of every study: read as they were, or refused in words."""

from __future__ import annotations

import contextlib
import json
import warnings

import pytest
from click.testing import CliRunner

import esscher
from esscher.cli import main
from esscher.core.errors import InputError
from esscher.core.untrusted import foreign
from tests.fuzz.damage import (
    as_text,
    changed_bytes,
    changed_tree,
    effort,
    fuzz,
    randoms,
    resealed,
)
from tests.runs.made import unpack

KINDS = (
    "paper",
    "probe",
    "sweep",
    "sparse",
    "sparse-law",
    "deep",
    "deep-stack",
    "tails",
    "domains",
    "plan",
    "context",
)
RESULT = "results.safetensors"


def answered(*words) -> int:
    """Run a command; anything but an answer or a refusal in words fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers may overflow; what counts is how it ends
        result = CliRunner().invoke(main, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"{words}: {result.exception!r}") from result.exception
    assert result.exit_code in (0, 2), result.output
    assert not {"\x1b", "\x07", "\u202e"} & set(result.output)
    return result.exit_code


def files_of(run):
    """The files of a run, without its lock and its log."""
    return sorted(path for path in run.rglob("*") if path.suffix in (".safetensors", ".json"))


@pytest.mark.parametrize("kind", KINDS)
def test_undamaged_runs_are_read(kind, tmp_path):
    """Or damaged ones would be refused for something else."""
    run = unpack(kind, tmp_path)
    result = esscher.load(run)
    assert result.complete
    assert not result.table().empty
    # from its cells, too
    (run / RESULT).unlink()
    assert esscher.load(run).data.identical(result.data)
    for words in (["show", run], ["ls", tmp_path], ["report", run, "-o", tmp_path / "a.html"]):
        assert answered(*words) == 0


@pytest.mark.parametrize("kind", KINDS)
@effort(8, 400)
def test_nothing_is_accepted_that_differs(kind, examples, tmp_path):
    """A file of a cell or of the result with other bytes."""
    run = unpack(kind, tmp_path)
    sound = {path: path.read_bytes() for path in files_of(run) if path.suffix != ".json"}
    data = esscher.load(run).data

    def property(random):
        for place, content in sound.items():
            place.write_bytes(content)
        path = random.choice(sorted(sound))
        path.write_bytes(changed_bytes(sound[path], random))
        if path.name != RESULT:
            (run / RESULT).unlink()
        with contextlib.suppress(InputError):
            assert esscher.load(run).data.identical(data)

    fuzz(examples, randoms())(property)


@pytest.mark.parametrize("kind", KINDS)
@effort(8, 400)
def test_a_right_checksum_does_not_help(kind, examples, tmp_path):
    """Files of somebody who knows the layout: their numbers are shown, or refused in words."""
    run = unpack(kind, tmp_path)
    sound = {path: path.read_bytes() for path in files_of(run)}

    def property(random):
        for place, content in sound.items():
            place.write_bytes(content)
        path = random.choice(sorted(sound))
        if path.suffix == ".json":
            path.write_bytes(as_text(changed_tree(json.loads(sound[path]), random)))
        else:
            path.write_bytes(resealed(sound[path], random))
        if path.name != RESULT:
            (run / RESULT).unlink()
        with warnings.catch_warnings(), contextlib.suppress(InputError), foreign(run):
            warnings.simplefilter("ignore")
            result = esscher.load(run)
            assert repr(result)
            result.to_dict()
        if random.random() < 0.1:
            words = [["show", run], ["ls", tmp_path], ["report", run, "-o", tmp_path / "a.html"]]
            answered(*random.choice(words))

    fuzz(examples, randoms())(property)


@effort(25, 1500)
def test_damaged_plan_files(examples, tmp_path):
    tree = json.loads((unpack("plan", tmp_path) / "plan.json").read_bytes())
    path = tmp_path / "plan.json"

    def property(random):
        path.write_bytes(as_text(changed_tree(tree, random)))
        with contextlib.suppress(InputError):
            plan = esscher.load(path)
            assert plan.token_budgets.tokens.ndim == 2
            assert (plan.token_budgets.ratios <= 1).all()

    fuzz(examples, randoms())(property)


def test_names_reach_the_terminal_as_text(tmp_path):
    """The model of the samples has a control character in its name."""
    hostile = "\x1b]0;owned\x07[red]x[/red][link=http://x]y[/link] :bomb: \u202eabc\r"
    run = unpack("tails", tmp_path)
    (run / RESULT).unlink()
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"subject": hostile}))
    assert answered("show", run) == 0
    assert answered("ls", tmp_path) == 0
    output = CliRunner().invoke(main, ["ls", str(tmp_path)], color=True).output
    assert "[red]x[/red][link=" in output
    assert "\x1b" not in output
