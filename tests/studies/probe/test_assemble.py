"""Passages put together: means of numbers, and what becomes of standard errors."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from esscher.engine.sampled.layer import LayerMeasurement
from esscher.math.statistics.intervals import ByMetric
from esscher.studies.probe.assemble import average, combine
from esscher.studies.probe.result import HeadStatistics
from tests.runs.made import SIZES
from tests.studies.probe.made import made_head


def passage(error):
    head = made_head(0)
    predicted = structs.replace(
        head.predicted_error.mean,
        error=(error,) * 3,
        standard_error=(0.04,) * 3,
        exponent=error,
        exponent_error=0.02,
    )
    fields = {name: getattr(head, name) for name in HeadStatistics.__struct_fields__}
    fields["predicted_error"] = structs.replace(head.predicted_error, mean=predicted)
    measured = LayerMeasurement(
        layer=0,
        heads=(0,),
        sizes=SIZES,
        errors=np.ones((3, 2, 4, 3)),
        relative=np.ones(2),
        reference_error=np.zeros(2),
    )
    return measured, (HeadStatistics(**fields),)


def test_standard_errors_of_independent_passages_shrink():
    measured, (stats,) = combine([passage(error) for error in (0.4, 0.6, 0.4, 0.6)])
    mean = stats.predicted_error.mean
    assert mean.error == pytest.approx((0.5, 0.5, 0.5))
    assert mean.standard_error == pytest.approx((0.02, 0.02, 0.02))
    assert (mean.exponent, mean.exponent_error) == pytest.approx((0.5, 0.01))
    assert measured.errors.shape == (3, 2, 16, 3)


def test_average():
    numbers = [{"a": 1, "b": (1.0, 2.0)}, {"a": 3, "b": (3.0, 4.0)}]
    assert average(numbers) == {"a": 2.0, "b": (2.0, 3.0)}
    records = [ByMetric(mean=x, cov=2 * x, map=3 * x) for x in (1.0, 3.0)]
    assert average(records) == ByMetric(mean=2.0, cov=4.0, map=6.0)
    # as far as all of them go
    assert average([tuple(records), tuple(records[1:])]) == (average(records),)
    assert average([(("a", 1.0), ("b", 2.0)), (("c", 3.0),)]) == (("a", 2.0),)
    # an interval that is open in one passage is open at that end alone
    assert average([(2.0, None), (4.0, 6.0)]) == average([(4.0, 6.0), (2.0, None)]) == (3.0, None)
    for values in ([None, 1.0], [1.0, None], [records[0], None]):
        assert average(values) is None
    assert average([True, False, True]) is True
    assert average(["x", "y"]) == "x"
