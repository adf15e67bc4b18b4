"""A plan in plain language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from esscher.core.memory import NOISE
from esscher.core.shown import between, byte_count, counted, shown, two_digits, with_interval
from esscher.engine.cache.budgets import TokenGrid
from esscher.engine.text.documents import TextRecord
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.plan.generate import read_savings
from esscher.studies.plan.result import Check, Mean, Plan, Prediction

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
    planned, uniform = (check.measures[name].kl for name in ("planned", "uniform"))
    return sentence + (
        f"On {counted(check.passages, 'held-out passage')} of this text mean KL to dense is "
        f"{between(planned.mean, planned.interval)} with the plan and "
        f"{between(uniform.mean, uniform.interval)} with uniform budgets. "
        f"{verdict_sentence(check)} {advice(check)}{task_sentence(check)}"
    )


def kept_per_head(budgets: Sequence[Sequence[int]]) -> str:
    """The range of budgets, or the one that all have."""
    smallest, largest = min(min(row) for row in budgets), max(max(row) for row in budgets)
    return f"{smallest:,}" if smallest == largest else f"{smallest:,} to {largest:,}"


def verdict_sentence(check: Check) -> str:
    """The verdict on the plan against uniform budgets.

    Its interval is over passages, so that it speaks about the text of the check alone.
    """
    ratio, passages = check.ratios["uniform"], counted(check.passages, "passage")
    if check.verdict == "better":
        return (
            f"The plan beats uniform budgets on this text: it is {_times(ratio)} closer to dense, "
            f"by the {STATISTIC}."
        )
    if check.verdict == "worse":
        return (
            "The plan does NOT beat uniform budgets on this text: it is "
            f"{_times(inverse(ratio))} farther from dense, by the {STATISTIC}."
        )
    sentence = (
        f"Undecided with {passages} whether the plan is better than uniform budgets on this "
        f"text: it is {_times(ratio)} closer to dense by the {STATISTIC}"
    )
    needed = check.passages_needed
    if needed is not None:
        return (
            f"{sentence}. {needed - check.passages:,} more passages ({needed:,} in all) would "
            "probably decide (in 4 of 5 cases, if ratio and spread stay as they are)."
        )
    if ratio.interval is None:
        return f"{sentence}, but one passage has no interval. Check on more passages."
    return f"{sentence}; no reasonable number of passages would decide."


def advice(check: Check) -> str:
    """What is closest to dense of all that was measured, as a sentence."""
    best = check.best
    called = {"planned": "the plan", "uniform": "uniform budgets"}
    names = [called.get(name) or name_of(name) for name in best]
    if len(best) > 1:
        listed, passages = f"{', '.join(names[:-1])} and {names[-1]}", check.passages
        sentence = (
            f"{listed[0].upper()}{listed[1:]} cannot be told apart with "
            f"{counted(passages, 'passage')}"
        )
        if len(best) == len(check.over_best) + 1:
            return f"{sentence}."
        return f"{sentence}; all others are farther from dense than {names[0]}."
    if best[0] == "planned":
        if len(check.ratios) == 1:  # uniform budgets, of which the verdict speaks
            return "Use the plan."
        nearest = min(check.ratios, key=lambda name: check.ratios[name].mean)
        return (
            "Use the plan: it is closer to dense than everything else that was measured, "
            f"{_times(check.ratios[nearest])} closer than "
            f"{called.get(nearest) or name_of(nearest)}, the best of all others."
        )
    return (
        f"Use {names[0]}: closer to dense than everything else that was measured, "
        f"{_times(check.over_best['planned'])} closer than the plan."
    )


def task_sentence(check: Check) -> str:
    """What became of questions about texts; nothing if there were none."""
    if not check.tasks:
        return ""
    if not check.totals:
        return " Questions about texts say nothing: the dense model itself fails them."
    left_out = ""
    if check.dense_cannot:
        left_out = f" (left out, the dense model itself fails: {', '.join(check.dense_cannot)})"
    dense, planned = check.totals["dense"], check.totals["planned"]
    others = {n: own.score for n, own in check.totals.items() if n not in ("dense", "planned")}
    best = max(others, key=others.__getitem__)
    called = "uniform budgets" if best == "uniform" else name_of(best)
    return (
        f" Questions about texts: {planned.score:.0%} right with the plan, {dense.score:.0%} "
        f"dense, of {planned.n}{left_out}; {called} {others[best]:.0%}."
    )


def inverse(ratio: Mean) -> Mean:
    """The ratio the other way round."""
    ends = ratio.interval
    return Mean(mean=1 / ratio.mean, interval=None if ends is None else (1 / ends[1], 1 / ends[0]))


def _times(ratio: Mean) -> str:
    """A ratio in two digits; in three where two would hide on which side of 1 an end lies."""
    low, high = ratio.interval or (ratio.mean, ratio.mean)
    close = any(float(f"{end:.2g}") == 1 != end for end in (low, high))
    value, first, last = (
        # in plain digits: 120, not 1.2e+02
        f"{number:.3g}" if close and number < 100 else f"{float(f'{number:.2g}'):,.12g}"
        for number in (ratio.mean, low, high)
    )
    return f"{value} times" if ratio.interval is None else f"{value} ({first} to {last}) times"


# The result in a terminal.

#: Key heads that the table shows unless all are asked for.
SHOWN = 12
TITLES = {
    "kl": "KL",
    "top1": "top-1",
    "perplexity_ratio": "perplexity",
    "error": "outputs",
}


def print_result(plan: Plan, console: PlainConsole, everything: bool = False) -> None:
    """Print the check, and the budgets."""
    if plan.check is not None:
        _print_check(console, plan.check)
    frame = plan.table().sort_values("tokens", ascending=False, kind="stable")
    rows = frame if everything else frame.head(SHOWN)
    title = f"The {len(rows)} key heads that keep most tokens"
    if len(rows) == len(frame):
        title = "All key heads"
    elif frame["tokens"].nunique() == 1:
        title = f"{len(rows)} of {len(frame)} key heads, which all keep the same number of tokens"
    table = PlainTable(title)
    powers = ["power"] if "power" in frame else []
    for name in ("key head", "tokens", "share", *powers, "predicted error"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows.to_dict("records"):
        table.add_row(
            f"{row['layer']:.0f}.{row['key_head']:.0f}",
            f"{row['tokens']:,.0f}",
            f"{row['ratio']:.1%}",
            *(f"{row[name]:g}" for name in powers),
            f"{row['predicted_error']:.1%}",
        )
    console.print(table)
    if len(rows) == len(frame):
        return
    least = rows["tokens"].iloc[-1]
    fewer = int((frame["tokens"] < least).sum())
    same = len(frame) - len(rows) - fewer
    others = f"{same} more keep as many tokens as the last of these"
    if not same:
        others = f"{fewer} more keep fewer tokens"
    elif fewer:
        others = f"{others}, {fewer} keep fewer"
    console.say(f"{others}; --all shows them.")


def _print_check(console: PlainConsole, check: Check) -> None:
    table = PlainTable(
        f"The same number of tokens in all, {check.passages} held-out passages of this text",
        least=("outputs", "top-1"),
    )
    table.add_column("", no_wrap=True)
    for name in (*TITLES.values(), "over planned"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, measures in check.configurations.items():
        cells = []
        for measure in TITLES:
            mean: Mean = getattr(measures, measure)
            cell = f"{mean.mean:.3g}"
            if mean.interval is not None and mean.interval[0] != mean.interval[1]:
                cell = with_interval(mean.mean, mean.interval)
            cells.append(cell)
        ratio = ""
        if name != "planned":
            ratio = two_digits(check.ratios[name].mean)
            low, high = map(two_digits, check.ratios[name].interval or (0.0, 0.0))
            ratio += "" if check.ratios[name].interval is None else f" ({low}, {high})"
        table.add_row(name, *cells, ratio)
    console.print(table)
    if check.tasks:
        items = next(iter(check.tasks.values()))["dense"].n
        table = PlainTable(f"Right answers to questions about texts, {items} items of each task")
        table.add_column("", no_wrap=True)
        columns = check.tasks | {"all": check.totals}
        for task in columns:
            table.add_column(task, justify="right", no_wrap=True)
        for name in ("dense", *check.configurations):
            cells = []
            for task, scores in columns.items():
                cell = ""
                if task in check.dense_cannot and name == "dense":
                    cell = "dense cannot"
                elif name in scores:
                    cell = f"{scores[name].score:.0%} ({scores[name].log_probability:.2f})"
                cells.append(cell)
            table.add_row(name, *cells)
        console.print(table)
        console.explain(
            "Exact matches; in brackets the log-probability of the right answer, in nats per "
            "token. all: without tasks that the dense model itself fails."
        )
    if check.cache is not None:
        planned, dense = check.cache.planned, check.cache.dense
        console.say(
            f"The cache takes {byte_count(planned)} instead of {byte_count(dense)} "
            f"({planned / dense:.1%}), weights of the sample included."
        )
    heads = check.heads
    if heads.within_factor is not None:
        console.say(
            f"Predicted head errors: {heads.within_factor:.0%} came true within a factor of "
            f"{heads.factor:g}; the median realised error is {heads.median_ratio:.2f} times the "
            "predicted one."
        )
    console.explain(
        "KL: from the dense next-token distribution, nats; top-1: same most likely token; "
        "perplexity: over that of the dense model; outputs: relative error of attention outputs; "
        f"over planned: {STATISTIC} of the ratio of KL, with interval. In brackets half the width "
        "of the 95% interval (last digits), or its ends. Intervals are over passages, and say "
        "nothing about other texts."
    )


# The result on a page of a report: what is kept, what that costs, and a table of key heads.

KEY_HEAD = "key head"


def summary(plan: Plan, name: str) -> Summary:
    """Say what was planned and what matters of it; ``name`` is that of the run."""
    study, check = plan.study, plan.check
    text = study.check
    checked = f", checked on {text.source}" if isinstance(text, TextRecord) else ""
    subject = f"{plan.model.name}, calibrated on {study.text_record.source}{checked}"
    predicted = plan.predicted
    cards = [
        Card(
            f"{plan.total.ratio:.1%}",
            "of the tokens are kept",
            f"{plan.total.tokens:,} in all key heads",
        ),
        Card(kept_per_head(plan.budgets), "tokens per key head", f"of a prefix of {plan.prefix:,}"),
        Card(shown(predicted.effect), f"predicted {predicted.unit}", _interval(predicted.interval)),
    ]
    if check is not None:
        kl, ratio = check.measures["planned"].kl, check.ratios["uniform"]
        if check.cache is not None:
            planned, dense = check.cache.planned, check.cache.dense
            label = f"for the cache instead of {byte_count(dense)}"
            cards.append(Card(byte_count(planned), label, f"measured: {planned / dense:.1%}"))
        title = "measured KL to dense (nats per token)"
        cards.append(Card(shown(kl.mean), title, _interval(kl.interval)))
        if check.verdict == "undecided":
            note = f"ratio {two_digits(ratio.mean)} ({STATISTIC} of this text), "
            title = "whether the plan or uniform budgets are closer to dense"
            cards.append(Card("undecided", title, note + _interval(ratio.interval, "s2")))
        else:
            where = "closer to"
            if check.verdict == "worse":
                where, ratio = "farther from", inverse(ratio)
            note = f"{STATISTIC} of this text, {_interval(ratio.interval, 's2')}"
            title = f"{where} dense than uniform budgets"
            cards.append(Card(f"{two_digits(ratio.mean)}×", title, note))
        best = [name_of(name) for name in check.best]
        if len(best) == 1:
            title = "closest to dense of all that was measured"
            cards.append(Card(best[0], title, "beyond the paired intervals"))
        else:
            title = "methods cannot be told apart as the closest to dense"
            note = f"with {counted(check.passages, 'passage')}: {', '.join(best)}"
            cards.append(Card(f"{len(best)} of {len(check.configurations)}", title, note))
        if check.totals:
            right, exact = check.totals["planned"], check.totals["dense"]
            note = f"dense {exact.score:.0%}; {counted(right.n, 'question')}"
            title = "of questions about texts answered right"
            cards.append(Card(f"{right.score:.0%}", title, note))
    savings = read_savings(plan.folder)
    if savings is not None:
        before, after = savings.dense, savings.planned
        where = f"measured by esscher generate --compare, prompt of {savings.tokens:,} tokens"
        if before.tokens_per_second and after.tokens_per_second:
            label = f"tokens per second instead of {shown(before.tokens_per_second)}"
            cards.append(Card(shown(after.tokens_per_second), label, where))
        if before.peak_memory and after.peak_memory:
            less = before.peak_memory - after.peak_memory
            if abs(less) > NOISE:
                more = "less" if less > 0 else "more"
                cards.append(Card(byte_count(abs(less)), f"{more} memory at the peak", where))
    heads = key_heads(plan).rename(columns={KEY_HEAD: "head"})
    power = Column("power", "power of scores", "d2", help="tokens are drawn with score^power")
    realised = Column("realised_error", "realised error", "s3", help="the same on held-out text")
    columns = [
        Column("layer", "layer", "n0"),
        Column("head", KEY_HEAD, "n0"),
        Column("tokens", "tokens kept", "n0"),
        Column("ratio", "of the prefix", "p1"),
        *([power] if "power" in heads else []),
        Column(
            "predicted_error",
            "predicted error",
            "s3",
            help="relative output error of the worst query head of the group",
        ),
        *([realised] if check is not None else []),
    ]
    table = Table(
        title="All key heads",
        name=f"{name}-budgets",
        columns=columns,
        data=data_of(heads),
        caption="The CSV file has the same table; the plan itself is plan.json in the run's "
        "directory.",
        sort=("tokens", True),
    )
    return Summary("Token budgets", subject, cards, [table])


def _interval(interval: Sequence[float] | None, how: str = "s3") -> str:
    if interval is None:
        return "no interval"
    return f"95% interval {shown(interval[0], how)} to {shown(interval[1], how)}"


def key_heads(plan: Plan) -> Any:
    """Return the table of key heads, after a check with the realised error of the worst head."""
    table = plan.table().rename(columns={"key_head": KEY_HEAD})
    if plan.check is not None:
        table["realised_error"] = grouped(plan, plan.check.heads.realised).max(axis=1)
    return table


def grouped(plan: Plan, errors: Sequence[Sequence[float]]) -> Any:
    """Errors of heads, [key heads of all layers, query heads of the group]."""
    return np.asarray(errors).reshape(plan.token_budgets.tokens.size, -1)
