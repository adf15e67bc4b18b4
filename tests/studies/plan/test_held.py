"""Passages that are held between calibration and trial: the same numbers as reading them again."""

from __future__ import annotations

import json

import pytest

from esscher.studies.plan import plan, work
from esscher.studies.plan.effects import HeldPassages, ObservedPassage
from tests.studies.plan.small import DECODER, prose, tiny


def numbers(found):
    return {k: v for k, v in found.to_dict().items() if k not in ("created", "versions")}


@pytest.mark.parametrize("selection", ["fitted", "sample"])
def test_the_same_plan(selection, monkeypatch):
    read = []

    def counted(*given, **options):
        read.append(given)
        return ObservedPassage(*given, **options)

    monkeypatch.setattr(work, "ObservedPassage", counted)
    model, options = tiny(), DECODER | {"selection": selection}
    held = plan(model, prose(0), **options)
    assert len(read) == DECODER["passages"]
    monkeypatch.setattr(work, "HeldPassages", lambda: HeldPassages(0))
    again = plan(model, prose(0), **options)
    assert len(read) == 3 * DECODER["passages"]
    assert json.dumps(numbers(held)) == json.dumps(numbers(again))


class Passage:
    """As large as it says."""

    def __init__(self, nbytes):
        self.prompt = type("Prompt", (), {"nbytes": nbytes})()


def test_room():
    held, (first, second, third) = HeldPassages(100), map(Passage, (60, 60, 40))
    for number, passage in enumerate((first, second, third)):
        held.put(number, passage)
    assert held.take(0) is first
    assert held.take(0) is None
    assert held.take(1) is None
    assert held.take(2) is third
    held.put(1, second)
    assert held.take(1) is second
