"""The result: the tails of every head and layer, and how far two halves of the text agree on them.

A verdict on a single head or layer is given only if the halves agree well enough over all of them;
else every one is undecided, and what is said is how many both halves call the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_options
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
from msgspec.structs import replace

from esscher.core.codec import Estimate, Index, Name, Record, as_tree
from esscher.core.errors import InputError
from esscher.core.options import BY_MODEL, AtMost, Heads, Layers, Seed, option
from esscher.core.shown import counted
from esscher.core.validation import as_indices
from esscher.engine.models.outline import Outline
from esscher.math.tails.candidates import Cloud, TailComparison
from esscher.math.tails.cloud import FEWEST
from esscher.math.tails.directions import FEWEST as FEWEST_PASSAGES
from esscher.math.tails.verdict import (
    UNDECIDED,
    Agreement,
    common_verdict,
    half_agreement,
    kind_of,
)
from esscher.runs.executors import CellExecutor
from esscher.runs.folder import Cell, CellRun
from esscher.runs.model_study import ModelStudy
from esscher.runs.result import Result, WithHeads

if TYPE_CHECKING:
    import pandas as pd

    from esscher.engine.models.choice import AnyModel
    from esscher.engine.models.loaded import LoadedModel
    from esscher.runs.folder import CellRun
    from esscher.studies.tails.work import TailsWork


#: Sets of clouds whose halves are compared.
KEYS, STATES, DELIMITED = "keys", "hidden states", " with delimiters"


C = TypeVar("C", bound="TokenCloud")


class FurthestToken(Record, frozen=True, kw_only=True):
    """A token at the end of the tail, and its standardised projection."""

    token: str
    projection: float


class TokenCloud(Cloud, frozen=True, kw_only=True):
    """A cloud of tokens, judged.

    Attributes
    ----------
    norms
        k-hat of the norms of its tokens in whitened coordinates.
    verdict
        In a result, undecided unless the halves of the text agree well enough over all clouds.
    decided_by
        The comparison on which the verdict rests.
    halves
        What each half says on its own; these are not verdicts.
    tokens_in_tail
        The furthest tokens along the worst direction.
    with_delimiters
        The same cloud with delimiters, where there are any.
    """

    norms: Estimate
    verdict: Name
    decided_by: TailComparison
    halves: tuple[Name, ...]
    tokens_in_tail: tuple[FurthestToken, ...] = ()
    with_delimiters: TokenCloud | None = None

    @property
    def both(self) -> str:
        """What both halves call it: sub-Gaussian, heavier or undecided."""
        return kind_of(common_verdict(self.halves))


class TailsHead(TokenCloud, frozen=True, kw_only=True):
    """The keys of a head, and k-hat of the upper tail of its logits: median over queries."""

    layer: Index
    head: Index
    key_head: Index
    logits: Estimate


class TailsLayer(Record, frozen=True, kw_only=True):
    """The hidden states that enter a layer, where they are known."""

    layer: Index
    hidden: TokenCloud | None


class LayerTails(TailsLayer, frozen=True, kw_only=True):
    """A cell: the hidden states that enter a layer, and the keys of its heads."""

    heads: tuple[TailsHead, ...]


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

    @property
    def clouds(self) -> dict[str, Sequence[TokenCloud]]:
        """The clouds that were judged: see :attr:`agreement`."""
        states = [layer.hidden for layer in self.layers if layer.hidden is not None]
        return _sets(self.heads, states)

    @cached_property
    def agreement(self) -> dict[str, Agreement]:
        """How far two halves of the text agree, by what was judged.

        ``"keys"`` (every key head once) and ``"hidden states"``, each also ``" with delimiters"``.
        """
        return {
            name: half_agreement(clouds, self.study.seed) for name, clouds in self.clouds.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, lists and strings: what ``--json`` prints."""
        return super().to_dict() | {"agreement": as_tree(self.agreement)}

    @property
    def reproducible(self) -> bool:
        """Whether verdicts on single heads are given."""
        keys = self.agreement.get(KEYS)
        return keys is not None and keys.reproducible

    @property
    def key_heads(self) -> list[TailsHead]:
        """The first head of every key head: heads that share their keys count once."""
        return list({(h.layer, h.key_head): h for h in reversed(self.heads)}.values())[::-1]

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
        names = ["layer", "head", "kurtosis", "proxy", "tau", "norms_k", "logits_k"]
        if self.reproducible:
            names.append("verdict")
        return [table.sort_values("kurtosis", ascending=False)[names]]


