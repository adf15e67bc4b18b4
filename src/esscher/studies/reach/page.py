"""The result on a page of a report: answers, predictions, scales, and a table of all heads."""

from __future__ import annotations

from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of
from esscher.show.numbers import counted
from esscher.studies.reach.result import Reach


def summary(found: Reach, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    study = found.study
    subject = (
        f"{study.model_record.name} on {study.text_record.source}, {', '.join(study.tasks)}, "
        f"{counted(study.items, 'item')} each, {study.lengths[0]:,} to {study.lengths[-1]:,} tokens"
    )
    if not found.heads:
        return Summary("Reach of heads", subject, [], [])
    return Summary("Reach of heads", subject, _cards(found), _tables(found, name))


def _cards(found: Reach) -> list[Card]:
    first, last = found.scores[0], found.scores[-1]
    low, high = last.right_interval
    undecided = sum(head.verdict == "undecided" for head in found.heads)
    cards = [
        Card(f"{len(found.retrieving)} of {len(found.heads)}", "heads retrieve",
             f"{undecided} undecided"),
        Card(f"{last.right:.0%}", f"right answers at {last.length:,} tokens",
             f"{low:.0%} to {high:.0%} of {last.items}; {first.right:.0%} at {first.length:,}"),
    ]  # fmt: skip
    if found.weights:
        far = found.weights[-1]
        cards.append(
            Card(f"{far.median_ratio:.2f}", f"predicted over measured weight at {far.length:,}",
                 f"quartiles {far.quartiles[0]:.2f} to {far.quartiles[1]:.2f}; compared with "
                 f"assuming unchanged weights: {far.verdict}")
        )  # fmt: skip
    own = [one for one in found.scales if one.arm == "heads"]
    if own:
        cards.append(
            Card(own[-1].needle_verdict, "answers with the heads' own scales",
                 f"{own[-1].length:,} tokens; text: {own[-1].perplexity_verdict}")
        )  # fmt: skip
    return cards


def _tables(found: Reach, name: str) -> list[Table]:
    return [
        Table(
            title="All heads",
            name=f"{name}-heads",
            columns=[
                Column("layer", "layer", "n0"),
                Column("head", "head", "n0"),
                Column("verdict", "retrieves?"),
                Column("contribution", "adds", "d3", "low", "high",
                       help="log-odds per answer token, to first order, in nats"),
                Column("share", "share", "p1", help="of all positive contributions"),
                Column("weight", "weight", "d3", help="on the copied token, shortest length"),
                Column("last_weight", "weight at the end", "d3", help="longest length"),
                Column("predicted", "predicted", "d3", help="from the shortest length alone"),
                Column("ratio", "ratio", "d2", help="predicted over measured, longest length"),
                Column("advantage", "z", "d1", help="advantage of the copied token's logit"),
                Column("spread", "s", "d1", help="spread of other keys' logits"),
                Column("distance", "by distance", "d2", shown=False,
                       help="change of other keys' logits per factor e of their distance"),
                Column("tail", "k-hat", "d2", help="of other keys' weights, longest length"),
                Column("entropy", "entropy", "d2", shown=False),
                Column("largest", "largest weight", "d3", shown=False),
                Column("certified_1", "keys for 1%", "n0",
                       help="most that a query needed for 1% total variation"),
                Column("certified_5", "keys for 5%", "n0", shown=False),
                Column("coverage", "CLT kept", "p0",
                       help="share of samples within 10%, of a promised 90%"),
                Column("coverage_top", "CLT kept, top apart", "p0", shown=False),
                Column("slope", "slope of scale", "d3",
                       help="of 1 + slope ln(n/n0), which keeps the weight"),
            ],
            data=data_of(found.table()),
            caption="Brackets are 95% intervals over items; one item has none.",
            sort=("share", True),
        )
    ]  # fmt: skip
