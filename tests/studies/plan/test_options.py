"""What a plan is asked for: kinds of calibration passages, rules and tasks by name."""

from __future__ import annotations

import re

import pytest

from esscher.core.errors import InputError
from esscher.engine.cache.published import RULES
from esscher.engine.text.tasks import TASKS
from esscher.studies.plan import PlanStudy
from esscher.studies.plan import study as options
from esscher.studies.plan.view import NAMES
from tests.studies.plan.small import roomy


def settings(**given):
    """What options amount to, with what was left out."""
    study = PlanStudy("model", "text", **({"budget": 0.5, "prefix": 224} | given))
    return study.checked().resolve(roomy().outline)


def test_names_are_those_of_what_they_name():
    """The study imports no torch, and so has lists of its own."""
    assert tuple(RULES) == options.PUBLISHED
    assert set(options.PUBLISHED) <= set(NAMES)
    assert settings(check="other", against=("all", "kvzip")).against == options.PUBLISHED


def test_what_is_compared_unless_it_is_said():
    assert settings(check="other").against == ("snapkv", "streaming")
    assert settings().against == ()
    assert settings(check="other", against="kvzip,kvzip,snapkv").against == ("kvzip", "snapkv")
    assert settings(check="other", tasks="all").tasks == tuple(TASKS)
    assert settings(check="other", tasks="quote,needle").tasks == ("needle", "quote")


@pytest.mark.parametrize(
    ("passages", "asked"), [(1, 0), (2, 1), (3, 1), (5, 1), (6, 2), (9, 3), (16, 5)]
)
def test_one_calibration_passage_of_three_is_asked_for_what_it_says(passages, asked):
    assert settings(passages=passages).retrieval == asked


def test_short_caches_are_calibrated_on_prose():
    assert settings(prefix=192).retrieval == 2
    assert settings(prefix=191).retrieval == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"check": "other", "against": "h2o"}, "against has 'h2o'; choose from all, streaming,"),
        ({"against": "h2o"}, "against has 'h2o'; choose from all, streaming, snapkv, adakv"),
        ({"against": "kvzip"}, "against is part of a check; give a text with --check"),
        ({"check": "other", "against": ()}, "against is empty; choose from streaming, snapkv"),
        ({"check": "other", "against": "kvzip:snapkv"}, "against has 'kvzip:snapkv'; choose from"),
        ({"check": "other", "tasks": "riddle"}, "tasks has 'riddle'; choose from all, needle,"),
        ({"tasks": "riddle"}, "tasks has 'riddle'; choose from all, needle, keys, values"),
        ({"tasks": "needle"}, "tasks are part of a check; give a text with --check"),
    ],
)
def test_names_that_are_not_known(given, message):
    with pytest.raises(InputError, match=re.escape(message)):
        settings(**given)
