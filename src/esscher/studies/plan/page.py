"""The result on a page of a report: what is kept, what that costs, and a table of key heads."""

from __future__ import annotations

from collections.abc import Sequence

from esscher.core.memory import NOISE
from esscher.core.shown import byte_count, two_digits
from esscher.engine.text.documents import TextRecord
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of
from esscher.show.numbers import counted, shown
from esscher.studies.plan.charts import KEY_HEAD, key_heads
from esscher.studies.plan.records import Check
from esscher.studies.plan.result import Plan
from esscher.studies.plan.savings import read_savings
from esscher.studies.plan.words import STATISTIC, inverse, kept_per_head, name_of


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
            Card(shown(planned.tokens_per_second),
                 f"tokens per second instead of {shown(dense.tokens_per_second)}", where)
        )  # fmt: skip
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
        Card(f"{found.total.ratio:.1%}", "of the tokens are kept",
             f"{found.total.tokens:,} in all key heads"),
        Card(kept_per_head(found.budgets), "tokens per key head",
             f"of a prefix of {found.prefix:,}"),
        Card(shown(predicted.effect), f"predicted {predicted.unit}",
             _interval(predicted.interval)),
    ]  # fmt: skip
    if check is None:
        return cards
    if check.cache is not None:
        taken = check.cache
        cards.append(
            Card(byte_count(taken.planned), f"for the cache instead of {byte_count(taken.dense)}",
                 f"measured: {taken.planned / taken.dense:.1%}")
        )  # fmt: skip
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
        verdict = Card(f"{two_digits(ratio.mean)}×", f"{where} dense than uniform budgets",
                       f"{STATISTIC} of this text, {_interval(ratio.interval, 's2')}")  # fmt: skip
    best = [name_of(name) for name in check.best]
    if len(best) == 1:
        closest = Card(best[0], "closest to dense of all that was measured",
                       "beyond the paired intervals")  # fmt: skip
    else:
        among = f"with {counted(check.passages, 'passage')}: {', '.join(best)}"
        closest = Card(f"{len(best)} of {len(check.configurations)}",
                       "methods cannot be told apart as the closest to dense", among)  # fmt: skip
    return [measured, verdict, closest, *_answered(check)]


def _answered(check: Check) -> list[Card]:
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
        Column("predicted_error", "predicted error", "s3",
               help="relative output error of the worst query head of the group"),
    ]  # fmt: skip
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
