"""Name the tail of a head's tokens, and say what that means for the theory."""

from __future__ import annotations

from collections.abc import Sequence

from esscher.math.tails.candidates import CLOSE
from esscher.math.tails.records import Cloud, Deciding, Judgement, TailComparison

SUB_GAUSSIAN = "sub-Gaussian"
EXPONENTIAL = "exponential moments"
OPEN = "heavier than Gaussian"
NONE = "no exponential moments"
UNDECIDED = "undecided"
#: Verdicts from the lightest tail to the heaviest; what is not decided stands apart.
VERDICTS = (SUB_GAUSSIAN, EXPONENTIAL, OPEN, NONE, UNDECIDED)
#: Letters for narrow tables and figures.
LETTERS = {SUB_GAUSSIAN: "S", EXPONENTIAL: "E", OPEN: "H", NONE: "N", UNDECIDED: "?"}
#: Verdicts that contradict the assumption.
HEAVY = (EXPONENTIAL, OPEN, NONE)
#: Fewest exceedances from which a tail is called heavier than Gaussian: fewer may be a cluster.
FIRM = 100
#: How much a verdict weighs when the halves of a cloud say different things.
WEIGHT = {SUB_GAUSSIAN: 0, UNDECIDED: 1, EXPONENTIAL: 2, OPEN: 3, NONE: 4}

MEANINGS = {
    SUB_GAUSSIAN: (
        "the limit exists for every query; the sub-Gaussian assumption holds, with the variance "
        "proxy as its parameter"
    ),
    EXPONENTIAL: (
        "the limit exists for every query, but no sub-Gaussian parameter does: the larger the "
        "tilt, the worse the constants"
    ),
    OPEN: (
        "the sub-Gaussian assumption fails along this direction; whether the limit exists for "
        "every query is open"
    ),
    NONE: (
        "exponential moments are not in evidence: along this direction the limit is that of the "
        "text, not of a law behind it"
    ),
    UNDECIDED: "too few tokens to tell a Gaussian tail from an exponential one",
}


def judge(cloud: Cloud) -> Judgement:
    """Verdict, evidence and meaning, from the numbers of a cloud.

    Where the halves found different directions, a tail that is heavier when they are put together
    must be heavier in one of them as well.
    """
    tail = cloud.tail
    verdict, at = judge_thresholds(tail)
    if verdict in HEAVY and cloud.tail_halves:
        each = [judge_thresholds(half) for half in cloud.tail_halves]
        worst = max(range(len(each)), key=lambda i: WEIGHT[each[i][0]])
        (verdict, at), tail = each[worst], cloud.tail_halves[worst]
    rests = tail[at]
    return Judgement(
        verdict=verdict,
        evidence=_evidence(rests),
        meaning=MEANINGS[verdict],
        decided_by=Deciding(
            threshold=rests.threshold, tau=rests.tau, tau_interval=rests.tau_interval
        ),
    )


def judge_thresholds(tail: Sequence[TailComparison]) -> tuple[str, int]:
    """Verdict from comparisons at lower and higher thresholds, and the one that it rests on.

    A threshold at which the tail is heavier than Gaussian counts unless the tail is lighter further
    out, beyond uncertainty: at a higher threshold the interval of tau reaches 2 and lies above that
    of the lower one. (A cluster of a rare token, far from all others but bounded, looks like a
    heavy tail from below.) Among those that count, the ones with more values say how heavy it is.
    Fewer than 100 values can end a tail, but not make one.
    """
    each = [at_threshold(comparison) for comparison in tail]
    for i, comparison in enumerate(tail):
        if each[i] in HEAVY and comparison.exceedances < FIRM:
            each[i] = UNDECIDED
    heavy = [i for i, verdict in enumerate(each) if verdict in HEAVY]
    counting = [i for i in heavy if not _overruled(tail, i)]
    if counting:
        said = {each[i] for i in counting} - {OPEN}
        verdict = next(iter(said)) if len(said) == 1 else OPEN
        return verdict, next((i for i in counting if each[i] == verdict), counting[0])
    # heavier tails, if there were any, lie below a threshold beyond which they are lighter
    first = heavy[-1] + 1 if heavy else 0
    further = range(first, len(each))
    light = [i for i in further if each[i] == SUB_GAUSSIAN]
    return (SUB_GAUSSIAN, light[0]) if light else (UNDECIDED, first)


def _overruled(tail: Sequence[TailComparison], i: int) -> bool:
    """Whether the tail beyond a higher threshold is lighter than beyond this one."""
    below = tail[i].tau_interval[1]
    return any(
        further.tau_interval[0] > below and further.tau_interval[1] >= 2
        for further in tail[i + 1 :]
    )


def at_threshold(comparison: TailComparison) -> str:
    """Verdict at one threshold.

    Heavier than Gaussian: the interval of tau is below 2. Sub-Gaussian: it is above 2, or reaches
    2 and the Gaussian tail is more likely than the exponential one by more than 2 (in units of
    2 ln L). Heavier tails have exponential moments when the interval of tau is above 1 and the
    Pareto type is not the better one by more than 2; they have none when it is below 1, or when
    the Pareto type is better than the Weibull type by more than 2.
    """
    low, high = comparison.tau_interval
    criterion = comparison.criterion
    pareto = criterion["Weibull"] - criterion["Pareto"]
    if high >= 2:
        light = low >= 2 or comparison.gaussian_over_exponential > CLOSE
        return SUB_GAUSSIAN if light else UNDECIDED
    if high < 1 or pareto > CLOSE:
        return NONE
    return EXPONENTIAL if low > 1 else OPEN


def _evidence(comparison: TailComparison) -> str:
    low, high = comparison.tau_interval
    criterion = comparison.criterion
    order = sorted(criterion, key=lambda name: criterion[name])
    behind = ", ".join(f"{name} +{criterion[name]:.1f}" for name in order[1:])
    count = f"{comparison.exceedances:.0f} tokens"
    return (
        f"beyond {comparison.threshold:.1f} standard deviations ({count}) the tail is "
        f"exp(-c x^tau) with tau = {comparison.tau:.2f} ({low:.2f} to {high:.2f}); likeliest "
        f"type {order[0]} ({behind})"
    )
