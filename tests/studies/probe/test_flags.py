"""Flags of heads: by intervals, over all heads, apart for mean, covariance and map."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from esscher.studies.probe.assemble import with_flags
from tests.studies.probe.made import made_head


def measured(head, metric, exponent, noise, replicates=64):
    fit = replace(
        head.fit[metric],
        exponent=exponent,
        standard_error=noise,
        trusted=True,
        n_replicates=replicates,
    )
    return replace(head, fit=replace(head.fit, **{metric: fit}))


def predicted(head, metric, exponent):
    error = replace(head.predicted_error[metric], exponent=exponent, exponent_error=0.01)
    return replace(head, predicted_error=replace(head.predicted_error, **{metric: error}))


def quiet(number=0):
    """A head about which nothing stands out."""
    head = made_head(number)
    for metric in ("mean", "cov", "map"):
        head = measured(head, metric, 0.5, 0.01)
    return head


def flags(*heads):
    return [list(head.flags) for head in with_flags(heads)]


def test_slow_exponents_by_metric():
    heads = [measured(quiet(0), "map", 0.3, 0.01), measured(quiet(1), "cov", 0.3, 0.01), quiet(2)]
    first, second, third = with_flags(heads)
    assert list(first.flags) == ["slow map", "prediction off (map)"]
    assert list(second.flags) == ["slow covariance", "prediction off (covariance)"]
    assert third.flags == {}
    assert first.flags["slow map"] == "exponent measured: 0.300 ± 0.010"


def test_many_heads_need_more_evidence():
    # 2.5 standard errors: enough for one head, not for one among a hundred
    slow = measured(quiet(0), "mean", 0.475, 0.01)
    assert "slow mean" in flags(slow)[0]
    assert "slow mean" not in flags(slow, *(quiet(i) for i in range(1, 100)))[0]


@pytest.mark.parametrize(
    ("exponent", "noise", "replicates", "slow"),
    [
        (0.35, 0.01, 64, True),
        (0.35, 0.05, 64, True),
        (0.35, 0.2, 64, False),
        (0.35, 1.0, 64, False),
        (0.475, 0.01, 64, True),
        (0.475, 0.01, 3, False),
    ],
)
def test_less_data_gives_no_more_flags(exponent, noise, replicates, slow):
    (names,) = flags(measured(quiet(), "mean", exponent, noise, replicates))
    assert ("slow mean" in names) == slow


def test_predicted_and_gaussian():
    head = predicted(quiet(), "mean", 0.3)
    assert flags(head) == [["slow mean (predicted)", "prediction off (mean)"]]
    # curves bend: measured exponents are compared with the weights of their fit
    weighted = replace(head.fit, mean=replace(head.fit.mean, predicted=0.5))
    assert flags(replace(head, fit=weighted)) == [["slow mean (predicted)"]]
    # of the covariance it is no flag: it found too few
    assert flags(predicted(quiet(), "cov", 0.3)) == [["prediction off (covariance)"]]
    (found,) = with_flags([replace(quiet(), sharp=replace(head.sharp, mean=0.1), horizon=3.0)])
    assert list(found.flags) == ["not Gaussian"]
    assert "conjectured" in found.flags["not Gaussian"]


def test_flags_of_a_single_head():
    assert flags(replace(quiet(), fit=None)) == [[]]
    head = quiet()
    untrusted = replace(head.fit, mean=replace(head.fit.mean, trusted=False, reasons=("why",)))
    assert flags(replace(head, reference_share=0.3, fit=untrusted)) == [["reference", "fit"]]
