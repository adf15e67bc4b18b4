"""The result on a page of a report: the numbers that matter, and a table of all heads."""

from __future__ import annotations

from esscher.math.tails.verdict import SUBSTANTIAL
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of
from esscher.show.numbers import shown, visible
from esscher.studies.tails.result import KEYS, Tails


def summary(found: Tails, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    study = found.study
    subject = f"{study.model_record.name} on {study.text_record.source}, {study.tokens:,} tokens"
    return Summary("Tails of the keys", subject, _cards(found), [_head_table(found, name)])


def _cards(found: Tails) -> list[Card]:
    frame = found.table()
    low, middle, high = (float(frame["proxy"].quantile(q)) for q in (0.1, 0.5, 0.9))
    proxy = Card(
        shown(middle, "d2"), "variance proxy / variance",
        f"median head; 10% and 90% of the heads: {low:.2f} and {high:.2f}",
    )  # fmt: skip
    keys = found.agreement.get(KEYS)
    if keys is None or not keys.clouds:  # a result of an earlier version
        return [proxy]
    light, heavy, _ = keys.both
    enough = "enough" if keys.reproducible else f"too low ({SUBSTANTIAL:g} is needed)"
    kappa = keys.kappa.value
    low_end, high_end = keys.kappa.interval
    sure = "all heads are called the same" if low_end is None or high_end is None else (
        f"95% interval {low_end:.2f} to {high_end:.2f}"
    )  # fmt: skip
    return [
        Card(f"{light} of {keys.clouds}", "heads are sub-Gaussian in both halves of the text",
             f"in the worst direction found; in one half {keys.first[0]}, in the other "
             f"{keys.second[0]}"),
        Card(f"{heavy} of {keys.clouds}", "heads have heavier tails in both halves",
             f"in one half {keys.first[1]}, in the other {keys.second[1]}"),
        Card(f"{keys.clouds - light - heavy} of {keys.clouds}", "heads are undecided",
             "the halves differ, or cannot tell"),
        Card("–" if kappa is None else shown(kappa, "d2"), "agreement of the halves, kappa",
             f"{sure}; {enough} for verdicts on single heads"),
        proxy,
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
        *([Column("verdict", "verdict")] if found.reproducible else []),
        Column("proxy", "proxy / variance", "d2", "proxy_low", "proxy_high",
               help="sub-Gaussian variance proxy of the worst direction, over its variance"),
        Column("kurtosis", "excess kurtosis", "s3", "kurtosis_low", "kurtosis_high"),
        Column("tau", "tail power τ", "d2", "tau_low", "tau_high",
               help="of exp(-c x^τ) beyond the deciding threshold: 2 is Gaussian"),
        Column("beyond", "threshold", "d1", help="in standard deviations"),
        Column("norms_k", "k-hat of norms", "d2", "norms_k_low", "norms_k_high"),
        Column("logits_k", "k-hat of logits", "d2", "logits_k_low", "logits_k_high"),
        Column("largest", "largest", "d1", help="largest projection, in standard deviations"),
        Column("agreement", "directions", "d2",
               help="cosine between the worst directions of the two halves"),
        Column("tokens_in_tail", "tokens in the tail"),
        Column("first_half", "first half", help="what one half of the text says", shown=False),
        Column("second_half", "second half", help="what the other half says", shown=False),
        Column("evidence", "evidence", shown=False),
    ]  # fmt: skip
    return Table(
        title="All heads",
        name=f"{name}-heads",
        columns=columns,
        data=data_of(frame),
        caption="Brackets are 95% intervals. Tokens in the tail are given with their projection in "
        "standard deviations. Single heads get a verdict only if both halves of the text agree "
        "enough; what each half says is in the CSV file.",
        sort=("kurtosis", True),
    )
