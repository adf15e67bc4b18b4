"""Errors of patterns against a reference: output by output, of the mean, of the covariance.

All errors are relative to the size of dense outputs: with ``s`` their root mean square norm over
the queries, errors of the map and of the mean are divided by ``s``, those of the covariance
(Frobenius norm) by ``s^2``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models import AnyModel, LayerCapture, LoadedModel, opened_model
from esscher.engine.patterns import PATTERNS, View
from esscher.engine.text import Passage, first_passages, visit_passages
from esscher.math.heads import WeightHead
from esscher.math.laws import Gaussian, Law
from esscher.math.limits import limit_map
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell, CellRun
from esscher.runs.study import OneBatch
from esscher.studies.sparse.result import METRICS, Reference, SparseCell
from esscher.studies.sparse.study import PREFIX, SparseLawStudy, SparseStudy


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


# Real heads: the dense attention of a model on a passage, and what patterns make of it.
#
# In a decoder the queries come from the last quarter of the passage, in an encoder from its middle
# half; each sees all that it sees in the model, sinks and delimiters included.


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
                names,
                budgets,
                self._view,
                self._logits,
                self._values,
                lambda draw=draw: random_stream(  # type: ignore[misc]
                    seed, "sparse selection", passage, self.layer, draw
                ),
            ):
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


# Synthetic tokens: replicates of a whole sequence, all patterns and budgets on each.
#
# Sequences have a known marginal: independent tokens, or Gaussian AR(1). A query is a token too:
# for correlated tokens the continuation ``q = rho x_i + sqrt(1 - rho^2) xi`` of a key, as the next
# token of a text is. Queries are drawn once; every replicate draws the keys anew, given them.


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
            patterns,
            budgets,
            view,
            logits,
            values,
            lambda number=replicate: random_stream(seed, "sparse selection", number),  # type: ignore[misc]
        ):
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


# How the measurements of a study are kept as cells of a run.
#
# A cell is a block of replicates (laws) or a passage (models). Its table has one row per error:
# layer, head, pattern, reference, metric, replicate, budget, error; then the squared biases.

#: Name of the rows that hold squared biases; they belong to no replicate.
BIAS, NO_REPLICATE = "bias_square", -1


def make_cell(measured: Measurement, patterns: Sequence[str], budgets: Sequence[int]) -> Cell:
    """What is stored of a measurement."""
    about = SparseCell(
        units=measured.units,
        references=measured.references,
        shape=measured.errors.shape,
        norms=_rows(measured.norms),
        visible=measured.visible,
        dense_limit=_rows(measured.dense_limit),
    )
    return Cell(about, _table(measured, patterns, budgets))


def read_measurements(
    cells: Mapping[str, Cell], run: CellRun, patterns: int, budgets: int
) -> list[Measurement]:
    """Return the measurements of cells, all of the same heads, patterns and budgets.

    Parameters
    ----------
    cells
        By name.
    run
        The run that they are from.
    patterns, budgets
        How many there are.

    Raises
    ------
    InputError
        If one is damaged.
    """
    found: list[Measurement] = []
    for name, cell in cells.items():
        try:
            measured = _measurement(cell, patterns, budgets)
            if found and (measured.units, measured.references) != (
                found[0].units,
                found[0].references,
            ):
                raise InputError("its heads are not those of the other cells")
        except (ValueError, LookupError, TypeError) as error:
            raise run.damaged(name, error) from error
        found.append(measured)
    return found


def _measurement(cell: Cell, patterns: int, budgets: int) -> Measurement:
    about: SparseCell = cell.about
    shape, units, references = about.shape, len(about.units), len(about.references)
    replicates = shape[4]
    if about.references not in (("dense",), ("dense", "limit")):
        raise InputError(f"its references are {', '.join(about.references)}")
    if shape != (references, patterns, len(METRICS), units, replicates, budgets):
        raise InputError(f"its shape is {list(shape)}, which is not that of the run")
    values = cell.table["error"].to_numpy(dtype=np.float64)
    count = int(np.prod(shape))
    limits = replicates if references > 1 else 0
    return Measurement(
        units=about.units,
        references=about.references,
        errors=values[:count].reshape(shape),
        bias_square=values[count:].reshape(patterns, units, budgets),
        norms=np.array(about.norms, dtype=np.float64).reshape(units, replicates),
        visible=about.visible,
        dense_limit=np.array(about.dense_limit, dtype=np.float64).reshape(len(METRICS), limits),
    )


def _rows(values: Array) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())


def _table(measured: Measurement, patterns: Sequence[str], budgets: Sequence[int]) -> pd.DataFrame:
    units = np.asarray(measured.units, dtype=np.int64)
    sizes = np.asarray(budgets, dtype=np.int64)
    r, p, m, u, i, b = (axis.ravel() for axis in np.indices(measured.errors.shape))
    errors = {
        "layer": units[u, 0],
        "head": units[u, 1],
        "pattern": np.array(patterns)[p],
        "reference": np.array(measured.references)[r],
        "metric": np.array(METRICS)[m],
        "replicate": i.astype(np.int64),
        "budget": sizes[b],
        "error": measured.errors.ravel(),
    }
    p, u, b = (axis.ravel() for axis in np.indices(measured.bias_square.shape))
    bias = {
        "layer": units[u, 0],
        "head": units[u, 1],
        "pattern": np.array(patterns)[p],
        "reference": np.full(len(p), "dense"),
        "metric": np.full(len(p), BIAS),
        "replicate": np.full(len(p), NO_REPLICATE, dtype=np.int64),
        "budget": sizes[b],
        "error": measured.bias_square.ravel(),
    }
    return pd.concat([pd.DataFrame(errors), pd.DataFrame(bias)], ignore_index=True)


# What is computed: a passage of a model's text, or a block of replicates, is a cell.


def read_text(study: SparseStudy, loaded: LoadedModel, model: AnyModel) -> OneBatch:
    """Take the passages that are asked for."""
    found = first_passages(loaded, study.text, study.passages, study.context, study.column)
    study = study.fitted(found, loaded.outline, context=found.context, passages=len(found))
    study = replace(study, model=loaded.record, text=found.record)
    asked = {
        "patterns": study.patterns,
        "budgets": study.budgets,
        "layers": study.layers,
        "heads": study.heads,
        "queries": study.query_count,
        "draws": study.draws,
        "seed": study.seed,
    }
    tasks = {
        name: Task(name, _passage_cell, (model, passage, asked))
        for name, passage in zip(study.cells(), found, strict=True)
    }
    return OneBatch(study, tasks)


def _passage_cell(model: AnyModel, passage: Passage, asked: dict[str, Any]) -> Cell:
    """One passage that a model reads."""
    with opened_model(model) as loaded:
        measured = measure_passage(loaded, passage, **asked)
    return make_cell(measured, asked["patterns"], asked["budgets"])


def draw_queries(study: SparseLawStudy, executor: CellExecutor) -> OneBatch:
    """Draw the queries, which all replicates share."""
    head = study.head
    sequences = make_sequences(head, study.tokens, study.correlation, study.query_count, study.seed)
    source = executor.share((head, sequences))
    tasks = {
        name: Task(
            name, _block_cell, (source, study.patterns, study.budgets, replicates, study.seed)
        )
        for name, replicates in study.blocks().items()
    }
    return OneBatch(study, tasks)


def _block_cell(
    source: tuple[WeightHead, Sequences],
    patterns: tuple[str, ...],
    budgets: tuple[int, ...],
    replicates: range,
    seed: int,
) -> Cell:
    """Some replicates of a law."""
    head, sequences = source
    measured = measure_laws(head, sequences, patterns, budgets, replicates, seed)
    return make_cell(measured, patterns, budgets)