def _sets(
    heads: Sequence[TailsHead], states: Sequence[TokenCloud]
) -> dict[str, Sequence[TokenCloud]]:
    """Sets of clouds whose halves are compared; keys that heads share count once."""
    keys = list({(head.layer, head.key_head): head for head in heads}.values())
    sets: dict[str, Sequence[TokenCloud]] = {}
    for name, clouds in ((KEYS, keys), (STATES, states)):
        sets[name] = clouds
        sets[name + DELIMITED] = [c.with_delimiters for c in clouds if c.with_delimiters]
    return {name: clouds for name, clouds in sets.items() if clouds}


def _headline(heads: Sequence[TailsHead], keys: Agreement | None) -> str:
    if not heads or keys is None:
        return "Nothing has been measured yet."
    light, heavy, open_ = keys.both
    what = "head" if keys.clouds == len(heads) else "key head"
    sentences = [
        f"The keys of {light} of {counted(keys.clouds, what)} are sub-Gaussian even in their worst "
        f"direction, as far as these tokens reach; those of {heavy} are heavier, "
        f"{open_ + keys.disputed} undecided. Counted is what both halves of the text "
        f"({keys.tokens:,.0f} tokens each) say."
    ]
    if keys.kappa.value is None:
        beyond = "Both halves say the same of all heads, which says nothing about single ones"
    else:
        beyond = f"Agreement of the halves beyond chance is kappa = {estimate(keys.kappa)}"
    sentences.append(
        f"{beyond}: single heads are {'judged' if keys.reproducible else 'not judged'}."
    )
    proxies = [head.proxy.value for head in heads]
    low, middle, high = np.quantile(proxies, [0.1, 0.5, 0.9])
    one, two = keys.proxy_medians
    sentence = (
        f"Variance proxy over variance: median {middle:.2f} ({one:.2f} and {two:.2f} in the "
        f"halves), 10% and 90% of the heads {low:.2f} and {high:.2f}"
    )
    if keys.proxy.value is not None:
        sentence += f"; rank correlation between the halves {estimate(keys.proxy)}"
    return " ".join([*sentences, sentence + "."])


def estimate(number: Estimate) -> str:
    """A number with the ends of its interval."""
    low, high = number.interval
    if number.value is None or low is None or high is None:
        return "not defined"
    return f"{number.value:.2f} ({low:.2f} to {high:.2f})"


def _row(cloud: TokenCloud) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, source in (
        ("kurtosis", cloud.kurtosis),
        ("proxy", cloud.proxy),
        ("norms_k", cloud.norms),
    ):
        low, high = source.interval
        row |= {name: source.value, f"{name}_low": low, f"{name}_high": high}
    low, high = cloud.decided_by.tau_interval
    other = cloud.with_delimiters
    first, second = cloud.halves
    return row | {
        "tau": cloud.decided_by.tau,
        "tau_low": low,
        "tau_high": high,
        "beyond": cloud.decided_by.threshold,
        "largest": cloud.largest,
        "agreement": cloud.agreement,
        "first_half": first,
        "second_half": second,
        "verdict": cloud.verdict,
        "with_delimiters": None if other is None else other.verdict,
    }


# The study: which options there are, which cells, and how they become a result.

