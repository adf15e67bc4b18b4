"""Errors of patterns against dense attention: output by output, of the mean, of the covariance.

All errors are relative to the size of dense outputs: with ``s`` their root mean square norm over
the queries, errors of the map and of the mean are divided by ``s``, those of the covariance
(Frobenius norm) by ``s^2``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
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
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.study import Setup, Work
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


# Synthetic tokens: replicates of a whole sequence, all patterns and budgets on each. A query is a
# token too; queries are drawn once, and every replicate draws the keys anew.


def law_work(settings: SparseLawSettings, executor: CellExecutor) -> Work:
    """Draw the queries; each block of replicates is a task."""
    tokens, head, seed = settings.tokens, settings.head, settings.seed
    # away from global tokens and from the ends
    middle = np.arange(tokens // 4, tokens - tokens // 4)
    positions = query_positions(
        middle, settings.query_count, random_stream(seed, "sparse positions")
    )
    queries = head.law.sample(len(positions), random_stream(seed, "sparse queries"))
    source = executor.share((head, tokens, positions, queries))
    tasks = {
        name: Task(name, measure_law, (source, settings.patterns, settings.budgets, numbers, seed))
        for name, numbers in settings.blocks.items()
    }
    return Setup(settings), lambda run: [tasks]


@torch.inference_mode()
def measure_law(
    source: tuple[WeightHead, int, NDArray[np.int64], Array],
    patterns: Sequence[str],
    budgets: Sequence[int],
    replicates: Sequence[int],
    seed: int,
) -> xr.Dataset:
    """Errors of some replicates.

    Parameters
    ----------
    source
        The head that turns tokens into tilts, keys and values; number of tokens; positions beside
        which the queries stand, and the queries.
    patterns, budgets
        Names, and numbers of keys.
    replicates
        Numbers of the replicates.
    seed
        Seed of tokens and selections.
    """

    def tensor(array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(torch.float32)

    head, count, positions, queries = source
    view = View.of(positions, count)
    tilts = tensor(head.tokens(queries).tilts)
    errors = np.empty((len(patterns), len(METRICS), len(replicates), len(budgets)))
    norms = np.empty(len(replicates))
    for i, replicate in enumerate(replicates):
        rng = random_stream(seed, "sparse tokens", replicate)
        tokens = head.tokens(head.law.sample(count, rng))
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
