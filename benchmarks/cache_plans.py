"""Budgets for :mod:`benchmarks.cache`: one calibration, stored by passage, and plans from it.

Effects of all budgets are measured once per calibration passage; plans of any budget, and all that
is taken away from a plan to see what it is worth, are made from these files.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.atomic import write_atomically
from esscher.core.streams import random_stream
from esscher.engine.attention.bits import ENTRY_BYTES, Bits
from esscher.engine.cache.budgets import Keeping, Score, SelectionKind, keeping_for
from esscher.engine.cache.cache import ObservedPrompt
from esscher.engine.cache.published import PromptLayer, Rule
from esscher.engine.cache.scores import Repetition, combined, prompt_scores
from esscher.engine.cache.selection import certain_keys
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.models.outline import ModelRecord
from esscher.engine.text.documents import TextSource
from esscher.engine.text.items import calibration_item
from esscher.engine.text.packing import Passage, first_passages
from esscher.studies.plan.effects import (
    DRAWS,
    PassageEffects,
    budget_grid,
    layer_effects,
    output_gradients,
    read_passage,
)
from esscher.studies.plan.predict import Budgets, Predicted, Ways, plan_total, plan_uniform
from esscher.studies.plan.study import RETRIEVAL_OF

SEED, QUERIES = 0, 128
ARRAYS = ("effect", "square", "norm")

#: Scores by layer, [key heads, tokens] each.
ScoresOf: TypeAlias = dict[int, Tensor]
#: A score, and what is kept for certain: effects are those of other tokens.
Kind: TypeAlias = tuple[Score, Keeping]


class LastQueries(Rule):
    """Scores tokens as a plan with the score ``last`` does, as if it were a rule."""

    cite = ""
    name = "score last"  # type: ignore[assignment]

    def score(self, layer: PromptLayer) -> Tensor:
        """Scores by the last queries."""
        return prompt_scores(layer.inputs, "last", layer.rotation)


class RepeatingQueries(Rule):
    """Observes like a rule what a plan with the score ``repeat`` needs.

    Attributes
    ----------
    attention
        Attention of the queries that repeat the prompt, by layer and key head.
    """

    cite = ""
    reads = "repeat"
    name = "score repeat"  # type: ignore[assignment]

    def __init__(self) -> None:
        self.attention: dict[int, list[Repetition]] = {}

    def score(self, layer: PromptLayer) -> Tensor:
        """Add the queries; what is returned is not used."""
        assert layer.repeated is not None
        inputs, (begin, end) = layer.inputs, layer.repeated
        count, group = end - begin, inputs.group
        known = self.attention.setdefault(
            inputs.layer, [Repetition(group, layer.prompt) for _ in range(layer.key_heads)]
        )
        ends = inputs.offset + inputs.q.shape[2] - count + torch.arange(1, count + 1)
        query = inputs.q[0, :, -count:].to(torch.float32) * inputs.scaling
        for g, keys in enumerate(inputs.k[0].to(torch.float32)):
            heads = query[g * group : (g + 1) * group]
            known[g].add(heads, keys, ends.to(keys.device), inputs.softcap)
        return torch.zeros(1, 1)


def watchers(scores: Sequence[Score]) -> list[Rule]:
    """What has to be observed for scores other than ``all``."""
    known: dict[Score, Rule] = {"last": LastQueries(), "repeat": RepeatingQueries()}
    return [known[score] for score in scores if score != "all"]


def scores_of(prompt: ObservedPrompt, score: Score) -> ScoresOf:
    """Scores of a prompt that was read with the score ``all`` and with watchers."""
    if score == "all":
        return prompt.scores
    if score == "last":
        return prompt.rule_scores["score last"]
    (rule,) = [rule for rule in prompt.rules if isinstance(rule, RepeatingQueries)]
    out = {}
    for layer, repetitions in rule.attention.items():
        values = prompt.cache.layers[layer].values[0]
        repeated = [head.score(v) for head, v in zip(repetitions, values, strict=True)]
        out[layer] = combined(prompt.scores[layer], torch.stack(repeated))
    return out


@dataclass(frozen=True)
class Sources:
    """Where the calibration comes from, and where it is stored.

    Attributes
    ----------
    loaded
        The decoder.
    text
        The calibration text.
    folder
        Of the stored effects.
    queries
        Tokens after a prefix.
    dtype
        Type of the dense cache whose bytes are compared, whatever the model computes in.
    """

    loaded: LoadedModel
    text: TextSource
    folder: Path
    queries: int = QUERIES
    dtype: str = "bfloat16"

    def passages(self, prefix: int, prose: int, retrieval: int) -> dict[str, tuple[int, Passage]]:
        """Calibration passages with their numbers, by name, as :func:`esscher.plan` takes them."""
        loaded, length = self.loaded, prefix + self.queries
        found = first_passages(loaded, self.text, prose, length).passages
        out = {f"prose-{i}": (i, passage) for i, passage in enumerate(found)}
        text = np.concatenate([passage.ids for passage in found])
        for i in range(retrieval):
            hay = None if i % 2 else text
            passage = calibration_item(loaded, i, prefix, self.queries, seed=SEED, haystack=hay)
            out[f"retrieval-{i}-of-{prose}"] = (prose + i, passage)
        return out

    def calibration(
        self, prefix: int, prose: int, retrieval: int, wanted: Iterable[tuple[Score, float]]
    ) -> Calibration:
        """Measure what is not stored yet, and return all of it.

        Parameters
        ----------
        prefix
            Length of the prompts.
        prose, retrieval
            Numbers of passages.
        wanted
            Scores, each with a budget: what is kept for certain depends on it.
        """
        kinds = dict.fromkeys((score, keeping_at(prefix, budget)) for score, budget in wanted)
        found: dict[Kind, dict[str, PassageEffects]] = {kind: {} for kind in kinds}
        for name, (number, passage) in self.passages(prefix, prose, retrieval).items():
            paths = {
                (score, keeping): self.folder / str(prefix) / f"{name}-{score}-{keeping.recent}.npz"
                for score, keeping in kinds
            }
            missing = [kind for kind, path in paths.items() if not path.exists()]
            if missing:
                for kind, own in measure(self.loaded, passage, prefix, number, missing).items():
                    _store(paths[kind], own)
            for kind, path in paths.items():
                found[kind][name] = _stored(path)
        record = structs.replace(self.loaded.record, dtype=self.dtype)
        return Calibration(prefix, record, found)


def keeping_at(prefix: int, budget: float) -> Keeping:
    """What is kept for certain of a decoder's prompt."""
    return keeping_for(prefix, budget)


