"""The result: heads that retrieve, predicted and measured weights, scores, budgets and scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from esscher.core.codec import Count
from esscher.core.errors import InputError
from esscher.core.shown import two_digits
from esscher.runs.cells import Cell, CellRun
from esscher.runs.result import Result, WithHeads
from esscher.studies.reach.compare import (
    coverages,
    scale_checks,
    scores,
    weight_checks,
)
from esscher.studies.reach.heads import Items, head_records
from esscher.studies.reach.records import (
    ARMS,
    CheckCell,
    Coverage,
    HeadReach,
    ItemCell,
    ScaleCheck,
    Score,
    WeightCheck,
)

if TYPE_CHECKING:
    import pandas as pd

    from esscher.engine.models.loaded import LoadedModel
    from esscher.engine.models.scaling import LogitScale
    from esscher.studies.reach.study import ReachStudy


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Reach(WithHeads[HeadReach], Result["ReachStudy"]):
    """How long a text every head can search.

    Attributes
    ----------
    lengths
        Tokens of the texts of which there are items.
    heads
        One entry per head.
    weights
        Predicted against measured weights of retrieving heads, beyond the shortest length.
    scores
        Answers of the model, measured and predicted.
    budgets
        Coverage of CLT budgets at the longest length, by k-hat.
    scales
        Ways to scale logits on held-out items; empty without a check.
    """

    lengths: tuple[Count, ...]
    heads: tuple[HeadReach, ...]
    weights: tuple[WeightCheck, ...]
    scores: tuple[Score, ...]
    budgets: tuple[Coverage, ...]
    scales: tuple[ScaleCheck, ...]

    def __post_init__(self) -> None:
        """Refuse heads that do not have all lengths."""
        for head in self.heads:
            if tuple(one.length for one in head.lengths) != self.lengths:
                raise InputError(f"head {head.layer}.{head.head} does not have all lengths")

    @property
    def retrieving(self) -> tuple[HeadReach, ...]:
        """Heads that retrieve, those with the largest contribution first."""
        found = [head for head in self.heads if head.verdict == "retrieves"]
        return tuple(sorted(found, key=lambda head: -head.share))

    def table(self) -> pd.DataFrame:
        """Return a data frame, one row per head."""
        import pandas as pd

        rows = []
        for head in self.heads:
            first, last = head.lengths[0], head.lengths[-1]
            low, high = head.contribution.interval
            rows.append(
                {
                    "layer": head.layer,
                    "head": head.head,
                    "verdict": head.verdict,
                    "contribution": head.contribution.value,
                    "low": low,
                    "high": high,
                    "share": head.share,
                    "weight": first.weight.value,
                    "last_weight": last.weight.value,
                    "predicted": last.predicted,
                    "ratio": last.ratio.value,
                    "advantage": first.advantage,
                    "spread": first.spread,
                    "distance": head.distance,
                    "tail": head.tail,
                    "entropy": last.entropy,
                    "largest": last.largest,
                    "certified_1": last.certified[0],
                    "certified_5": last.certified[1],
                    "coverage": head.coverage,
                    "coverage_top": head.coverage_top,
                    "slope": head.slope,
                }
            )
        frame = pd.DataFrame(rows)
        numbers = ("low", "high", "ratio", "tail", "slope")
        return frame.astype(dict.fromkeys(numbers, np.float64) if rows else {})

    def shown(self) -> list[pd.DataFrame]:
        """Return the heads, those that the answers owe most to first."""
        table = self.table()
        return [table if table.empty else table.sort_values("share", ascending=False).head(20)]

    @contextmanager
    def apply(self, model: LoadedModel, arm: str = "heads") -> Iterator[None]:
        """Scale the logits of a model's heads, within a block.

        Parameters
        ----------
        model
            The model that was measured, or one with as many layers and heads.
        arm
            ``"heads"``: every retrieving head keeps the weight of the shortest length;
            ``"whole"``: all heads, by the mean of those; ``"log n"``, ``"yarn"``.

        Raises
        ------
        InputError
            For an unknown arm, and a model of another shape.
        """
        from esscher.engine.models.scaling import scaled_attention

        scales = chosen_scales(self)
        if arm not in scales:
            raise InputError(f"arm is {arm!r}; it must be one of {', '.join(scales)}")
        scale = scales[arm]
        if scale is None:
            yield
            return
        with scaled_attention(model, scale):
            yield


def chosen_scales(found: Reach) -> dict[str, LogitScale | None]:
    """Scales by arm: none, published ones, and those of the heads that retrieve."""
    model = found.study.model_record
    own = [
        (head.layer, head.head, head.slope, head.share)
        for head in found.retrieving
        if head.slope is not None
    ]
    return scales_of((model.layers, model.heads), float(found.study.lengths[0]), own)


def scales_of(
    shape: tuple[int, int], reference: float, own: Sequence[tuple[int, int, float, float]]
) -> dict[str, LogitScale | None]:
    """Scales by arm, from what is known of retrieving heads.

    Parameters
    ----------
    shape
        Layers and heads of the model.
    reference
        Shortest length, up to which nothing changes.
    own
        Layer, head, slope and share of the retrieving heads that have a slope.
    """
    from esscher.engine.models.scaling import LogitScale

    slopes = np.zeros(shape)
    for layer, head, slope, _ in own:
        slopes[layer, head] = slope
    total = sum(share for *_, share in own)
    mean = sum(share * slope for _, _, slope, share in own) / total if own else 0.0
    made = (
        None,
        LogitScale.logarithmic(*shape, reference),
        LogitScale.yarn(*shape, reference),
        LogitScale(slopes, reference),
        LogitScale(np.full(shape, mean), reference),
    )
    return dict(zip(ARMS, made, strict=True))


def assemble(study: ReachStudy, cells: Mapping[str, Cell], run: CellRun) -> Reach:
    """Judge heads, predictions, budgets and scales."""
    measured = {name: cell for name, cell in cells.items() if isinstance(cell.about, ItemCell)}
    checked = [cell.about for cell in cells.values() if isinstance(cell.about, CheckCell)]
    items = Items.of(study.lengths, study.model_record.heads, measured, run)
    heads = head_records(items) if items.lengths else ()
    retrieving = [head for head in heads if head.verdict == "retrieves"]
    found = scores(items)
    weights = weight_checks(retrieving)
    scales = scale_checks(checked)
    return Reach.of(
        run,
        study,
        len(cells),
        _headline(heads, retrieving, weights, found, scales),
        lengths=items.lengths,
        heads=heads,
        weights=weights,
        scores=found,
        budgets=coverages(heads),
        scales=scales,
    )


def _headline(
    heads: Sequence[HeadReach],
    retrieving: Sequence[HeadReach],
    weights: Sequence[WeightCheck],
    found: Sequence[Score],
    scales: Sequence[ScaleCheck],
) -> str:
    if not heads:
        return "Nothing has been measured yet."
    undecided = sum(head.verdict == "undecided" for head in heads)
    first, last = found[0], found[-1]
    said = f"{len(retrieving)} of {len(heads)} heads retrieve, {undecided} undecided"
    if retrieving:
        share = sum(head.share for head in retrieving)
        said += f"; they carry {share:.0%} of what the copied tokens add to the answers"
    said += (
        f". Right answers: {first.right:.0%} at {first.length:,} tokens, {last.right:.0%} at "
        f"{last.length:,}."
    )
    if weights:
        far = weights[-1]
        said += (
            f" Weights predicted from {first.length:,} tokens are "
            f"{two_digits(far.median_ratio)} times those measured at {far.length:,} (median of "
            f"{far.heads} heads), "
            f"{_than(far.verdict)} unchanged ones."
        )
    for one in scales:
        if one.arm == "heads" and one.length == scales[-1].length:
            said += (
                f" Scaling the logits to keep the weights of {first.length:,} tokens: at "
                f"{one.length:,} tokens answers {one.needle_verdict}, text "
                f"{one.perplexity_verdict}."
            )
    return said


def _than(verdict: str) -> str:
    return {"better": "closer than", "worse": "farther than"}.get(
        verdict, "undecided whether closer than"
    )
