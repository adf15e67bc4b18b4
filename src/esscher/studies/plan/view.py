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
from esscher.studies.plan.result import CacheBytes, Check, Mean, Plan, Prediction, TaskScore

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


# The result in a terminal.

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
            "dense cannot"
            if task in check.dense_cannot and name == "dense"
            else _answered(scores[name])
            for task, scores in check.tasks.items()
        ]
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


# The result on a page of a report: what is kept, what that costs, and a table of key heads.

KEY_HEAD = "key head"


def summary(found: Plan, name: str) -> Summary:
    """Say what was planned and what matters of it; ``name`` is that of the run."""
    study = found.study
    text = study.check
    checked = f", checked on {text.source}" if isinstance(text, TextRecord) else ""
    subject = f"{found.model.name}, calibrated on {study.text_record.source}{checked}"
    cards = [*_cards(found), *_saved(found)]
    return Summary("Token budgets", subject, cards, [_table(found, name)])


def _saved(found: Plan) -> list[Card]:
    """What generating took on somebody's machine, if it was measured."""
    savings = read_savings(found.folder)
    if savings is None:
        return []
    dense, planned = savings.dense, savings.planned
    where = f"measured by esscher generate --compare, prompt of {savings.tokens:,} tokens"
    cards = []
    if dense.tokens_per_second and planned.tokens_per_second:
        cards.append(
            Card(
                shown(planned.tokens_per_second),
                f"tokens per second instead of {shown(dense.tokens_per_second)}",
                where,
            )
        )
    if dense.peak_memory and planned.peak_memory:
        less = dense.peak_memory - planned.peak_memory
        if abs(less) > NOISE:
            more = "less" if less > 0 else "more"
            cards.append(Card(byte_count(abs(less)), f"{more} memory at the peak", where))
    return cards


def _cards(found: Plan) -> list[Card]:
    """What is kept, what it is predicted to cost, and what it did cost."""
    predicted, check = found.predicted, found.check
    cards = [
        Card(
            f"{found.total.ratio:.1%}",
            "of the tokens are kept",
            f"{found.total.tokens:,} in all key heads",
        ),
        Card(
            kept_per_head(found.budgets), "tokens per key head", f"of a prefix of {found.prefix:,}"
        ),
        Card(shown(predicted.effect), f"predicted {predicted.unit}", _interval(predicted.interval)),
    ]
    if check is None:
        return cards
    if check.cache is not None:
        taken = check.cache
        cards.append(
            Card(
                byte_count(taken.planned),
                f"for the cache instead of {byte_count(taken.dense)}",
                f"measured: {taken.planned / taken.dense:.1%}",
            )
        )
    return [*cards, *_checked(check)]


def _checked(check: Check) -> list[Card]:
    """The distance of the plan from dense, the plan against uniform budgets, and the best."""
    kl, ratio = check.planned.kl, check.ratios["uniform"]
    title = "measured KL to dense (nats per token)"
    measured = Card(shown(kl.mean), title, _interval(kl.interval))
    if check.verdict == "undecided":
        verdict = Card(
            "undecided",
            "whether the plan or uniform budgets are closer to dense",
            f"ratio {two_digits(ratio.mean)} ({STATISTIC} of this text), "
            f"{_interval(ratio.interval, 's2')}",
        )
    else:
        ratio = inverse(ratio) if check.verdict == "worse" else ratio
        where = "farther from" if check.verdict == "worse" else "closer to"
        verdict = Card(
            f"{two_digits(ratio.mean)}×",
            f"{where} dense than uniform budgets",
            f"{STATISTIC} of this text, {_interval(ratio.interval, 's2')}",
        )
    best = [name_of(name) for name in check.best]
    if len(best) == 1:
        closest = Card(
            best[0], "closest to dense of all that was measured", "beyond the paired intervals"
        )
    else:
        among = f"with {counted(check.passages, 'passage')}: {', '.join(best)}"
        closest = Card(
            f"{len(best)} of {len(check.configurations)}",
            "methods cannot be told apart as the closest to dense",
            among,
        )
    return [measured, verdict, closest, *_answer_cards(check)]


def _answer_cards(check: Check) -> list[Card]:
    """Questions about texts, if some were asked that the dense model answers."""
    if not check.totals:
        return []
    planned, dense = check.totals["planned"], check.totals["dense"]
    note = f"dense {dense.score:.0%}; {counted(planned.n, 'question')}"
    return [Card(f"{planned.score:.0%}", "of questions about texts answered right", note)]


def _table(found: Plan, name: str) -> Table:
    heads = key_heads(found).rename(columns={KEY_HEAD: "head"})
    power = Column("power", "power of scores", "d2", help="tokens are drawn with score^power")
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
    ]
    if found.check is not None:
        columns.append(
            Column("realised_error", "realised error", "s3", help="the same on held-out text")
        )
    return Table(
        title="All key heads",
        name=f"{name}-budgets",
        columns=columns,
        data=data_of(heads),
        caption="The CSV file has the same table; the plan itself is plan.json in the run's "
        "directory.",
        sort=("tokens", True),
    )


def _interval(interval: Sequence[float] | None, how: str = "s3") -> str:
    if interval is None:
        return "no interval"
    return f"95% interval {shown(interval[0], how)} to {shown(interval[1], how)}"


def key_heads(found: Plan) -> Any:
    """Return the table of key heads, after a check with the realised error of the worst head."""
    table = found.table().rename(columns={"key_head": KEY_HEAD})
    if found.check is not None:
        table["realised_error"] = grouped(found, found.check.heads.realised).max(axis=1)
    return table


def grouped(found: Plan, errors: Sequence[Sequence[float]]) -> Any:
    """Errors of heads, [key heads of all layers, query heads of the group]."""
    return np.asarray(errors).reshape(found.token_budgets.tokens.size, -1)
