"""Errors of patterns against dense attention: output by output, of the mean, of the covariance.

All errors are relative to the size of dense outputs: with ``s`` their root mean square norm over
the queries, errors of the map and of the mean are divided by ``s``, those of the covariance
(Frobenius norm) by ``s^2``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.patterns import PATTERNS, View
from esscher.engine.sampled.sizes import METRICS, PREFIX
from esscher.engine.text.collect import visit_passages
from esscher.engine.text.packing import Passage
from esscher.math.heads import WeightHead
from esscher.math.laws import Gaussian, Law
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.study import OneBatch, Setup
from esscher.studies.sparse.study import (
    LawErrors,
    PassageErrors,
    SparseLawSettings,
    SparseSettings,
)


def pattern_errors(
    patterns: Sequence[str],
    budgets: Sequence[int],
    view: View,
    logits: Tensor,
    values: Tensor,
    stream: Callable[[], np.random.Generator],
) -> tuple[Array, Array]:
    """Errors [pattern, metric, unit, budget] of patterns, and norms of the dense outputs [unit].

    Parameters
    ----------
    patterns, budgets
        Names, and numbers of keys.
    view
        The queries, and what they may see.
    logits, values
        [units, queries, keys] with -inf where a key is not visible, and [units, keys, d].
    stream
        Makes the random stream; every pattern and budget gets the same one, so that budgets are
        nested and patterns differ by nothing but themselves.
    """
    dense = torch.softmax(logits, dim=-1) @ values
    dense_mean, dense_covariance = _moments(dense)
    norms = dense.to(torch.float64).square().sum(-1).mean(-1).sqrt().cpu().numpy()
    scales = np.stack([norms, norms**2, norms])
    errors = np.empty((len(patterns), len(METRICS), len(norms), len(budgets)))
    for p, name in enumerate(patterns):
        for b, budget in enumerate(budgets):
            sight = PATTERNS[name].select(view, budget, stream(), logits)
            outputs = sight.attend(logits, values)
            mean, covariance = _moments(outputs)
            square = (outputs - dense).to(torch.float64).square().sum(-1).mean(-1)
            absolute = (
                torch.linalg.vector_norm(mean - dense_mean, dim=-1),
                torch.linalg.vector_norm(covariance - dense_covariance, dim=(-2, -1)),
                square.sqrt(),
            )
            errors[p, :, :, b] = torch.stack(absolute).cpu().numpy() / scales
    return errors, norms


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


# Real heads. In a decoder the queries come from the last quarter of the passage, in an encoder from
# its middle half; each sees all that it sees in the model, sinks and delimiters included.


def choose_queries(passage: Passage, causal: bool, count: int, seed: int) -> NDArray[np.int64]:
    """Positions of the queries: tokens of the text, not delimiters."""
    length = len(passage.ids)
    inside = np.arange(length)
    inside = inside[int(PREFIX * length) :] if causal else inside[length // 4 : -(length // 4)]
    rng = random_stream(seed, "sparse positions", passage.number)
    return query_positions(inside[~passage.is_delimiter[inside]], count, rng)


def measure_passage(
    loaded: LoadedModel, passage: Passage, settings: SparseSettings
) -> PassageErrors:
    """Errors of the heads of a model on one passage, mean over draws."""
    asking = choose_queries(passage, loaded.causal, settings.query_count, settings.seed)
    if not len(asking):
        raise InputError(f"passage {passage.number} has no text tokens to ask with")
    patterns, budgets, heads = settings.patterns, settings.budgets, settings.heads
    is_random = np.array([PATTERNS[name].is_random for name in patterns])
    errors: list[Array] = []
    norms: list[Array] = []
    visible: list[float] = []

    @torch.inference_mode()
    def measure(passage: Passage, capture: LayerInputs) -> None:
        layer = capture.layer
        view = View.of(asking, capture.k.shape[2], causal=capture.causal, window=capture.window)
        fewest = int(view.counts.min())
        if fewest <= budgets[-1]:
            raise InputError(
                f"queries of layer {layer} see as few as {fewest} keys, but the largest "
                f"budget is {budgets[-1]}; choose smaller budgets, or leave the layer out"
            )
        # logits only from the first query on: a decoder's queries are the end of its passage
        start = int(asking[0])
        rows = torch.from_numpy(asking - start)
        logits = torch.stack(
            [capture.logits(0, head, slice(start, None), torch.float32)[rows] for head in heads]
        )
        values = torch.stack([capture.v[0, head // capture.group] for head in heads])
        values = values.to(torch.float32)
        drawn = np.empty((settings.draws, len(patterns), len(METRICS), len(heads), len(budgets)))
        for draw in range(settings.draws):
            # a choice that is not random need not be repeated
            chosen = is_random | (draw == 0)
            drawn[draw, chosen], size = pattern_errors(
                [name for name, there in zip(patterns, chosen, strict=True) if there],
                budgets,
                view,
                logits,
                values,
                lambda draw=draw: random_stream(  # type: ignore[misc]
                    settings.seed, "sparse selection", passage.number, layer, draw
                ),
            )
            if draw == 0:
                norms.append(size)
        drawn[:, ~is_random] = drawn[:1, ~is_random]
        errors.append(drawn.mean(axis=0))
        visible.append(float(view.counts.mean()))

    visit_passages(loaded, [passage], measure, layers=settings.layers)
    data = PassageErrors.new(
        pattern=patterns,
        metric=METRICS,
        layer=settings.layers,
        head=heads,
        replicate=[passage.number],
        budget=budgets,
    )
    data.error = np.stack(errors, axis=2)[:, :, :, :, None]
    data.norm = np.concatenate(norms).mean()
    data.visible = np.mean(visible)
    return data


# Synthetic tokens: replicates of a whole sequence, all patterns and budgets on each.
#
# Sequences have a known marginal: independent tokens, or Gaussian AR(1). A query is a token too:
# for correlated tokens the continuation ``q = rho x_i + sqrt(1 - rho^2) xi`` of a key, as the next
# token of a text is. Queries are drawn once; every replicate draws the keys anew, given them.


def law_work(settings: SparseLawSettings, executor: CellExecutor) -> OneBatch:
    """Draw the queries; each block of replicates is a task."""
    tokens, head = settings.tokens, settings.head
    # away from global tokens and from the ends
    middle = np.arange(tokens // 4, tokens - tokens // 4)
    rng = random_stream(settings.seed, "sparse positions")
    positions = query_positions(middle, settings.query_count, rng)
    sequences = Sequences.make(head.law, tokens, settings.correlation, positions, settings.seed)
    source = executor.share((head, sequences))
    patterns, budgets = settings.patterns, settings.budgets
    tasks = {
        name: Task(name, measure_law, (source, patterns, budgets, replicates, settings.seed))
        for name, replicates in settings.blocks.items()
    }
    return OneBatch(Setup(settings), tasks)


@torch.inference_mode()
def measure_law(
    source: tuple[WeightHead, Sequences],
    patterns: Sequence[str],
    budgets: Sequence[int],
    replicates: Sequence[int],
    seed: int,
) -> xr.Dataset:
    """Errors of some replicates.

    Parameters
    ----------
    source
        The head that turns tokens into tilts, keys and values, and where tokens come from.
    patterns, budgets
        Names, and numbers of keys.
    replicates
        Numbers of the replicates.
    seed
        Seed of tokens and selections.
    """

    def tensor(array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(torch.float32)

    head, sequences = source
    view = View.of(sequences.positions, sequences.tokens)
    tilts = tensor(head.tokens(sequences.queries).tilts)
    errors = np.empty((len(patterns), len(METRICS), len(replicates), len(budgets)))
    norms = np.empty(len(replicates))
    for i, replicate in enumerate(replicates):
        tokens = head.tokens(sequences.draw(random_stream(seed, "sparse tokens", replicate)))
        errors[:, :, i : i + 1], norms[i : i + 1] = pattern_errors(
            patterns,
            budgets,
            view,
            (tilts @ tensor(tokens.keys).T)[None],
            tensor(tokens.values)[None],
            lambda number=replicate: random_stream(seed, "sparse selection", number),  # type: ignore[misc]
        )
    data = LawErrors.new(pattern=patterns, metric=METRICS, replicate=replicates, budget=budgets)
    data.error, data.norm, data.visible = errors, norms.mean(), view.counts.mean()
    return data.dataset


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
        rng = random_stream(seed, "sparse queries")
        if correlation == 0:
            return cls(law, tokens, 0.0, positions, law.sample(len(positions), rng))
        if not isinstance(law, Gaussian):
            raise InputError(
                f"correlation is {correlation:g}, but sequences with a known marginal are made of "
                "Gaussian tokens only; choose the law gaussian, or leave the correlation out"
            )
        empty = cls(law, tokens, correlation, positions, np.zeros((0, law.dim)))
        return replace(empty, queries=empty._unconditional(rng)[1])

    def draw(self, rng: np.random.Generator) -> Array:
        """The tokens of one sequence, of shape (tokens, d), given the queries."""
        if self.correlation == 0:
            return self.law.sample(self.tokens, rng)
        sequence, queries = self._unconditional(rng)
        # Gaussian conditioning: a path that had other queries, moved by what they tell about it
        weights = scipy.linalg.cho_solve((self._factor, True), self.queries - queries)
        return np.asarray(sequence + self._cross @ weights)

    def _unconditional(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """A sequence and its queries, drawn together."""
        rho, scale = self.correlation, np.sqrt(1 - self.correlation**2)
        noise = rng.standard_normal((self.tokens, self.law.dim))
        noise[0] /= scale  # the first token has the stationary law
        sequence = np.asarray(scipy.signal.lfilter([scale], [1.0, -rho], noise, axis=0))
        innovations = rng.standard_normal((len(self.positions), self.law.dim))
        return sequence, rho * sequence[self.positions] + scale * innovations

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
