"""Name the tail of a head's tokens, and say what that means for the theory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.core.variables import bounds
from esscher.math.statistics import LEVEL
from esscher.math.tails.candidates import CLOSE, Cloud, TailComparison

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
#: Smallest tau of a tail that is called sub-Gaussian: the margin within which it is one. (No number
#: of tokens could show that tau is not a little below 2.)
MARGIN = 1.5

MEANINGS = {
    SUB_GAUSSIAN: (
        "no tail heavier than exp(-c x^1.5) as far as the tokens reach; there the sub-Gaussian "
        "assumption is a fair description, with the variance proxy as its parameter"
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
    UNDECIDED: (
        "two halves of the text do not say the same, or cannot tell a Gaussian tail from a heavier "
        "one"
    ),
}


def judge(cloud: Cloud) -> tuple[str, TailComparison]:
    """Verdict on a cloud, and the comparison on which it rests.

    It is what both halves say, each judged along the direction that the other one found. A half on
    its own is not believed: where they differ, or where they were not judged, it is undecided.
    """
    halves = [judge_thresholds(half) for half in cloud.tail_halves]
    verdict = common_verdict([half for half, _ in halves])
    if verdict == UNDECIDED:
        return verdict, cloud.tail[judge_thresholds(cloud.tail)[1]]
    # evidence is the half that has less of it: the one nearer to a Gaussian tail
    deciding = [tail[at] for tail, (_, at) in zip(cloud.tail_halves, halves, strict=True)]

    def distance(comparison: TailComparison) -> float:
        low, high = comparison.tau_interval
        return max(0.0, math.log(low / 2), math.log(2 / high))

    return verdict, min(deciding, key=distance)


def evidence(comparison: TailComparison) -> str:
    """A comparison in words: the power of the tail, and which type is the likeliest."""
    low, high = comparison.tau_interval
    criterion = comparison.criterion
    order = sorted(criterion, key=lambda name: criterion[name])
    behind = ", ".join(f"{name} +{criterion[name]:.1f}" for name in order[1:])
    return (
        f"beyond {comparison.threshold:.1f} standard deviations ({comparison.exceedances:.0f} "
        f"tokens) the tail is exp(-c x^tau) with tau = {comparison.tau:.2f} ({low:.2f} to "
        f"{high:.2f}); likeliest type {order[0]} ({behind})"
    )


def half_verdicts(cloud: Cloud) -> tuple[str, ...]:
    """Verdict of each half on its own."""
    return tuple(judge_thresholds(half)[0] for half in cloud.tail_halves)


def common_verdict(halves: Sequence[str]) -> str:
    """Verdict of both halves; two kinds of heavier tails leave open how heavy it is."""
    if len(halves) != 2 or UNDECIDED in halves:
        return UNDECIDED
    if halves[0] == halves[1]:
        return halves[0]
    return UNDECIDED if SUB_GAUSSIAN in halves else OPEN


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
    counting = [
        i
        for i in heavy
        if not any(
            further.tau_interval[0] > tail[i].tau_interval[1] and further.tau_interval[1] >= 2
            for further in tail[i + 1 :]
        )
    ]
    if counting:
        verdicts = {each[i] for i in counting} - {OPEN}
        verdict = next(iter(verdicts)) if len(verdicts) == 1 else OPEN
        return verdict, next((i for i in counting if each[i] == verdict), counting[0])
    # heavier tails, if there were any, lie below a threshold beyond which they are lighter
    first = heavy[-1] + 1 if heavy else 0
    further = range(first, len(each))
    light = [i for i in further if each[i] == SUB_GAUSSIAN]
    return (SUB_GAUSSIAN, light[0]) if light else (UNDECIDED, first)


def at_threshold(comparison: TailComparison) -> str:
    """Verdict at one threshold.

    Sub-Gaussian: the whole interval of tau is at or above 1.5, which fewer values make rarer.
    Otherwise heavier than Gaussian if it is below 2, and undecided if it holds 2. Heavier tails
    have exponential moments when the interval is above 1 and the Pareto type is not the better one
    by more than 2; they have none when it is below 1, or when the Pareto type is better than the
    Weibull type by more than 2.
    """
    low, high = comparison.tau_interval
    criterion = comparison.criterion
    pareto = criterion["Weibull"] - criterion["Pareto"]
    if low >= MARGIN:
        return SUB_GAUSSIAN
    if high >= 2:
        return UNDECIDED
    if high < 1 or pareto > CLOSE:
        return NONE
    return EXPONENTIAL if low > 1 else OPEN


# Whether two halves of a text say the same about the tails of many clouds.
#
# A verdict on a head is worth something only if another text of the same kind would give it again.
# Every cloud is judged twice, each half of its passages along the direction that the other half
# found, so that every set of clouds says how far its own verdicts repeat themselves: Cohen's kappa,
# the agreement beyond what equal shares of verdicts would give by chance.

#: What two halves are compared by: which kind of heavier tail it is, they need not agree on.
KINDS = (SUB_GAUSSIAN, "heavier", UNDECIDED)
#: Verdicts on single clouds are given only if the lower end of kappa's interval is at least this
#: ("substantial" agreement).
SUBSTANTIAL = 0.6
#: Draws from the posterior law of the table of verdicts.
DRAWS = 4000


def verdict_table(verdicts: Iterable[Sequence[str]]) -> Array:
    """How many clouds the two halves call sub-Gaussian, heavier, undecided, [first, second]."""
    table = np.zeros((len(KINDS), len(KINDS)))
    for one, other in verdicts:
        table[KINDS.index(kind_of(one)), KINDS.index(kind_of(other))] += 1
    return table


def kappa_estimate(table: Array, seed: int) -> list[float]:
    """Cohen's kappa of a table of counts [first, second], with its 95% interval.

    Neither if all clouds are called the same, where it is not defined.

    The interval is that of the posterior law under a Dirichlet prior of total weight 1: resampled
    tables are degenerate where nearly all clouds are called the same, and too narrow where all
    agree. Covered in 91 to 98% of 200 tables each (12, 24 and 72 clouds, kappa 0 to 0.95).
    """
    total = float(table.sum())
    if not total or np.count_nonzero(table.sum(axis=0) + table.sum(axis=1)) < 2:
        return bounds(None, None)
    rng = random_stream(seed, "tail kappa")
    drawn = rng.standard_gamma(table + 1 / table.size, size=(DRAWS, *table.shape))
    ends = np.quantile(_kappa(drawn), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [float(_kappa(table)), *ends.tolist()]


def _kappa(table: Array) -> Array:
    """Agreement beyond chance, of tables along the last two axes."""
    share = table / table.sum(axis=(-2, -1), keepdims=True)
    same = np.trace(share, axis1=-2, axis2=-1)
    chance = np.sum(share.sum(axis=-1) * share.sum(axis=-2), axis=-1)
    return np.asarray((same - chance) / (1 - chance))


def kind_of(verdict: str) -> str:
    """Which of the three kinds a verdict is."""
    return KINDS[1] if verdict in HEAVY else verdict
