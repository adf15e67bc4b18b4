"""Functions that run studies: their arguments are the options of the command."""

from __future__ import annotations

import inspect

import pytest

import esscher
from esscher.core.options import options_of
from esscher.runs.registry import load
from esscher.studies.sweep import SweepStudy

HEAD = esscher.gaussian_head(horizon=0.5, dim=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sizes": [8], "qwxz": 3}, r"sweep\(\): .* unexpected .* 'qwxz'; it has head, sizes"),
        ({"head": HEAD}, r"sweep\(\): multiple values for argument 'head'"),
        ({}, r"sweep\(\): missing a required argument: 'sizes'"),
    ],
)
def test_wrong_arguments_name_the_function(options, words):
    with pytest.raises(TypeError, match=words):
        esscher.sweep(HEAD, **options)


@pytest.mark.parametrize("name", ["probe", "sweep", "sparse_law", "plan", "domains"])
def test_signatures_have_plain_types(name):
    shown = str(inspect.signature(getattr(esscher, name)))
    for word in ("Meta", "msgspec", "Annotated"):
        assert word not in shown


def test_grids_are_written_as_on_the_command_line():
    text = esscher.sweep(HEAD, sizes="8:32:3", replicates=2, alpha="0.5:2:3")
    lists = esscher.sweep(HEAD, sizes=[8, 16, 32], replicates=2, alpha=[0.5, 1.0, 2.0])
    assert text["replicate_error"].equals(lists["replicate_error"])


def test_alpha_has_one_name(tmp_path):
    (alpha,) = (o for o in options_of(SweepStudy) if o.name == "alpha")
    assert alpha.flag == "--alpha"
    assert "alpha" in inspect.signature(esscher.sweep).parameters
    result = esscher.sweep(HEAD, [8, 16], 2, alpha=[0.5, 1.0], out=tmp_path / "run")
    assert result.to_dict()["configuration"]["alpha"] == [0.5, 1.0]
    assert load(tmp_path / "run").setup.settings.alpha == (0.5, 1.0)
