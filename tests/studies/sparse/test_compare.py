"""Comparisons of two curves: exponents, constants, crossings and budgets that are known."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.streams import random_stream
from esscher.math.statistics import fit_rate
from esscher.studies.sparse.compare import (
    Bias,
    Pair,
    against_random,
    budget_for,
    first_below,
    judge,
    slope_over_passages,
)
from esscher.studies.sparse.result import (
    AHEAD,
    CONSTANT,
    FASTER,
    KEEPS,
    MARGIN,
    NEVER,
    SLOWER,
    UNDECIDED,
)

BUDGETS = np.array([32.0, 64, 128, 256, 512, 1024])


def curves(curve, noise=0.1, shared=0.3, replicates=24, stream="a"):
    """Replicates of a curve: noise of their own, and noise that all patterns share."""
    own = random_stream(1, f"own {stream}").standard_normal((replicates, len(BUDGETS)))
    common = random_stream(1, "common").standard_normal((replicates, 1))
    return curve * np.exp(noise * own + shared * common)


BASE = curves(2.0 * BUDGETS**-0.5)


def pair(curve):
    return Pair.of(curves(curve, stream="b"), BASE, BUDGETS, seed=0)


def test_exponent_and_constant_of_the_ratio() -> None:
    found = pair(3.0 * BUDGETS**-0.4).compare()
    low, high = found.difference_interval
    assert low < -0.1 < high
    # noise of 24 replicates at 6 budgets: what is shared must have cancelled
    assert high - low < 0.12
    low, high = found.ratio_interval
    exact = 1.5 * np.exp(np.mean(np.log(BUDGETS))) ** 0.1
    assert low < exact < high
    assert high / low < 1.15
    low, high = found.last_ratio_interval
    assert low < 1.5 * 1024**0.1 < high


def test_crossings() -> None:
    # 2 r^-0.5 = c r^-0.3 at r = 200
    crossing = pair(2.0 * 200**-0.2 * BUDGETS**-0.3).crossing()
    assert "up to here" in crossing.says
    low, high = crossing.interval
    assert low < 200 < high
    assert low < crossing.budget < high
    crossing = pair(2.0 * 200**0.2 * BUDGETS**-0.7).crossing()
    assert "from here on" in crossing.says
    assert crossing.interval[0] < 200 < crossing.interval[1]
    assert "worse" in pair(4.0 * BUDGETS**-0.5).crossing().says
    assert "better" in pair(1.0 * BUDGETS**-0.5).crossing().says
    assert "noise" in pair(2.0 * BUDGETS**-0.5).crossing().says


def test_worth_in_random_keys() -> None:
    found = pair(4.0 * BUDGETS**-0.5).as_random()
    assert found.state == "inside"
    assert found.interval[0] < 256 < found.interval[1]
    assert pair(1.0 * BUDGETS**-0.5).as_random().state == "above"
    assert pair(40.0 * BUDGETS**-0.5).as_random().state == "below"


def test_budget_for_a_target() -> None:
    found = budget_for(BASE, BUDGETS, 0.1 * np.exp(0.045), 0)
    # 2 r^-0.5 times the mean of the noise, exp(0.05)
    assert found.state == "inside"
    low, high = found.interval
    assert low < 400 < high
    assert budget_for(BASE, BUDGETS, 10.0, 0).state == "below"
    above = budget_for(BASE, BUDGETS, 1e-3, 0)
    assert above.state == "above"
    assert above.budget is None


def test_first_below() -> None:
    x = np.array([0.0, 1.0, 2.0])
    lines = np.array([[4.0, 2.0, 0.0], [1.0, 0.5, 0.0], [4.0, 4.0, 4.0], [3.0, 1.0, 2.0]])
    assert first_below(x, lines, 1.0).tolist() == [1.5, -np.inf, np.inf, 1.0]


def test_slopes_of_passages() -> None:
    errors = curves(2.0 * BUDGETS**-0.4, noise=0.05, replicates=8)
    exponent, (low, high) = slope_over_passages(errors, BUDGETS)
    assert low is not None
    assert high is not None
    assert low < 0.4 < high
    assert exponent == pytest.approx(0.4, abs=0.05)
    assert slope_over_passages(errors[:1], BUDGETS)[1] == (None, None)


@pytest.mark.parametrize(
    ("curve", "metric", "verdict"),
    [
        (2.0 * BUDGETS**-0.5, "map", KEEPS),
        (3.0 * BUDGETS**-0.5, "map", CONSTANT),
        (1.0 * BUDGETS**-0.5, "map", CONSTANT),
        (3.0 * BUDGETS**-0.25, "map", SLOWER),
        (3.0 * BUDGETS**-0.25, "mean", SLOWER),
        (0.2 * BUDGETS**-0.25, "mean", AHEAD),
        (2.0 * BUDGETS**-0.8, "map", FASTER),
        (2.0 * BUDGETS**-0.5 + 0.3, "map", NEVER),
        (0.5 * BUDGETS**-0.01, "map", NEVER),
    ],
)
def test_verdicts(curve, metric, verdict) -> None:
    errors = curves(curve, noise=0.05, stream="b")
    comparison = Pair.of(errors, BASE, BUDGETS, 0).compare()
    rate, base = fit_rate(errors, BUDGETS), fit_rate(BASE, BUDGETS)
    found = judge(metric, rate, comparison, base, None, True)
    assert found.verdict == verdict, found
    assert "random selection" in found.evidence


def test_a_bias_that_does_not_fall_is_no_convergence() -> None:
    errors = curves(2.0 * BUDGETS**-0.5, stream="b")
    comparison = Pair.of(errors, BASE, BUDGETS, 0).compare()
    rate, base = fit_rate(errors, BUDGETS), fit_rate(BASE, BUDGETS)
    stays = Bias(0.8, (0.7, 0.9), 0.02, (-0.01, 0.05))
    falls = Bias(0.8, (0.7, 0.9), 0.5, (0.4, 0.6))
    unknown = Bias(0.8, (0.7, 0.9), 0.02, (-0.3, 0.34))
    assert judge("map", rate, comparison, base, stays, True).verdict == NEVER
    for other in (falls, unknown):
        assert judge("map", rate, comparison, base, other, True).verdict in (KEEPS, UNDECIDED)
    assert judge("map", rate, comparison, base, None, False).verdict == NEVER


def judged(replicates, noise, curve=2.0 * BUDGETS**-0.5):
    errors = curves(curve, noise, replicates=replicates, stream="c")
    base = curves(2.0 * BUDGETS**-0.5, noise, replicates=replicates)
    comparison = Pair.of(errors, base, BUDGETS, 0).compare()
    found = judge("map", fit_rate(errors, BUDGETS), comparison, fit_rate(base, BUDGETS), None, True)
    return found, comparison.difference_interval


def test_only_a_narrow_interval_keeps_an_exponent() -> None:
    """Fewer replicates and more noise leave the same two curves undecided."""
    said = []
    for replicates, noise in ((64, 0.05), (64, 0.5), (3, 0.3), (2, 0.5), (1, 0.05)):
        found, (low, high) = judged(replicates, noise)
        said.append(found.verdict in (KEEPS, CONSTANT))
        assert said[-1] == (-MARGIN <= low <= high <= MARGIN)
        assert said[-1] or found.verdict == UNDECIDED
    assert said == [True, False, False, False, False]


def test_undecided_patterns_say_how_many_replicates_would_decide() -> None:
    found, _ = judged(8, 0.3)
    assert found.verdict == UNDECIDED
    assert "neither within 0.05 of 0 nor beyond" in found.evidence
    needed = int(found.evidence.split(" replicates in all")[0].split()[-1].replace(",", ""))
    # noise of 0.3 at six budgets: the spread of a difference is 0.3 sqrt(2) / |x - mean(x)|
    x = np.log(BUDGETS) - np.log(BUDGETS).mean()
    spread = 0.3 * np.sqrt(2) / np.sqrt(x @ x)
    assert 0.3 < needed / ((1.96 + 0.84) * spread / MARGIN) ** 2 < 10
    assert judged(4 * needed, 0.3)[0].verdict in (KEEPS, CONSTANT)


def test_heads_are_compared_all_at_once() -> None:
    """Without an effect, any of 200 heads that share their passages is called in 5% of studies."""
    wrong = 0
    for study in range(60):
        rng = random_stream(study, "heads")
        shared = rng.standard_normal((1, 6))
        logs = 0.1 * (0.7 * shared + 0.7 * rng.standard_normal((200, 6)))
        wrong += any(said != "undecided" for *_, said in against_random(logs))
    assert wrong <= 8  # 3 are expected; more than 8 in 60 has probability 0.003
    (_, interval, said), *_ = against_random(np.full((1, 4), -0.5) + 0.01 * np.arange(4))
    assert said == "better"
    assert interval[1] is not None
    assert interval[1] < 1
    assert against_random(np.full((3, 1), -0.5))[0][1:] == ((None, None), "undecided")
