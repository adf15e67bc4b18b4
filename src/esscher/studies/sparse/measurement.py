"""Errors of patterns against a reference: output by output, of the mean, of the covariance.

All errors are relative to the size of dense outputs: with ``s`` their root mean square norm over
the queries, errors of the map and of the mean are divided by ``s``, those of the covariance
(Frobenius norm) by ``s^2``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.validation import Array
from esscher.engine.patterns import PATTERNS, View
from esscher.studies.sparse.records import Reference


@dataclass(frozen=True, eq=False)
class Measurement:
    """Errors of one cell of a study.

    Attributes
    ----------
    units
        Pairs (layer, head); one pair (0, 0) for a law.
    references
        What outputs are compared with: ``"dense"``, and ``"limit"`` where there is one.
    errors
        Relative errors, axes [reference, pattern, metric, unit, replicate, budget].
    bias_square
        Unbiased estimate of the squared norm of the expected error, mean over the queries and
        relative, axes [pattern, unit, budget]; may be negative by chance, ``nan`` where there was
        one replicate only.
    norms
        Root mean square norm of dense outputs, axes [unit, replicate].
    visible
        Mean number of keys that a query may see.
    dense_limit
        Relative errors of dense attention against the limit, axes [metric, replicate]; empty
        without a limit.
    """

    units: tuple[tuple[int, int], ...]
    references: tuple[Reference, ...]
    errors: Array
    bias_square: Array
    norms: Array
    visible: float
    dense_limit: Array


@dataclass(frozen=True, eq=False)
class OutputReference:
    """Outputs to compare with, [units, queries, d], and their moments."""

    outputs: Tensor
    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, outputs: Tensor) -> OutputReference:
        """Keep outputs and compute their moments."""
        return cls(outputs, *_moments(outputs))

    def errors(self, outputs: Tensor) -> Array:
        """Absolute errors [metric, unit] of other outputs at the same queries."""
        mean, covariance = _moments(outputs)
        square = (outputs - self.outputs).to(torch.float64).square().sum(-1).mean(-1)
        found = (
            torch.linalg.vector_norm(mean - self.mean, dim=-1),
            torch.linalg.vector_norm(covariance - self.covariance, dim=(-2, -1)),
            square.sqrt(),
        )
        return torch.stack(found).cpu().numpy()


def output_norms(outputs: Tensor) -> Array:
    """Root mean square norm over the queries, [unit]."""
    return np.asarray(outputs.to(torch.float64).square().sum(-1).mean(-1).sqrt().cpu().numpy())


class BiasSum:
    """Sums of error vectors over replicates, for the size of their expectation.

    For independent errors e_1..e_B of a query, ``(|sum e|^2 - sum |e|^2) / (B (B - 1))`` has the
    expectation ``|E e|^2``: the part of the squared error that no averaging removes.
    """

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._squares: Tensor | None = None
        self._count = 0

    def add(self, error: Tensor) -> None:
        """One more replicate: error vectors [unit, query, d], relative."""
        vector = error.to(torch.float32)
        square = vector.square().sum(-1)
        if self._sum is None or self._squares is None:
            self._sum, self._squares = vector.clone(), square
        else:
            self._sum += vector
            self._squares += square
        self._count += 1

    def value(self) -> Array:
        """Mean over the queries, [unit]; ``nan`` for fewer than two replicates."""
        assert self._sum is not None
        assert self._squares is not None
        if self._count < 2:
            return np.full(len(self._sum), np.nan)
        total = self._sum.square().sum(-1) - self._squares
        pairs = self._count * (self._count - 1)
        return np.asarray((total.to(torch.float64).mean(-1) / pairs).cpu().numpy())


def pattern_outputs(
    names: Sequence[str],
    budgets: Sequence[int],
    view: View,
    logits: Tensor,
    values: Tensor,
    stream: Callable[[], np.random.Generator],
) -> Iterator[tuple[int, int, Tensor]]:
    """Outputs of every pattern at every budget, with their numbers.

    Parameters
    ----------
    names, budgets
        The patterns, by name, and numbers of keys.
    view
        The queries, and what they may see.
    logits, values
        [units, queries, keys] with -inf where a key is not visible, and [units, keys, d].
    stream
        Makes the random stream; every pattern and budget gets the same one, so that budgets are
        nested and patterns differ by nothing but themselves.
    """
    for p, name in enumerate(names):
        for b, budget in enumerate(budgets):
            sight = PATTERNS[name].select(view, budget, stream(), logits)
            yield p, b, sight.attend(logits, values)


def _moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [unit, d] and covariance [unit, d, d]; centred first, so that float32 suffices."""
    mean = outputs.mean(-2, dtype=torch.float64)
    centred = outputs - mean.to(outputs.dtype)[:, None]
    covariance = (centred.transpose(-2, -1) @ centred).to(torch.float64) / outputs.shape[-2]
    return mean, covariance


def query_positions(
    candidates: NDArray[np.int64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Some of the positions at random, in increasing order; all if there are no more."""
    if len(candidates) <= count:
        return candidates
    return np.sort(rng.choice(candidates, size=count, replace=False))
