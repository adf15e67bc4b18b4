"""Synthetic tokens: replicates of a whole sequence, all patterns and budgets on each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.patterns import View
from esscher.math.heads import WeightHead
from esscher.math.limits import limit_map
from esscher.studies.sparse.measurement import (
    BiasSum,
    Measurement,
    OutputReference,
    output_norms,
    pattern_outputs,
    query_positions,
)
from esscher.studies.sparse.records import METRICS, Reference
from esscher.studies.sparse.sequences import Sequences


def make_sequences(
    head: WeightHead, tokens: int, correlation: float, queries: int, seed: int
) -> Sequences:
    """Sequences with queries in their middle half, away from global tokens and from the ends."""
    middle = np.arange(tokens // 4, tokens - tokens // 4)
    positions = query_positions(middle, queries, random_stream(seed, "sparse positions"))
    return Sequences.make(head.law, tokens, correlation, positions, seed)


@torch.inference_mode()
def measure_laws(
    head: WeightHead,
    sequences: Sequences,
    patterns: Sequence[str],
    budgets: Sequence[int],
    replicates: Sequence[int],
    seed: int,
) -> Measurement:
    """Errors of some replicates.

    Parameters
    ----------
    head
        The head that turns tokens into tilts, keys and values.
    sequences
        Where tokens come from.
    patterns, budgets
        Names, and numbers of keys.
    replicates
        Numbers of the replicates.
    seed
        Seed of tokens and selections.
    """
    view = View.of(sequences.positions, sequences.tokens)
    tilts = head.tokens(sequences.queries).tilts
    limit = limit_map(head, tilts=tilts)
    references: tuple[Reference, ...] = ("dense", "limit") if limit.exists.all() else ("dense",)
    shape = (len(references), len(patterns), len(METRICS), 1, len(replicates), len(budgets))
    errors, norms = np.empty(shape), np.empty((1, len(replicates)))
    dense_limit = np.empty((len(METRICS), len(replicates) if len(references) > 1 else 0))
    bias = [[BiasSum() for _ in budgets] for _ in patterns]
    exact = OutputReference.of(_tensor(limit.values)[None]) if len(references) > 1 else None
    for i, replicate in enumerate(replicates):
        tokens = head.tokens(sequences.draw(random_stream(seed, "sparse tokens", replicate)))
        values = _tensor(tokens.values)[None]
        logits = (_tensor(tilts) @ _tensor(tokens.keys).T)[None]
        dense = OutputReference.of(torch.softmax(logits, dim=-1) @ values)
        norms[:, i] = size = output_norms(dense.outputs)
        scales = _scales(size)
        if exact is not None:
            dense_limit[:, i] = (exact.errors(dense.outputs) / scales)[:, 0]
        for p, b, outputs in pattern_outputs(
            patterns, budgets, view, logits, values,
            lambda number=replicate: random_stream(seed, "sparse selection", number),  # type: ignore[misc]
        ):  # fmt: skip
            errors[0, p, :, :, i, b] = dense.errors(outputs) / scales
            if exact is not None:
                errors[1, p, :, :, i, b] = exact.errors(outputs) / scales
            bias[p][b].add((outputs - dense.outputs) / float(size[0]))
    square = np.array([[at.value() for at in row] for row in bias])
    return Measurement(
        units=((0, 0),),
        references=references,
        errors=errors,
        bias_square=np.moveaxis(square, 1, 2),
        norms=norms,
        visible=float(view.counts.mean()),
        dense_limit=dense_limit,
    )


def _scales(norms: Array) -> Array:
    """What makes errors relative, [metric, unit]."""
    return np.stack([norms, norms**2, norms])


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(torch.float32)