#: Tokens of a passage, and tokens in all, unless they are given.
CONTEXT, TOKENS = 512, 16_384


@dataclass(frozen=True, kw_only=True)
class TailsStudy(ModelStudy[Tails]):
    """Test whether the keys of a model have light tails.

    Theory assumes that they are sub-Gaussian. For every head: the direction in which its keys have
    the heaviest tail (found on one half of the passages, judged on the other), their sub-Gaussian
    parameter, kurtosis, type of tail, and k-hat of norms and logits.
    """

    name = "tails"
    asks = "Are the keys sub-Gaussian, as theory assumes?"
    next_step = "esscher probe MODEL --text TEXT"
    abridged = True
    unit = "layers"
    cell = LayerTails
    result = Tails
    examples = (
        "esscher tails demo:minilm --out runs/tails --figure tails.png",
        "esscher tails ./my-model --text corpus.jsonl --column text --layers 0-3",
    )

    tokens: Annotated[
        int, option("Tokens to read (default: up to 16384).", ge=FEWEST, le=10**15)
    ] = BY_MODEL
    context: Annotated[int, option("Tokens per passage (default: up to 512).", ge=1)] = BY_MODEL
    layers: Layers = BY_MODEL
    heads: Heads = BY_MODEL
    seed: Seed = 0

    def fill(self, model: Outline) -> TailsStudy:
        """Choose passages, layers and heads that the model has."""
        # the last passage may hold more than what is left of the tokens
        tokens = AtMost.unless(self.tokens, self.tokens or TOKENS)
        longest = (tokens - 1) // (FEWEST_PASSAGES - 1)
        context = model.context(self.context, min(CONTEXT, longest))
        if context > longest:
            raise InputError(
                f"tokens is {tokens} and context {context}; at least {FEWEST_PASSAGES} "
                "passages are needed, half of them to judge what was found in the others: give "
                f"at least {(FEWEST_PASSAGES - 1) * context + 1} tokens, or a context of at most "
                f"{longest}"
            )
        return with_options(
            self,
            tokens=tokens,
            context=AtMost.unless(self.context, context),
            layers=as_indices(self.layers, model.shape.layers, "layers"),
            heads=as_indices(self.heads, model.shape.heads, "heads"),
        )

    def cells(self) -> list[str]:
        """One cell per layer."""
        return [f"layer-{layer}" for layer in self.layers]

    def read(self, loaded: LoadedModel, model: AnyModel, executor: CellExecutor) -> TailsWork:
        """Cut the text into passages."""
        from esscher.studies.tails.work import read_text  # brings torch

        return read_text(self, loaded, model, executor)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Tails:
        """Compare the halves, and give the verdicts on single clouds as far as they agree."""
        layers_measured: list[LayerTails] = [cell.about for cell in cells.values()]
        measured = [head for cell in layers_measured for head in cell.heads]
        states = [cell.hidden for cell in layers_measured if cell.hidden is not None]
        agreement = {
            name: half_agreement(clouds, self.seed)
            for name, clouds in _sets(measured, states).items()
        }
        given = {name for name, halves in agreement.items() if halves.reproducible}

        def withheld(cloud: C, name: str) -> C:
            """The cloud, undecided where such verdicts are not given."""
            apart = cloud.with_delimiters
            if apart is not None and name + DELIMITED not in given:
                apart = replace(apart, verdict=UNDECIDED)
            verdict = cloud.verdict if name in given else UNDECIDED
            return replace(cloud, verdict=verdict, with_delimiters=apart)

        heads = tuple(withheld(head, KEYS) for head in measured)
        layers = tuple(
            TailsLayer(
                layer=cell.layer,
                hidden=None if cell.hidden is None else withheld(cell.hidden, STATES),
            )
            for cell in layers_measured
        )
        headline = _headline(heads, agreement.get(KEYS))
        return Tails.of(run, self, len(layers_measured), headline, heads=heads, layers=layers)
