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
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.atomic import write_atomically
from esscher.core.streams import random_stream
from esscher.engine.cache.budgets import POWERS, Keeping, Score, SelectionKind, keeping_for
from esscher.engine.cache.prompt import ObservedPrompt
from esscher.engine.cache.published import PromptLayer, Rule
from esscher.engine.cache.scores import Repetition, combined, prompt_scores
from esscher.engine.cache.selection import certain_keys
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.text.documents import TextSource
from esscher.engine.text.items import calibration_item
from esscher.engine.text.packing import Passage, first_passages
from esscher.math.allocation import EffectCurve, allocate
from esscher.studies.plan.effects import (
    DRAWS,
    FITTED,
    PassageEffects,
    average_effects,
    budget_grid,
    layer_effects,
    output_gradients,
    read_passage,
)
from esscher.studies.plan.predict import Budgets, Predicted, plan_total, plan_uniform
from esscher.studies.plan.study import RETRIEVAL_OF

SEED, QUERIES = 0, 128
ARRAYS = ("effect", "square", "norm")
#: Number of the power 1 among the powers of samples.
PLAIN = POWERS.index(1.0)
#: Key heads that are spared: those to which a plan gives most.
SPARED = 3

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
    """

    loaded: LoadedModel
    text: TextSource
    folder: Path
    queries: int = QUERIES

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
        return Calibration(prefix, found)


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
    effects
        By score and what is kept for certain, then by the name of the passage.
    """

    prefix: int
    effects: Mapping[Kind, Mapping[str, PassageEffects]]

    def each(self, budget: float) -> int:
        """Tokens of a key head on average."""
        return int(budget * self.prefix)

    def certain(self, budget: float) -> NDArray[np.bool_]:
        """True at tokens that are kept for certain."""
        keeping = keeping_at(self.prefix, budget)
        return certain_keys(self.prefix, keeping.sinks, keeping.recent)

    def sizes(self, budget: float) -> NDArray[np.int64]:
        """Budgets of which the effects are known."""
        return sizes_for(self.prefix, keeping_at(self.prefix, budget))

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

    def plan(
        self,
        budget: float,
        score: Score = "all",
        selection: SelectionKind = "fitted",
        prose: int | None = None,
    ) -> tuple[Budgets, Predicted]:
        """Make a plan, and say what it is predicted to cost."""
        parts = self.parts(budget, score, selection, prose)
        found = plan_total(parts, self.sizes(budget), self.each(budget) * _units(parts))
        return budgets_of(found, selection), found

    def uniform(self, budget: float) -> tuple[Budgets, Predicted]:
        """Make equal budgets, selected as in a plan."""
        found = plan_uniform(self.parts(budget), self.sizes(budget), self.each(budget))
        return budgets_of(found, "fitted"), found

    def with_one_power(self, budget: float) -> Budgets:
        """Budgets of a plan in which all heads sample with power 1, not fitted."""
        parts = self.parts(budget, selection="sample")
        plain = [
            replace(p, effect=p.effect[:, :, [PLAIN]], square=p.square[:, :, [PLAIN]])
            for p in parts
        ]
        found = plan_total(plain, self.sizes(budget), self.each(budget) * _units(parts))
        return Budgets(found.tokens, np.full(found.tokens.shape, POWERS[PLAIN]))

    def sparing(self, budget: float, count: int = SPARED) -> Budgets:
        """Equal budgets, but the few key heads that a plan gives most keep everything."""
        planned = self.plan(budget)[0].tokens
        order = np.argsort(-planned.ravel(), kind="stable")
        total, least = self.each(budget) * planned.size, int(self.certain(budget).sum()) + 1
        # a tiny model has no room for so many
        room = (total - least * planned.size) // (self.prefix - least)
        count = min(count, room)
        rest = total - count * self.prefix
        equal, odd = divmod(rest, planned.size - count)
        out = np.full(planned.size, equal, dtype=np.int64)
        out[order[count:][:odd]] += 1
        out[order[:count]] = self.prefix
        return _fitted(out.reshape(planned.shape))

    def by_output_error(self, budget: float) -> Budgets:
        """Budgets that minimise the squared output errors of heads, all weighted alike."""
        parts = self.parts(budget)
        mean, sizes = average_effects(parts), self.sizes(budget)
        layers, key_heads = mean.effect.shape[:2]
        square = mean.square.reshape(layers, key_heads, -1, *mean.square.shape[2:]).sum(axis=2)
        curves = [
            EffectCurve.below(sizes, own) for own in square.min(axis=2).reshape(-1, len(sizes))
        ]
        total = self.each(budget) * layers * key_heads
        return _fitted(allocate(curves, total).budgets.reshape(layers, key_heads))


def _units(parts: Sequence[PassageEffects]) -> int:
    layers, key_heads = parts[0].effect.shape[:2]
    return int(layers * key_heads)


def budgets_of(found: Predicted, selection: SelectionKind) -> Budgets:
    """Budgets and how tokens are selected."""
    layers = len(found.tokens)
    return found.budgets(np.arange(layers), layers, 0, selection)


def _fitted(tokens: NDArray[np.int64]) -> Budgets:
    return Budgets(tokens, np.full(tokens.shape, POWERS[FITTED]), "fitted")
