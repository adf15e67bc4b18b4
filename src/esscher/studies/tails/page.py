"""The result on a page of a report: the numbers that matter, and a table of all heads."""

from __future__ import annotations

from esscher.math.tails.verdict import HEAVY, SUB_GAUSSIAN, UNDECIDED
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of
from esscher.show.numbers import shown, visible
from esscher.studies.tails.result import Tails


def summary(found: Tails, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    study = found.study
    subject = f"{study.model_record.name} on {study.text_record.source}, {study.tokens:,} tokens"
    return Summary("Tails of the keys", subject, _cards(found), [_head_table(found, name)])


def _cards(found: Tails) -> list[Card]:
    frame = found.table()
    count = frame["verdict"].value_counts()
    total = len(frame)
    low, middle, high = (float(frame["proxy"].quantile(q)) for q in (0.1, 0.5, 0.9))
    return [
        Card(f"{count.get(SUB_GAUSSIAN, 0)} of {total}", "heads have sub-Gaussian tails"),
        Card(f"{sum(count.get(v, 0) for v in HEAVY)} of {total}", "heads have heavier tails",
             "in the worst direction found"),
        Card(f"{count.get(UNDECIDED, 0)} of {total}", "heads are undecided",
             "too few tokens to tell"),
        Card(shown(middle, "d2"), "variance proxy / variance",
             f"median head; 10% and 90% of the heads: {low:.2f} and {high:.2f}"),
    ]  # fmt: skip


def _head_table(found: Tails, name: str) -> Table:
    frame = found.table()
    frame["tokens_in_tail"] = [
        ", ".join(f"{visible(t.token)!r} {t.projection:+.1f}" for t in h.tokens_in_tail)
        for h in found.heads
    ]
    frame["evidence"] = [h.evidence for h in found.heads]
    columns = [
        Column("layer", "layer", "n0"),
        Column("head", "head", "n0"),
        Column("verdict", "verdict"),
        Column("proxy", "proxy / variance", "d2", "proxy_low", "proxy_high",
               help="sub-Gaussian variance proxy of the worst direction, over its variance"),
        Column("kurtosis", "excess kurtosis", "s3", "kurtosis_low", "kurtosis_high"),
        Column("tau", "tail power τ", "d2", "tau_low", "tau_high",
               help="of exp(-c x^τ) beyond the deciding threshold: 2 is Gaussian"),
        Column("beyond", "threshold", "d1", help="in standard deviations"),
        Column("norms_k", "k-hat of norms", "d2", "norms_k_low", "norms_k_high"),
        Column("logits_k", "k-hat of logits", "d2", "logits_k_low", "logits_k_high"),
        Column("largest", "largest", "d1", help="largest projection, in standard deviations"),
        Column("with_delimiters", "with delimiters", help="verdict with delimiters included"),
        Column("tokens_in_tail", "tokens in the tail"),
        Column("evidence", "evidence", shown=False),
    ]  # fmt: skip
    return Table(
        title="All heads",
        name=f"{name}-heads",
        columns=columns,
        data=data_of(frame),
        caption="Brackets are 95% intervals. Tokens in the tail are given with their projection in "
        "standard deviations.",
        sort=("kurtosis", True),
    )
