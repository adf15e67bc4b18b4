"""A plan in plain language."""

from __future__ import annotations

from collections.abc import Sequence

from esscher.core.shown import between, byte_count, two_digits
from esscher.engine.cache.budgets import TokenGrid
from esscher.studies.plan.records import CacheBytes, Check, Mean, Prediction

#: What the configurations of a check are called in tables and charts.
NAMES = {
    "planned": "planned",
    "uniform": "uniform",
    "streaming": "StreamingLLM",
    "snapkv": "SnapKV",
    "expected": "Expected Attention",
    "adakv": "AdaKV",
    "kvzip": "KVzip",
}


#: How distances from dense are compared.
STATISTIC = "geometric mean over passages"


def name_of(configuration: str) -> str:
    """Return what a configuration is called in tables and charts."""
    rule, _, scorer = configuration.partition(":")
    return f"{NAMES[rule]} ({NAMES[scorer]})" if scorer else NAMES[rule]


def said_of(configuration: str) -> str:
    """Return what a configuration is called in a sentence."""
    said = {"planned": "the plan", "uniform": "uniform budgets"}
    return said.get(configuration) or name_of(configuration)


def headline(
    budgets: TokenGrid, prefix: int, ratio: float, predicted: Prediction, check: Check | None
) -> str:
    """What is kept, what it costs, whether the plan is worth it, and what is best."""
    sentence = (
        f"The plan keeps {100 * ratio:.3g}% of the tokens: {kept_per_head(budgets)} of {prefix:,} "
        "per key head. "
    )
    if check is None:
        return sentence + (
            f"Predicted {predicted.unit}: {between(predicted.effect, predicted.interval)}"
            f", with uniform budgets {two_digits(predicted.uniform_effect)}. Not checked: give "
            "held-out text with --check."
        )
    planned, uniform = check.planned.kl, check.uniform.kl
    passages = check.passages
    return sentence + (
        f"On {passages} held-out passage{'s' * (passages != 1)} of this text mean KL to dense is "
        f"{between(planned.mean, planned.interval)} with the plan and "
        f"{between(uniform.mean, uniform.interval)} with uniform budgets. "
        f"{judged(check)} {advised(check)}{asked(check)}"
    )


def kept_per_head(budgets: Sequence[Sequence[int]]) -> str:
    """The range of budgets, or the one that all have."""
    smallest, largest = min(min(row) for row in budgets), max(max(row) for row in budgets)
    return f"{smallest:,}" if smallest == largest else f"{smallest:,} to {largest:,}"


def judged(check: Check) -> str:
    """The verdict on the plan against uniform budgets, as a sentence.

    Its interval is over passages, so that it speaks about the text of the check alone.
    """
    ratio = check.ratios["uniform"]
    if check.verdict == "better":
        return (
            f"The plan earned its place on this text: it is {_times(ratio)} closer to dense than "
            f"uniform budgets, by the {STATISTIC}."
        )
    if check.verdict == "worse":
        return (
            "The plan did NOT earn its place on this text: it is worse than uniform budgets, "
            f"{_times(inverse(ratio))} farther from dense by the {STATISTIC}."
        )
    sentence = (
        f"Undecided with {_counted(check)} whether the plan is better than uniform budgets on this "
        f"text: it is {_times(ratio)} closer to dense by the {STATISTIC}"
    )
    needed = check.passages_needed
    if needed is not None:
        more = needed - check.passages
        return (
            f"{sentence}. {more:,} more passages ({needed:,} in all) would probably decide (in 4 "
            "of 5 cases, if ratio and spread stay as they are)."
        )
    if ratio.interval is None:
        return f"{sentence}, but one passage has no interval. Check on more passages."
    return f"{sentence}; no reasonable number of passages would decide."


def advised(check: Check) -> str:
    """What is closest to dense of all that was measured, as a sentence."""
    best = check.best
    names = [said_of(name) for name in best]
    if len(best) > 1:
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        sentence = f"{listed[0].upper()}{listed[1:]} cannot be told apart with {_counted(check)}"
        if len(best) == len(check.over_best) + 1:
            return f"{sentence}."
        return f"{sentence}; all others are farther from dense than {names[0]}."
    if best[0] == "planned":
        if len(check.ratios) == 1:  # uniform budgets, of which the verdict speaks
            return "Use the plan."
        nearest = min(check.ratios, key=lambda name: check.ratios[name].mean)
        return (
            "Use the plan: it is closer to dense than everything else that was measured, "
            f"{_times(check.ratios[nearest])} closer than {said_of(nearest)}, the best of all "
            "others."
        )
    over = _times(check.over_best["planned"])
    return (
        f"Use {names[0]}: closer to dense than everything else that was measured, {over} closer "
        "than the plan."
    )


def asked(check: Check) -> str:
    """What became of questions about texts, as sentences; nothing if none were asked."""
    if not check.tasks:
        return ""
    left_out = ""
    if check.dense_cannot:
        left_out = f" (left out, the dense model itself fails: {', '.join(check.dense_cannot)})"
    if not check.totals:
        return " Questions about texts say nothing: the dense model itself fails them."
    dense, planned = check.totals["dense"], check.totals["planned"]
    sentence = (
        f" Questions about texts: {planned.score:.0%} right with the plan, {dense.score:.0%} "
        f"dense, of {planned.n}{left_out}"
    )
    others = {n: one for n, one in check.totals.items() if n not in ("dense", "planned")}
    best = max(others, key=lambda name: others[name].score)
    return f"{sentence}; {said_of(best)} {others[best].score:.0%}."


def cache_sentence(cache: CacheBytes) -> str:
    """What a decoder's cache takes under the plan, of what it takes dense."""
    return (
        f"The cache takes {byte_count(cache.planned)} instead of {byte_count(cache.dense)} "
        f"({cache.planned / cache.dense:.1%}), weights of the sample included"
    )


def inverse(ratio: Mean) -> Mean:
    """The ratio the other way round."""
    ends = ratio.interval
    return Mean(mean=1 / ratio.mean, interval=None if ends is None else (1 / ends[1], 1 / ends[0]))


def _counted(check: Check) -> str:
    count = check.passages
    return f"{count:,} passage{'s' * (count != 1)}"


def _times(found: Mean) -> str:
    """A ratio in two digits; in three where two would hide on which side of 1 an end lies."""
    low, high = found.interval or (found.mean, found.mean)
    close = any(float(f"{end:.2g}") == 1 != end for end in (low, high))

    def shown(number: float) -> str:
        # in plain digits: 120, not 1.2e+02
        return f"{number:.3g}" if close and number < 100 else f"{float(f'{number:.2g}'):,.12g}"

    if found.interval is None:
        return f"{shown(found.mean)} times"
    return f"{shown(found.mean)} ({shown(low)} to {shown(high)}) times"
