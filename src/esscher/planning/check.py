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
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.models import LayerInputs
from esscher.planning.calibrate import ObservedPassage
from esscher.planning.observation import Observation
from esscher.planning.reduced import reduced_attention
from esscher.planning.selection import POWERS, Kept, select_largest, select_sample
from esscher.reading import Pass, compare_laws, surprise
from esscher.runs import Cell
from esscher.streams import random_stream
from esscher.validation import Array

#: Stands for the end of the model where the tables have the number of a layer.
END = -1


@dataclass(frozen=True, eq=False)
class Budgets:
    """Budgets of every key head and the power of its sample, [layers, key heads]."""

    tokens: NDArray[np.int64]
    powers: NDArray[np.int64]


class PassageCheck:
    """One held-out passage: its dense pass, and what every configuration makes of it."""

    def __init__(self, observed: ObservedPassage, seed: int) -> None:
        self.observed, self._seed = observed, seed
        self.dense = observed.reader.read(lambda inputs: None)

    def cell(self, planned: Budgets, uniform: Budgets) -> Cell:
        """Measure all configurations; the table has (configuration, layer, measure, value)."""
        each = uniform.tokens
        choices: dict[str, Callable[[LayerInputs], list[Kept]]] = {
            "planned": lambda inputs: self._sample(inputs, planned),
            "uniform": lambda inputs: self._sample(inputs, uniform),
            "heavy": lambda inputs: self._largest(inputs, each, _published),
        }
        if self.observed.loaded.causal:
            choices["recent"] = lambda inputs: self._largest(inputs, each, _latest)
        rows: list[tuple[str, int, str, float]] = []
        ends: dict[str, Tensor] = {"dense": self.dense.end}
        for name, choose in choices.items():
            found = self.observed.reader.read(self._replacement(choose))
            rows += [(name, layer, "error", e) for layer, e in enumerate(self._errors(found))]
            rows += [(name, END, measure, v) for measure, v in self._end(found).items()]
            ends[name] = found.end
        for layer, errors in enumerate(self.head_errors(planned)):
            rows += [(f"head {h}", layer, "realised", float(e)) for h, e in enumerate(errors)]
        about: dict[str, Any] = {"passage": self.observed.reader.passage.number}
        if self.observed.loaded.causal:
            about["dense_nll"] = surprise(self.dense.end, self.observed.reader.next_tokens)
        else:
            about["embeddings"] = {name: end.tolist() for name, end in ends.items()}
        table = pd.DataFrame(rows, columns=["configuration", "layer", "measure", "value"])
        return Cell(about, table)

    def head_errors(self, budgets: Budgets) -> Array:
        """Relative error of each head's output when only it is reduced, [layers, heads]."""
        found: list[Array] = []

        def look(inputs: LayerInputs) -> None:
            own = inputs.own()[0].to(torch.float32)
            reduced = self._reduced(inputs, self._sample(inputs, budgets))
            square = (reduced - own).square().sum(-1).mean(-1)
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

    def _sample(self, inputs: LayerInputs, budgets: Budgets) -> list[Kept]:
        layer, number = inputs.layer, self.observed.reader.passage.number
        scores = self.observed.scores(inputs)
        kept = []
        for g, score in enumerate(scores):
            start = float(random_stream(self._seed, "plan check", number, layer, g).random())
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
