"""Settings of a small run, and few resamples of heads: enough for the verdicts of made data."""

from __future__ import annotations

import pytest

from esscher.studies.paper import claims
from esscher.studies.paper.study import DECODER, ENCODER, TEXT, PaperSettings


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(claims, "RESAMPLES", 200)


@pytest.fixture(scope="session")
def settings():
    names = {"encoder": ENCODER, "decoder": DECODER, "text": TEXT}
    return PaperSettings(claims=("heads",), scale="quick", seed=0, **names)