def sizes_for(prefix: int, keeping: Keeping) -> NDArray[np.int64]:
    """Budgets of which the effects are measured."""
    return budget_grid(prefix, keeping.count)


def passages_of(count: int) -> tuple[int, int]:
    """Prose and retrieval passages among so many, as :func:`esscher.plan` has them."""
    asked = count // RETRIEVAL_OF or min(1, count - 1)
    return count - asked, asked


def measure(
    loaded: LoadedModel, passage: Passage, prefix: int, number: int, kinds: Sequence[Kind]
) -> dict[Kind, PassageEffects]:
    """Effects of budgets on one calibration passage, of several kinds from one reading.

    They are those of the layers that are reduced: layers with a sliding window are not.
    """
    scores = list(dict.fromkeys(score for score, _ in kinds))
    watching = watchers(scores)
    prompt, reader = read_passage(loaded, passage, prefix, kinds[0][1], "all", watching, fits=False)
    own = {score: scores_of(prompt, score) for score in scores}
    bits = random_stream(SEED, "plan gradients", number).integers(2**62)
    generator = torch.Generator().manual_seed(int(bits))
    gradients = output_gradients(loaded, reader.end, DRAWS, generator)
    sizes = {keeping: sizes_for(prefix, keeping) for _, keeping in kinds}
    layers: dict[Kind, list[Any]] = {kind: [] for kind in kinds}

    def look(inputs: LayerInputs) -> None:
        if inputs.window is not None:
            return
        for score, keeping in kinds:
            certain = certain_keys(prefix, keeping.sinks, keeping.recent)
            given = own[score][inputs.layer], certain, sizes[keeping]
            effects = layer_effects(inputs, gradients[inputs.layer], *given)
            layers[score, keeping].append(effects)

    reader.read(look)
    return {
        kind: PassageEffects(*(np.stack(arrays) for arrays in zip(*effects, strict=True)))
        for kind, effects in layers.items()
    }


