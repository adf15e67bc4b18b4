"""Heads with given numbers."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from esscher.math.statistics.intervals import ByMetric
from esscher.studies.probe.result import PredictedError, ProbeHead
from tests.runs.made import SIZES, make


def made_head(head: int, **changes: Any) -> ProbeHead:
    """A head of layer 0 whose errors fall like n^-1/2, unless something else is given."""
    small = make("probe")[1].heads[0]
    predicted = PredictedError(
        error=(0.3, 0.2, 0.1),
        standard_error=(0.01,) * len(SIZES),
        exponent=0.5,
        exponent_error=0.01,
    )
    fit = structs.replace(small.fit.mean, exponent=0.5, predicted=None, trusted=True)
    made = structs.replace(
        small,
        layer=0,
        head=head,
        fit=ByMetric(mean=fit, cov=fit, map=fit),
        predicted_error=ByMetric(mean=predicted, cov=predicted, map=predicted),
        sharp=ByMetric(mean=0.5, cov=0.5, map=0.5),
        keys=1000,
        tokens_for={"0.05": 4000.0, "0.1": 1000.0, "0.2": 250.0},
        context=64,
        at_context=0.1,
        at_context_interval=(0.09, 0.11),
        reference_share=0.0,
        flags={},
    )
    return structs.replace(made, **changes)
