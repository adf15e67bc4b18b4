"""Synthetic tokens: replicates of a whole sequence, all patterns and budgets on each.

Sequences have a known marginal: independent tokens, or Gaussian AR(1). A query is a token too: it
stands beside a key, and for correlated tokens it is the continuation of that key,
``q = rho x_i + sqrt(1 - rho^2) xi``, as the next token of a text is. With rho = 0 it is independent
of all keys. Queries are drawn once; every replicate draws the keys anew, given the queries. So the
expected error of a query can be estimated: its bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.patterns import View
from esscher.math.heads import WeightHead
from esscher.math.laws import Gaussian, Law
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


@dataclass(frozen=True, eq=False)
class Sequences:
    """Random sequences around given queries.

    Attributes
    ----------
    law
        Law of a token.
    tokens
        Length of a sequence.
    correlation
        rho between neighbours; other than 0 only for standard Gaussian tokens.
    positions
        Positions beside which the queries stand.
    queries
        The queries, tokens of shape (count, d).
    """

    law: Law
    tokens: int
    correlation: float
    positions: NDArray[np.int64]
    queries: Array

    @classmethod
    def make(
        cls, law: Law, tokens: int, correlation: float, positions: NDArray[np.int64], seed: int
    ) -> Sequences:
        """Draw the queries."""
        if not -1 < correlation < 1:
            raise InputError(
                f"correlation is {correlation:g}; it must lie strictly between -1 and 1"
            )
        rng = random_stream(seed, "sparse queries")
        if correlation == 0:
            queries = law.sample(len(positions), rng)
            return cls(law, tokens, 0.0, positions, queries)
        if not isinstance(law, Gaussian):
            raise InputError(
                f"correlation is {correlation:g}, but sequences with a known marginal are made of "
                "Gaussian tokens only; choose the law gaussian, or leave the correlation out"
            )
        empty = cls(law, tokens, correlation, positions, np.zeros((0, law.dim)))
        return cls(law, tokens, correlation, positions, empty._together(rng)[1])

    def draw(self, rng: np.random.Generator) -> Array:
        """The tokens of one sequence, of shape (tokens, d), given the queries."""
        if self.correlation == 0:
            return self.law.sample(self.tokens, rng)
        sequence, queries = self._together(rng)
        # Gaussian conditioning: a path that had other queries, moved by what they tell about it
        weights = scipy.linalg.cho_solve((self._factor, True), self.queries - queries)
        return np.asarray(sequence + self._cross @ weights)

    def _together(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """A sequence and its queries, unconditionally."""
        rho, scale = self.correlation, np.sqrt(1 - self.correlation**2)
        noise = rng.standard_normal((self.tokens, self.law.dim))
        noise[0] /= scale  # the first token has the stationary law
        sequence = np.asarray(scipy.signal.lfilter([scale], [1.0, -rho], noise, axis=0))
        beside = rng.standard_normal((len(self.positions), self.law.dim))
        return sequence, rho * sequence[self.positions] + scale * beside

    @cached_property
    def _cross(self) -> Array:
        """Correlation of tokens and queries, [tokens, queries]."""
        distance = np.abs(np.arange(self.tokens)[:, None] - self.positions)
        return np.asarray(self.correlation ** (distance + 1.0))

    @cached_property
    def _factor(self) -> Array:
        """Cholesky factor of the correlation matrix of the queries."""
        rho = self.correlation
        distance = np.abs(self.positions[:, None] - self.positions)
        matrix = rho ** (distance + 2.0) + (1 - rho**2) * np.eye(len(self.positions))
        return np.asarray(scipy.linalg.cholesky(matrix, lower=True))