def _store(path: Path, effects: PassageEffects) -> None:
    data = io.BytesIO()
    np.savez(data, **{name: getattr(effects, name) for name in ARRAYS})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data.getvalue())


def _stored(path: Path) -> PassageEffects:
    with np.load(path, allow_pickle=False) as file:
        return PassageEffects(**{name: file[name] for name in ARRAYS})


@dataclass(frozen=True, eq=False)
class Calibration:
    """Effects on calibration passages, and the plans that follow from them.

    Attributes
    ----------
    prefix
        Length of the prompts.
    model
        The model; its type is that of the dense cache whose bytes are compared.
    effects
        By score and what is kept for certain, then by the name of the passage.
    """

    prefix: int
    model: ModelRecord
    effects: Mapping[Kind, Mapping[str, PassageEffects]]

    @property
    def entry(self) -> int:
        """Bytes of an entry of a key."""
        return ENTRY_BYTES[self.model.dtype]

    def each(self, budget: float) -> int:
        """Bytes of a key head on average."""
        return int(budget * 2 * self.prefix * self.model.head_dim * self.entry)

    def ways(self, budget: float, selection: SelectionKind) -> Ways:
        """Ways to keep tokens, and the bytes that they take."""
        certain = keeping_at(self.prefix, budget).count
        return Ways.of(selection, self.prefix, certain, self.model)

    def certain(self, budget: float) -> NDArray[np.bool_]:
        """True at tokens that are kept for certain."""
        keeping = keeping_at(self.prefix, budget)
        return certain_keys(self.prefix, keeping.sinks, keeping.recent)

    def parts(
        self,
        budget: float,
        score: Score = "all",
        selection: SelectionKind = "fitted",
        prose: int | None = None,
    ) -> list[PassageEffects]:
        """Effects for one selection on all passages, or on only so many of prose."""
        own = self.effects[score, keeping_at(self.prefix, budget)]
        if prose is not None:
            own = {f"prose-{i}": own[f"prose-{i}"] for i in range(prose)}
        layers = np.arange(len(next(iter(own.values())).effect))
        return [one.chosen(layers, selection) for one in own.values()]

    def known(
        self,
        budget: float,
        score: Score = "all",
        selection: SelectionKind = "fitted",
        prose: int | None = None,
        bits: Bits | None = None,
    ) -> tuple[list[PassageEffects], Ways]:
        """Effects and ways to keep tokens, all or only those of some bits."""
        parts, ways = self.parts(budget, score, selection, prose), self.ways(budget, selection)
        if bits is not None:
            which = np.flatnonzero((ways.bits == bits).all(axis=1))
            ways = replace(
                ways, **{n: getattr(ways, n)[which] for n in ("powers", "bits", "nbytes")}
            )
            parts = [
                PassageEffects(p.effect[:, :, which], p.square[:, :, which], p.norm) for p in parts
            ]
        return parts, ways

    def plan(
        self,
        budget: float,
        score: Score = "all",
        selection: SelectionKind = "fitted",
        prose: int | None = None,
        bits: Bits | None = None,
        each: int | None = None,
    ) -> tuple[Budgets, Predicted]:
        """Make a plan, and say what it is predicted to cost.

        ``each`` are the bytes of a key head on average, if not those of the budget.
        """
        parts, ways = self.known(budget, score, selection, prose, bits)
        layers, key_heads = parts[0].effect.shape[:2]
        found = plan_total(parts, ways, (each or self.each(budget)) * layers * key_heads)
        return found.budgets(np.arange(layers), layers, ways), found

    def taken(self, budget: float, bits: Bits | None = None) -> int:
        """Bytes of a key head on average that the plan takes, and others may take."""
        return int(self.plan(budget, bits=bits)[0].nbytes.mean())

    def uniform(self, budget: float, bits: Bits | None = None) -> tuple[Budgets, Predicted]:
        """Make equal budgets, selected as in a plan."""
        parts, ways = self.known(budget, bits=bits)
        found, layers = plan_uniform(parts, ways, self.taken(budget, bits)), len(parts[0].effect)
        return found.budgets(np.arange(layers), layers, ways), found
