"""Flags of heads: by intervals, over all heads, apart for mean, covariance and map."""

from __future__ import annotations

from msgspec.structs import replace

from esscher.studies.probe.assemble import with_flags
from esscher.studies.probe.result import MeanAndCovariance
from tests.studies.probe.made import made_head


def measured(head, metric, exponent, noise):
    fit = replace(
        head.fit[metric], exponent=exponent, standard_error=noise, trusted=True, n_replicates=64
    )
    return replace(head, fit=replace(head.fit, **{metric: fit}))


def quiet(number):
    """A head about which nothing stands out."""
    head = made_head(number)
    for metric in ("mean", "cov", "map"):
        head = measured(head, metric, 0.5, 0.01)
    return head


def names(head):
    return [flag.flag for flag in head.flags]


def test_nothing_stands_out():
    assert [names(head) for head in with_flags([quiet(i) for i in range(3)])] == [[], [], []]


def test_slow_exponents_by_metric():
    heads = [measured(quiet(0), "map", 0.3, 0.01), measured(quiet(1), "cov", 0.3, 0.01), quiet(2)]
    first, second, third = with_flags(heads)
    assert names(first) == ["slow map", "prediction off (map)"]
    assert names(second) == ["slow covariance", "prediction off (covariance)"]
    assert names(third) == []
    assert first.flags[0].evidence == "exponent measured: 0.300 ± 0.010"


def test_many_heads_need_more_evidence():
    # 2.5 standard errors: enough for one head, not for one among a hundred
    heads = [measured(quiet(0), "mean", 0.475, 0.01), *(quiet(i) for i in range(1, 100))]
    assert "slow mean" in names(with_flags(heads[:1])[0])
    assert "slow mean" not in names(with_flags(heads)[0])


def test_less_data_gives_no_more_flags():
    for noise in (0.01, 0.05, 0.2, 1.0):
        (head,) = with_flags([measured(quiet(0), "mean", 0.35, noise)])
        slow = "slow mean" in names(head)
        assert slow == (noise < 0.1)


def test_few_replicates_decide_little():
    head = measured(quiet(0), "mean", 0.475, 0.01)
    assert "slow mean" in names(with_flags([head])[0])
    few = replace(head.fit.mean, n_replicates=3)
    (found,) = with_flags([replace(head, fit=replace(head.fit, mean=few))])
    assert "slow mean" not in names(found)


def test_predicted_and_gaussian():
    head = quiet(0)
    slow = replace(head.predicted_error.mean, exponent=0.3, exponent_error=0.01)
    head = replace(head, predicted_error=replace(head.predicted_error, mean=slow))
    (found,) = with_flags([head])
    assert names(found) == ["slow mean (predicted)", "prediction off (mean)"]
    # curves bend: measured exponents are compared with the weights of their fit
    weighted = replace(head.fit, mean=replace(head.fit.mean, predicted=0.5))
    assert names(with_flags([replace(head, fit=weighted)])[0]) == ["slow mean (predicted)"]
    # of the covariance it is no flag: it found too few
    slow = replace(quiet(0).predicted_error.cov, exponent=0.3, exponent_error=0.01)
    other = replace(quiet(0), predicted_error=replace(quiet(0).predicted_error, cov=slow))
    assert names(with_flags([other])[0]) == ["prediction off (covariance)"]
    sharp = replace(head.predicted, sharp=replace(head.predicted.sharp, mean=0.1))
    (found,) = with_flags([replace(quiet(0), predicted=sharp, horizon=3.0)])
    assert names(found) == ["not Gaussian"]
    assert "conjectured" in found.flags[0].evidence


def test_without_measurements():
    head = replace(quiet(0), fit=None, curve=None)
    assert names(with_flags([head])[0]) == []


def test_flags_of_one_head():
    share = MeanAndCovariance(mean=0.3, cov=None)
    head = quiet(0)
    head = replace(
        head,
        reference=replace(head.reference, share=share),
        fit=replace(head.fit, mean=replace(head.fit.mean, trusted=False, reasons=("why",))),
    )
    assert names(with_flags([head])[0]) == ["reference", "fit"]
