"""Real heads: the dense attention of a model on a passage, and what patterns make of it.

In a decoder the queries come from the last quarter of the passage, in an encoder from its middle
half; each sees all that it sees in the model, sinks and delimiters included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.models import LayerCapture, LoadedModel
from esscher.engine.patterns import PATTERNS, View
from esscher.engine.text import Passage, visit_passages
from esscher.studies.sparse.budgets import PREFIX
from esscher.studies.sparse.measurement import (
    BiasSum,
    Measurement,
    OutputReference,
    output_norms,
    pattern_outputs,
    query_positions,
)
from esscher.studies.sparse.records import METRICS


def choose_queries(passage: Passage, causal: bool, count: int, seed: int) -> NDArray[np.int64]:
    """Positions of the queries: tokens of the text, not delimiters."""
    length = len(passage.ids)
    inside = np.arange(length)
    inside = inside[int(PREFIX * length) :] if causal else inside[length // 4 : -(length // 4)]
    rng = random_stream(seed, "sparse positions", passage.number)
    return query_positions(inside[~passage.is_delimiter[inside]], count, rng)


def measure_passage(
    loaded: LoadedModel,
    passage: Passage,
    patterns: Sequence[str],
    budgets: Sequence[int],
    *,
    layers: Sequence[int],
    heads: Sequence[int],
    queries: int,
    draws: int,
    seed: int,
) -> Measurement:
    """Errors of the heads of a model on one passage.

    Parameters
    ----------
    loaded, passage
        The model, and the text it reads.
    patterns, budgets
        Names, and numbers of keys.
    layers, heads
        Which ones.
    queries
        Number of queries.
    draws
        Selections of every random pattern.
    seed
        Seed of queries and selections.
    """
    asking = choose_queries(passage, loaded.causal, queries, seed)
    if not len(asking):
        raise InputError(f"passage {passage.number} has no text tokens to ask with")
    parts: list[_Layer] = []

    def sink(passage: Passage, capture: LayerCapture) -> None:
        with torch.inference_mode():
            part = _Layer(capture, asking, heads, budgets[-1])
            part.measure(patterns, budgets, draws, seed, passage.number)
        parts.append(part)

    visit_passages(loaded, [passage], sink, layers=layers)
    return Measurement(
        units=tuple((part.layer, head) for part in parts for head in heads),
        references=("dense",),
        errors=np.concatenate([part.errors for part in parts], axis=3),
        bias_square=np.concatenate([part.bias_square for part in parts], axis=1),
        norms=np.concatenate([part.norms for part in parts]),
        visible=float(np.mean([part.visible for part in parts])),
        dense_limit=np.empty((len(METRICS), 0)),
    )


class _Layer:
    """One layer of one passage: dense attention of the queries, and then the patterns' errors."""

    def __init__(
        self,
        capture: LayerCapture,
        asking: NDArray[np.int64],
        heads: Sequence[int],
        largest: int,
    ) -> None:
        self.layer = capture.layer
        self._view = View.of(
            asking, capture.k.shape[2], causal=capture.causal, window=capture.window
        )
        self.visible = float(self._view.counts.mean())
        fewest = int(self._view.counts.min())
        if fewest <= largest:
            raise InputError(
                f"queries of layer {capture.layer} see as few as {fewest} keys, but the largest "
                f"budget is {largest}; choose smaller budgets, or leave the layer out"
            )
        # logits only from the first query on: a decoder's queries are the end of its passage
        start = int(asking[0])
        rows = torch.from_numpy(asking - start)
        self._logits = torch.stack(
            [capture.logits(0, h, slice(start, None), torch.float32)[rows] for h in heads]
        )
        self._values = torch.stack([capture.v[0, h // capture.group] for h in heads]).to(
            torch.float32
        )
        self._dense = OutputReference.of(torch.softmax(self._logits, dim=-1) @ self._values)
        self.norms = np.empty((0, 0))
        self.errors = np.empty(0)
        self.bias_square = np.empty(0)

    def measure(
        self, patterns: Sequence[str], budgets: Sequence[int], draws: int, seed: int, passage: int
    ) -> None:
        """Fill in the errors."""
        dense, size = self._dense, output_norms(self._dense.outputs)
        units, scales = len(size), np.stack([size, size**2, size])
        unit_size = torch.from_numpy(size).to(torch.float32)[:, None, None]
        self.norms = np.repeat(size[:, None], draws, axis=1)
        self.errors = np.empty((1, len(patterns), len(METRICS), units, draws, len(budgets)))
        self.bias_square = np.empty((len(patterns), units, len(budgets)))
        bias = {(p, b): BiasSum() for p in range(len(patterns)) for b in range(len(budgets))}
        is_random = [PATTERNS[name].is_random for name in patterns]
        for draw in range(draws):
            # a choice that is not random need not be repeated
            chosen = [p for p in range(len(patterns)) if draw == 0 or is_random[p]]
            names = [patterns[p] for p in chosen]
            for i, b, outputs in pattern_outputs(
                names, budgets, self._view, self._logits, self._values,
                lambda draw=draw: random_stream(  # type: ignore[misc]
                    seed, "sparse selection", passage, self.layer, draw
                ),
            ):  # fmt: skip
                p = chosen[i]
                found = dense.errors(outputs) / scales
                if is_random[p]:
                    self.errors[0, p, :, :, draw, b] = found
                    bias[p, b].add((outputs - dense.outputs) / unit_size)
                else:
                    self.errors[0, p, :, :, :, b] = found[..., None]
        for (p, b), at in bias.items():
            # without chance in it, all of an error is its expectation
            fixed = self.errors[0, p, METRICS.index("map"), :, 0, b] ** 2
            self.bias_square[p, :, b] = at.value() if is_random[p] else fixed
        del self._logits, self._values
