"""The result: a verdict with evidence for every head and every layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from esscher.core.codec import Estimate, Index, Record
from esscher.math.tails.records import Cloud, Deciding, LogitShape
from esscher.math.tails.verdict import HEAVY, SUB_GAUSSIAN, UNDECIDED, judge
from esscher.runs.result import Result, WithHeads

if TYPE_CHECKING:
    import pandas as pd

    from esscher.runs.cells import CellRun
    from esscher.studies.tails.study import TailsStudy


class FurthestToken(Record, frozen=True, kw_only=True):
    """A token at the end of the tail, and its standardised projection."""

    token: str
    projection: float


class CloudWithNorms(Cloud, frozen=True, kw_only=True):
    """A cloud, and k-hat of the norms of its tokens in whitened coordinates."""

    norms: Estimate


class TokenCloud(CloudWithNorms, frozen=True, kw_only=True):
    """A cloud of text tokens, the furthest of them, and the cloud with delimiters if there are."""

    tokens_in_tail: tuple[FurthestToken, ...]
    with_delimiters: CloudWithNorms | None


class HeadCloud(TokenCloud, frozen=True, kw_only=True):
    """The keys of a head, and the tail of its logits."""

    layer: Index
    head: Index
    key_head: Index
    logits: LogitShape


class LayerTails(Record, frozen=True, kw_only=True):
    """A cell: the heads of a layer, and the hidden states that enter it, where they are known."""

    layer: Index
    heads: tuple[HeadCloud, ...]
    hidden: TokenCloud | None


class JudgedCloud(CloudWithNorms, frozen=True, kw_only=True):
    """A cloud, and the fields of its :class:`esscher.math.tails.Judgement`."""

    verdict: str
    evidence: str
    meaning: str
    decided_by: Deciding


class JudgedTokens(JudgedCloud, frozen=True, kw_only=True):
    """A cloud of text tokens, judged without and with delimiters."""

    tokens_in_tail: tuple[FurthestToken, ...]
    with_delimiters: JudgedCloud | None


class TailsHead(JudgedTokens, frozen=True, kw_only=True):
    """The keys of a head, judged, and the tail of its logits."""

    layer: Index
    head: Index
    key_head: Index
    logits: LogitShape


class TailsLayer(Record, frozen=True, kw_only=True):
    """The hidden states that enter a layer, judged."""

    layer: Index
    hidden: JudgedTokens | None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Tails(WithHeads[TailsHead], Result["TailsStudy"]):
    """The tails of every head's keys and of every layer's tokens.

    Attributes
    ----------
    heads
        One entry per head.
    layers
        One entry per layer: the hidden states that enter it.
    """

    heads: tuple[TailsHead, ...]
    layers: tuple[TailsLayer, ...]

    def table(self) -> pd.DataFrame:
        """Return a data frame, one row per head."""
        import pandas as pd

        return pd.DataFrame(
            [
                {"layer": h.layer, "head": h.head, "key_head": h.key_head}
                | _row(h)
                | {
                    "logits_k": h.logits.value,
                    "logits_k_low": h.logits.interval[0],
                    "logits_k_high": h.logits.interval[1],
                }
                for h in self.heads
            ]
        )

    def layers_table(self) -> pd.DataFrame:
        """Return a data frame of the hidden states, one row per layer."""
        import pandas as pd

        return pd.DataFrame(
            [{"layer": x.layer} | _row(x.hidden) for x in self.layers if x.hidden is not None]
        )

    def shown(self) -> list[pd.DataFrame]:
        """Return the heads, those of largest kurtosis first."""
        table = self.table()
        if table.empty:
            return []
        names = ["layer", "head", "kurtosis", "proxy", "tau", "norms_k", "logits_k", "verdict"]
        return [table.sort_values("kurtosis", ascending=False)[names]]


def assemble(study: TailsStudy, cells: Sequence[LayerTails], run: CellRun) -> Tails:
    """Judge every head and layer."""
    heads = tuple(_judged(head, TailsHead) for cell in cells for head in cell.heads)
    layers = tuple(
        TailsLayer(
            layer=cell.layer,
            hidden=None if cell.hidden is None else _judged(cell.hidden, JudgedTokens),
        )
        for cell in cells
    )
    return Tails.of(run, study, len(cells), _headline(heads), heads=heads, layers=layers)


def _judged(cloud: TokenCloud, kind: type[Any]) -> Any:
    other = cloud.with_delimiters
    fields = _fields(cloud) | _fields(judge(cloud))
    if other is not None:
        fields["with_delimiters"] = JudgedCloud(**_fields(other), **_fields(judge(other)))
    return kind(**fields)


def _fields(record: Record) -> dict[str, Any]:
    return msgspec.structs.asdict(record)


def _headline(heads: Sequence[TailsHead]) -> str:
    if not heads:
        return "Nothing has been measured yet."
    count = Counter(head.verdict for head in heads)
    heavy = [head for head in heads if head.verdict in HEAVY]
    light = [head.proxy.value for head in heads if head.verdict == SUB_GAUSSIAN]
    sentence = f"The keys of {count[SUB_GAUSSIAN]} of {len(heads)} heads have sub-Gaussian tails"
    if light:
        sentence += f" (variance proxy {np.median(light):.2f} times the variance, median)"
    kinds = "; ".join(f"{count[kind]} {kind}" for kind in HEAVY if count[kind])
    if heavy:
        sentence += f". Heavier than Gaussian in their worst direction: {len(heavy)} ({kinds})"
    if count[UNDECIDED]:
        sentence += f". Undecided: {count[UNDECIDED]}"
    return sentence + "."


def _row(cloud: JudgedTokens) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, source in (
        ("kurtosis", cloud.kurtosis), ("proxy", cloud.proxy), ("norms_k", cloud.norms),
    ):  # fmt: skip
        low, high = source.interval
        row |= {name: source.value, f"{name}_low": low, f"{name}_high": high}
    low, high = cloud.decided_by.tau_interval
    other = cloud.with_delimiters
    return row | {
        "tau": cloud.decided_by.tau,
        "tau_low": low,
        "tau_high": high,
        "beyond": cloud.decided_by.threshold,
        "largest": cloud.largest,
        "agreement": cloud.agreement,
        "verdict": cloud.verdict,
        "with_delimiters": None if other is None else other.verdict,
    }
