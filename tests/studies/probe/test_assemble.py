"""Passages put together: means of numbers, and what becomes of standard errors."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from esscher.engine.sampled.layer import LayerMeasurement
from esscher.studies.probe.assemble import LayerFound, combine
from esscher.studies.probe.result import HeadStatistics
from tests.studies.probe.made import SIZES, made_head


def found(error: float) -> LayerFound:
    head = made_head(0)
    mean = structs.replace(
        head.predicted_error.mean,
        error=(error,) * 3,
        standard_error=(0.04,) * 3,
        exponent=error,
        exponent_error=0.02,
    )
    fields = {name: getattr(head, name) for name in HeadStatistics.__struct_fields__}
    fields["predicted_error"] = structs.replace(head.predicted_error, mean=mean)
    measured = LayerMeasurement(
        layer=0,
        heads=(0,),
        sizes=SIZES,
        errors=np.ones((3, 2, 4, 3)),
        relative=np.ones(2),
        reference_error=np.zeros(2),
    )
    return LayerFound(measured, (HeadStatistics(**fields),))


def test_standard_errors_of_independent_passages_shrink():
    together = combine([found(0.4), found(0.6), found(0.4), found(0.6)])
    (stats,) = together.stats
    mean = stats.predicted_error.mean
    assert mean.error == pytest.approx((0.5, 0.5, 0.5))
    assert mean.standard_error == pytest.approx((0.02, 0.02, 0.02))
    assert (mean.exponent, mean.exponent_error) == pytest.approx((0.5, 0.01))
    assert together.measured.errors.shape == (3, 2, 16, 3)
