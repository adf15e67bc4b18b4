"""Does a plan earn its place? Dense, uniform, planned and published selections on unseen text.

All configurations keep the same number of tokens in all. ``planned`` and ``uniform`` choose tokens
inside a head in the same way and differ in the budgets alone; ``heavy`` (an observation window, as
in SnapKV) and ``recent`` (sinks and recent tokens, as in StreamingLLM) have uniform budgets and
forget what they do not keep. The dense prefix of a passage is read once; only the tokens after it
are read again, with a cache that holds what the configuration keeps. Layers with a sliding window
are left alone by all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.cache.budgets import POWERS
from esscher.engine.cache.cache import ReducedCache, reduced_copy
from esscher.engine.cache.observation import Observation, observe
from esscher.engine.cache.selection import (
    Kept,
    reduced_attention,
    select_largest,
    select_sample,
    spread_starts,
)
from esscher.engine.models import LayerInputs
from esscher.engine.reading import Pass, compare_laws, surprise
from esscher.runs.cells import Cell
from esscher.studies.plan.calibrate import ObservedPassage
from esscher.studies.plan.compare import END
from esscher.studies.plan.result import CacheBytes, PlanCell

#: What each key head keeps, from the number of a layer, what was observed of it, and its values.
Choose: TypeAlias = Callable[[int, Observation, Tensor], list[Kept]]


@dataclass(frozen=True, eq=False)
class Budgets:
    """Budgets of every key head and the power of its sample, [layers, key heads]."""

    tokens: NDArray[np.int64]
    powers: NDArray[np.int64]


class PassageCheck:
    """One held-out passage: its dense pass, and what every configuration makes of it.

    Parameters
    ----------
    observed
        The passage.
    seed, draws
        Seed and number of the samples; measures are means over them.
    """

    def __init__(self, observed: ObservedPassage, seed: int, draws: int = 1) -> None:
        self.observed, self._seed, self._draws = observed, seed, draws
        self.dense = observed.reader.read(lambda inputs: None)

    def cell(self, planned: Budgets, uniform: Budgets) -> Cell:
        """Measure all configurations; the table has (configuration, layer, measure, value)."""
        rows: list[tuple[str, int, str, float]] = []
        ends: dict[str, list[Tensor]] = {"dense": [self.dense.end]}
        for name, choices in self._choices(planned, uniform).items():
            found = [self._read(choose) for choose in choices]
            errors = np.mean([self._errors(one) for one in found], axis=0)
            rows += [(name, layer, "error", float(e)) for layer, e in enumerate(errors)]
            measures = [self._end(one) for one in found]
            for measure in measures[0]:
                value = float(np.mean([one[measure] for one in measures]))
                rows.append((name, END, measure, value))
            ends[name] = [one.end for one in found]
        for layer, errors in enumerate(self.head_errors(planned)):
            rows += [(f"head {h}", layer, "realised", float(e)) for h, e in enumerate(errors)]
        number = self.observed.reader.passage.number
        if self.observed.loaded.causal:
            nll = surprise(self.dense.end, self.observed.reader.next_tokens)
            cache = self._cache(partial(self._sample, budgets=planned, draw=0))
            taken = CacheBytes(planned=cache.nbytes, dense=cache.dense_nbytes)
            about = PlanCell(passage=number, dense_nll=nll, cache=taken)
        else:
            embeddings = {
                name: tuple(tuple(end.tolist()) for end in found) for name, found in ends.items()
            }
            about = PlanCell(passage=number, embeddings=embeddings)
        table = pd.DataFrame(rows, columns=["configuration", "layer", "measure", "value"])
        return Cell(about, table)

    def _choices(self, planned: Budgets, uniform: Budgets) -> dict[str, list[Choose]]:
        """What each configuration keeps of a layer, one function per sample."""

        def samples(budgets: Budgets) -> list[Choose]:
            return [partial(self._sample, budgets=budgets, draw=d) for d in range(self._draws)]

        each = uniform.tokens
        out: dict[str, list[Choose]] = {
            "planned": samples(planned),
            "uniform": samples(uniform),
            "heavy": [partial(self._largest, tokens=each, score=_published)],
        }
        if self.observed.loaded.causal:
            out["recent"] = [partial(self._largest, tokens=each, score=_latest)]
        return out

    def _read(self, choose: Choose) -> Pass:
        """Read the queries with what a configuration keeps: of a decoder's cache, or in each call.

        A decoder runs on the very cache that a plan is used with.
        """
        observed = self.observed
        if observed.loaded.causal:
            return observed.reader.read(lambda inputs: None, self._cache(choose))

        def replacement(inputs: LayerInputs) -> Tensor:
            kept = choose(inputs.layer, observe(inputs), inputs.v[0])
            return reduced_attention(inputs, kept, observed.keys)[None]

        return observed.reader.read(replacement)

    def _cache(self, choose: Choose) -> ReducedCache:
        """Make a decoder's cache that holds what a configuration keeps of the prefix."""
        seen = self.observed.observations
        return reduced_copy(
            self.observed.loaded,
            self.observed.reader.cache,
            lambda layer, values: choose(layer, seen[layer], values),
        )

    def head_errors(self, budgets: Budgets) -> Array:
        """Relative error of each head's output when only it is reduced, [layers, heads].

        It is 0 in layers with a sliding window: they are not reduced.
        """
        found: list[Array] = []

        def look(inputs: LayerInputs) -> None:
            if inputs.window is not None:
                found.append(np.zeros(inputs.q.shape[1]))
                return
            own = inputs.own()[0].to(torch.float32)
            values = inputs.v[0, :, : self.observed.keys]
            seen = self.observed.observation(inputs)
            square = torch.zeros(len(own))
            for draw in range(self._draws):
                kept = self._sample(inputs.layer, seen, values, budgets, draw)
                reduced = reduced_attention(inputs, kept, self.observed.keys)
                square += (reduced - own).square().sum(-1).mean(-1) / self._draws
            norm = own.square().sum(-1).mean(-1)
            found.append((square / norm).sqrt().double().numpy())

        self.observed.reader.read(look)
        return np.stack(found)

    def _sample(
        self, layer: int, seen: Observation, values: Tensor, budgets: Budgets, draw: int
    ) -> list[Kept]:
        number, kept = self.observed.reader.passage.number, []
        for g, score in enumerate(seen.score(values)):
            first = float(random_stream(self._seed, "plan check", number, layer, g).random())
            start = float(spread_starts(first, self._draws)[draw])
            power = POWERS[budgets.powers[layer, g]]
            tokens = int(budgets.tokens[layer, g])
            kept.append(select_sample(score, self.observed.certain, tokens, power, start))
        return kept

    def _largest(
        self,
        layer: int,
        seen: Observation,
        values: Tensor,
        tokens: NDArray[np.int64],
        score: Callable[[Observation, Tensor], Tensor],
    ) -> list[Kept]:
        return [
            select_largest(own, self.observed.certain, int(tokens[layer, g]))
            for g, own in enumerate(score(seen, values))
        ]

    def _errors(self, found: Pass) -> list[float]:
        """Relative error of every layer's attention output."""
        rows = self.observed.reader.asking
        out = []
        for dense, other in zip(self.dense.attention, found.attention, strict=True):
            difference = torch.linalg.vector_norm((other - dense)[:, rows].double())
            out.append(float(difference / torch.linalg.vector_norm(dense[:, rows].double())))
        return out

    def _end(self, found: Pass) -> Mapping[str, float]:
        if self.observed.loaded.causal:
            return compare_laws(self.dense.end, found.end, self.observed.reader.next_tokens)
        return {"cosine": float(torch.cosine_similarity(found.end, self.dense.end, dim=0))}


def _published(seen: Observation, values: Tensor) -> Tensor:
    return seen.published_score(len(values))[:, : values.shape[1]]


def _latest(seen: Observation, values: Tensor) -> Tensor:
    return torch.arange(values.shape[1], dtype=torch.float32).expand(len(values), -1)
