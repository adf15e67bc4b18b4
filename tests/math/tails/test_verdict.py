"""Which threshold decides on a tail."""

from __future__ import annotations

from esscher.math.tails import TailComparison
from esscher.math.tails.verdict import UNDECIDED, judge_thresholds


def test_the_tail_shown_is_the_one_that_decided():
    def tail(low, high):
        criterion = {"Gaussian": 0.0, "Weibull": 0.0, "Pareto": 0.0}
        return TailComparison(
            share=0.1,
            threshold=2.0,
            exceedances=500,
            groups=10,
            tau=1.0,
            tau_interval=(low, high),
            k=0.1,
            inflation=1.0,
            level=0.95,
            weights={},
            gaussian_over_exponential=0.0,
            criterion=criterion,
        )

    # heavy from below, overruled further out, where nothing can be told
    assert judge_thresholds([tail(1.1, 1.3), tail(1.4, 3.0)]) == (UNDECIDED, 1)
    assert judge_thresholds([tail(1.0, 3.0), tail(0.5, 4.0)]) == (UNDECIDED, 0)
