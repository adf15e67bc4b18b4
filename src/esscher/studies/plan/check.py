"""Does a plan earn its place? Dense, uniform, planned and published selections on unseen text.

All configurations keep the same number of tokens in all. ``planned`` and ``uniform`` choose tokens
inside a head in the same way and differ in the budgets alone; ``heavy`` (an observation window, as
in SnapKV) and ``recent`` (sinks and recent tokens, as in StreamingLLM) have uniform budgets and
forget what they do not keep. The dense prefix of a passage is read once; only the tokens after it
are read again for every configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.cache.budgets import POWERS
from esscher.engine.cache.observation import Observation
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
from esscher.studies.plan.result import PlanCell


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
            found = [self.observed.reader.read(self._replacement(choose)) for choose in choices]
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
            about = PlanCell(passage=number, dense_nll=nll)
        else:
            embeddings = {
                name: tuple(tuple(end.tolist()) for end in found) for name, found in ends.items()
            }
            about = PlanCell(passage=number, embeddings=embeddings)
        table = pd.DataFrame(rows, columns=["configuration", "layer", "measure", "value"])
        return Cell(about, table)

    def _choices(
        self, planned: Budgets, uniform: Budgets
    ) -> dict[str, list[Callable[[LayerInputs], list[Kept]]]]:
        """What each configuration keeps of a layer, one function per sample."""

        def samples(budgets: Budgets) -> list[Callable[[LayerInputs], list[Kept]]]:
            return [partial(self._sample, budgets=budgets, draw=d) for d in range(self._draws)]

        each = uniform.tokens
        out: dict[str, list[Callable[[LayerInputs], list[Kept]]]] = {
            "planned": samples(planned),
            "uniform": samples(uniform),
            "heavy": [partial(self._largest, tokens=each, score=_published)],
        }
        if self.observed.loaded.causal:
            out["recent"] = [partial(self._largest, tokens=each, score=_latest)]
        return out

    def head_errors(self, budgets: Budgets) -> Array:
        """Relative error of each head's output when only it is reduced, [layers, heads]."""
        found: list[Array] = []

        def look(inputs: LayerInputs) -> None:
            own = inputs.own()[0].to(torch.float32)
            square = torch.zeros(len(own))
            for draw in range(self._draws):
                reduced = self._reduced(inputs, self._sample(inputs, budgets, draw))
                square += (reduced - own).square().sum(-1).mean(-1) / self._draws
            norm = own.square().sum(-1).mean(-1)
            found.append((square / norm).sqrt().double().numpy())

        self.observed.reader.read(look)
        return np.stack(found)

    def _replacement(
        self, choose: Callable[[LayerInputs], list[Kept]]
    ) -> Callable[[LayerInputs], Tensor]:
        return lambda inputs: self._reduced(inputs, choose(inputs))[None]

    def _reduced(self, inputs: LayerInputs, kept: list[Kept]) -> Tensor:
        return reduced_attention(inputs, kept, self.observed.keys)

    def _sample(self, inputs: LayerInputs, budgets: Budgets, draw: int) -> list[Kept]:
        layer, number = inputs.layer, self.observed.reader.passage.number
        scores = self.observed.scores(inputs)
        kept = []
        for g, score in enumerate(scores):
            first = float(random_stream(self._seed, "plan check", number, layer, g).random())
            start = float(spread_starts(first, self._draws)[draw])
            power = POWERS[budgets.powers[layer, g]]
            tokens = int(budgets.tokens[layer, g])
            kept.append(select_sample(score, self.observed.certain, tokens, power, start))
        return kept

    def _largest(
        self,
        inputs: LayerInputs,
        tokens: NDArray[np.int64],
        score: Callable[[Observation, int, int], Tensor],
    ) -> list[Kept]:
        found = score(self.observed.observation(inputs), inputs.v.shape[1], self.observed.keys)
        return [
            select_largest(found[g], self.observed.certain, int(tokens[inputs.layer, g]))
            for g in range(len(found))
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


def _published(seen: Observation, key_heads: int, keys: int) -> Tensor:
    return seen.published_score(key_heads)[:, :keys]


def _latest(seen: Observation, key_heads: int, keys: int) -> Tensor:
    return torch.arange(keys, dtype=torch.float32).expand(key_heads, -1)
