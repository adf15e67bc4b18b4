"""The result in a terminal."""

from __future__ import annotations

from esscher.core.shown import two_digits, with_interval
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.plan.records import Check, Mean, TaskScore
from esscher.studies.plan.result import Plan
from esscher.studies.plan.words import STATISTIC, cache_sentence

#: Key heads that the table shows unless all are asked for.
SHOWN = 12
TITLES = {
    "kl": "KL",
    "top1": "top-1",
    "perplexity_ratio": "perplexity",
    "error": "outputs",
}


def print_result(found: Plan, console: PlainConsole, everything: bool = False) -> None:
    """Print the check, and the budgets."""
    if found.check is not None:
        _print_check(console, found.check)
    frame = found.table().sort_values("tokens", ascending=False, kind="stable")
    shown = frame if everything else frame.head(SHOWN)
    alike = frame["tokens"].nunique() == 1
    if everything or len(shown) == len(frame):
        title = "All key heads"
    elif alike:
        title = f"{len(shown)} of {len(frame)} key heads, which all keep the same number of tokens"
    else:
        title = f"The {len(shown)} key heads that keep most tokens"
    table = PlainTable(title)
    powers = ["power"] if "power" in frame else []
    for name in ("key head", "tokens", "share", *powers, "predicted error"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in shown.to_dict("records"):
        table.add_row(
            f"{row['layer']:.0f}.{row['key_head']:.0f}",
            f"{row['tokens']:,.0f}",
            f"{row['ratio']:.1%}",
            *(f"{row[name]:g}" for name in powers),
            f"{row['predicted_error']:.1%}",
        )
    console.print(table)
    if len(shown) < len(frame):
        console.say(f"{_others(frame['tokens'].tolist(), len(shown))}; --all shows them.")


def _others(tokens: list[int], shown: int) -> str:
    """What the key heads keep that are not shown; tokens are in falling order."""
    fewer = sum(n < tokens[shown - 1] for n in tokens[shown:])
    same = len(tokens) - shown - fewer
    if not same:
        return f"{fewer} more keep fewer tokens"
    if not fewer:
        return f"{same} more keep as many tokens as the last of these"
    return f"{same} more keep as many tokens as the last of these, {fewer} keep fewer"


def _print_check(console: PlainConsole, check: Check) -> None:
    measures = [name for name in TITLES if getattr(check.planned, name) is not None]
    table = PlainTable(
        f"The same number of tokens in all, {check.passages} held-out passages of this text",
        least=("outputs", "top-1"),
    )
    table.add_column("", no_wrap=True)
    for name in (*(TITLES[m] for m in measures), "over planned"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, found in check.configurations.items():
        cells = (_cell(getattr(found, m)) for m in measures)
        table.add_row(name, *cells, _ratio(check.ratios.get(name)))
    console.print(table)
    _print_tasks(console, check)
    if check.cache is not None:
        console.say(f"{cache_sentence(check.cache)}.")
    heads = check.heads
    if heads.within_factor is not None:
        console.say(
            f"Predicted head errors: {heads.within_factor:.0%} came true within a factor of "
            f"{heads.factor:g}; the median realised error is {heads.median_ratio:.2f} times the "
            "predicted one."
        )
    console.explain(
        "KL: from the dense next-token law, nats; top-1: same most likely token; perplexity: over "
        "that of the dense model; outputs: relative error of attention outputs; over planned: "
        f"{STATISTIC} of the ratio of KL, with interval. In brackets half the width of the 95% "
        "interval (last digits), or its ends. Intervals are over passages, and say nothing about "
        "other texts."
    )


def _print_tasks(console: PlainConsole, check: Check) -> None:
    """Print the share of right answers, by task and configuration."""
    if not check.tasks:
        return
    items = next(iter(check.tasks.values()))["dense"].n
    table = PlainTable(f"Right answers to questions about texts, {items} items of each task")
    table.add_column("", no_wrap=True)
    for task in (*check.tasks, "all"):
        table.add_column(task, justify="right", no_wrap=True)
    for name in ("dense", *check.configurations):
        cells = [
            "dense cannot" if task in check.dense_cannot and name == "dense"
            else _answered(scores[name])
            for task, scores in check.tasks.items()
        ]  # fmt: skip
        table.add_row(name, *cells, _answered(check.totals.get(name)))
    console.print(table)
    console.explain(
        "Exact matches; in brackets the log-probability of the right answer, in nats per token. "
        "all: without tasks that the dense model itself fails."
    )


def _answered(found: TaskScore | None) -> str:
    return "" if found is None else f"{found.score:.0%} ({found.log_probability:.2f})"


def _cell(found: Mean | None) -> str:
    """A mean with half the width of its interval."""
    if found is None:
        return ""
    mean, interval = found.mean, found.interval
    if interval is None or interval[0] == interval[1]:
        return f"{mean:.3g}"
    return with_interval(mean, interval)


def _ratio(found: Mean | None) -> str:
    if found is None:
        return ""
    if found.interval is None:
        return two_digits(found.mean)
    low, high = map(two_digits, found.interval)
    return f"{two_digits(found.mean)} ({low}, {high})"
