"""The result on a page of a report: the numbers that matter, and tables of all of them."""

from __future__ import annotations

from typing import Any

from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of, ends_of, values
from esscher.show.numbers import shown
from esscher.studies.domains.charts import PARTS, ordered
from esscher.studies.domains.decided import DIFFERENCE, FACTOR
from esscher.studies.domains.records import Variance, shares_of
from esscher.studies.domains.result import Domains
from esscher.studies.domains.statistics import BY_NAME


def summary(found: Domains, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    study = found.study
    subject = (
        f"{study.model_record.name} on {len(study.corpora)} corpora, {study.blocks} blocks of "
        f"{study.block_tokens:,} tokens each, {study.mode}"
    )
    tables = [_corpora(found, name)]
    if found.blocks:
        tables = [_variance(found, name), _strongest(found, name), *tables, _heads(found, name)]
    cards = _cards(found) if found.blocks else []
    return Summary("Heads on several corpora", subject, cards, tables)


def _cards(found: Domains) -> list[Card]:
    """Heads that differ, ranks, transfer; few heads and blocks give no interval, and no ranks."""
    count = found.counts["any"]
    test, total = found.correction, len(found.units)
    out = [
        Card(f"{count.heads} of {total}", "heads differ between corpora",
             f"false discovery rate {found.study.fdr:.0%}; {count.heads_holm} family-wise"),
    ]  # fmt: skip
    if test is not None and not test.decides:
        out = [
            Card("–", "heads differ between corpora",
                 f"cannot be decided with {found.blocks} blocks: no p-value can be below "
                 f"{test.smallest_p:.2g}; it takes at least {test.blocks_for_any} blocks"),
        ]  # fmt: skip
    if count.undecided is not None:
        out.append(
            Card(f"{count.undecided} of {total}", "heads are undecided",
                 f"{count.same} are the same in everything, within a factor of {FACTOR:g} or "
                 f"{DIFFERENCE:g}")
        )  # fmt: skip
    tokens, rank, transfer = found.variance.get("tokens"), found.rank.get("tokens"), found.transfer
    if tokens is not None and tokens.head_over_corpus is not None:
        low, high = tokens.head_over_corpus_interval
        sure = (
            "too few blocks for an interval" if low is None or high is None
            else f"95% interval {shown(low, 'd1')} to {shown(high, 'd1')}"
        )  # fmt: skip
        out.append(
            Card(f"{shown(tokens.head_over_corpus, 'd1')}×", "head against corpus",
                 f"variance of tokens needed: {sure}")
        )  # fmt: skip
    if rank is not None and rank.between is not None:
        out.append(
            Card(shown(rank.between, "d2"), "rank correlation between corpora",
                 f"of tokens needed; {shown(rank.within, 'd2')} between blocks of one corpus")
        )  # fmt: skip
    if transfer is not None:
        out.append(
            Card(f"{shown(transfer.factor, 'd2')}×", "typical factor from corpus to corpus",
                 f"of tokens needed; {shown(transfer.factor_within, 'd2')} within one corpus")
        )  # fmt: skip
    return out


def _variance(found: Domains, name: str) -> Table:
    known: dict[str, Variance] = {}
    for statistic in ordered(found):
        part = found.variance[statistic]
        if part is not None:
            known[BY_NAME[statistic].title] = part
    data: dict[str, list[Any]] = {"statistic": list(known)}
    columns = [Column("statistic", "statistic")]
    for source in PARTS.names:
        key = source.replace(" ", "_")
        share = [shares_of(one.shares)[source] for one in known.values()]
        noise = [1.96 * shares_of(one.standard_errors)[source] for one in known.values()]
        data[key] = share
        data[f"{key}_low"] = [max(0.0, s - e) for s, e in zip(share, noise, strict=True)]
        data[f"{key}_high"] = [min(1.0, s + e) for s, e in zip(share, noise, strict=True)]
        columns.append(Column(key, source, "p1", f"{key}_low", f"{key}_high"))
    low, high = ends_of(one.head_over_corpus_interval for one in known.values())
    data |= {"ratio": [one.head_over_corpus for one in known.values()], "low": low, "high": high}
    columns.append(
        Column("ratio", "head / corpus", "s3", "low", "high",
               help="variance of heads over that of corpora and of both together")
    )  # fmt: skip
    return Table(
        title="Shares of the variance",
        name=f"{name}-variance",
        columns=columns,
        data=data,
        caption="With 95% intervals (1.96 standard errors, cut at 0 and 1).",
    )


def _strongest(found: Domains, name: str) -> Table:
    return Table(
        title="Strongest differences",
        name=f"{name}-strongest",
        columns=[
            Column("statistic", "statistic"),
            Column("head", "head"),
            Column("a", "corpus"),
            Column("b", "against"),
            Column("effect", "effect", "s3", "low", "high", help="ratio or difference, b to a"),
            Column("adjusted_p", "adjusted p", "s2"),
        ],
        data=data_of(found.strongest_table()),
        caption="Sorted by the end of the interval that is nearer to no difference"
        f"{'' if found.correction is None else f' (level {found.correction.interval_level:.1%})'}.",
    )


def _corpora(found: Domains, name: str) -> Table:
    columns = [
        Column("corpus", "corpus"),
        Column("distinct", "distinct tokens", "p0"),
        Column("unknown", "unknown tokens", "p2"),
        *(
            Column(key, BY_NAME[key].title, "s3", f"{key}_low", f"{key}_high")
            for key in ordered(found)
        ),
    ]
    return Table(
        title="Corpora",
        name=f"{name}-corpora",
        columns=columns,
        data=data_of(found.medians()),
        caption="Medians over the heads, with 95% intervals over blocks.",
    )


def _heads(found: Domains, name: str) -> Table:
    data: dict[str, list[Any]] = {
        "layer": [layer for layer, _ in found.units],
        "head": [head for _, head in found.units],
    }
    columns = [Column("layer", "layer", "n0"), Column("head", "head", "n0")]
    for key in ordered(found):
        test, title = found.tests[key].omnibus, BY_NAME[key].title
        data[f"{key}_share"] = values(test.share)
        data[f"{key}_p"] = values(test.adjusted)
        data[f"{key}_holm"] = values(test.holm)
        columns += [
            Column(f"{key}_share", f"{title}: share", "p0",
                   help="share of the variance over blocks that is between corpora"),
            Column(f"{key}_p", "adjusted p", "s2", help=f"{title}: false discovery rate"),
        ]  # fmt: skip
        if found.tests[key].classes:
            data[f"{key}_class"] = list(found.tests[key].classes)
            data[f"{key}_power"] = values(found.tests[key].power)
            columns += [
                Column(f"{key}_class", "class",
                       help=f"{title}: differs, the same within a margin, or undecided"),
                Column(f"{key}_power", "power", "p0", shown=False,
                       help="with which a shift of one corpus by the margin is found"),
            ]  # fmt: skip
    return Table(
        title="All heads",
        name=f"{name}-heads",
        columns=columns,
        data=data,
        caption="How much of a head's variance over blocks lies between corpora, with p-values of "
        "a permutation test, adjusted over all heads and statistics (false discovery rate; the "
        "family-wise ones are in the CSV file).",
        sort=("tokens_share", True) if "tokens_share" in data else None,
    )
