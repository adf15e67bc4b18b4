"""What is computed: a layer is a cell in pooled mode, a passage in context mode."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.options import AtMost
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models.choice import AnyModel, opened_model
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.models.weights import HeadWeights, head_weights
from esscher.engine.sampled.context import delimiter_shares, measure_context, split
from esscher.engine.sampled.layer import HeadNumbers, output_gram
from esscher.engine.sampled.pooled import PassageMoments, measure_pooled
from esscher.engine.sampled.sizes import FEWEST_KEYS, needed_context
from esscher.engine.text.collect import CloudFile, cloud_bytes, collect_cloud, visit_passages
from esscher.engine.text.packing import Passage, PassageSet, read_passages
from esscher.math.statistics import received_exponent, resampling_counts
from esscher.math.statistics.intervals import ByMetric, Ends
from esscher.math.tails.candidates import Cloud
from esscher.math.tails.cloud import QUICK, cloud_tails
from esscher.math.theory import exponents
from esscher.math.theory.cloud import EFFORT, Predicted, cloud_errors
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell, CellRun
from esscher.studies.probe.assemble import MeasuredLayer, make_cell
from esscher.studies.probe.result import TOLERANCES, HeadStatistics, PredictedError
from esscher.studies.probe.study import ProbeStudy

#: Name of the cloud in a run's directory.
CLOUD = "cloud"
#: Clouds of fewer bytes are kept among temporary files.
SMALL_CLOUD = 1_000_000_000
#: Share of the free disk that a cloud may take.
SHARE = 0.9


def read_text(
    study: ProbeStudy, loaded: LoadedModel, model: AnyModel, executor: CellExecutor
) -> ProbeWork:
    """Cut the text into passages."""
    pooled, context = study.mode == "pooled", study.context
    least = FEWEST_KEYS if pooled else needed_context(loaded.outline)
    passages = read_passages(
        loaded, study.text, tokens=study.tokens, context=context, column=study.column, least=least
    )
    longest = max(len(passage.ids) for passage in passages)
    if not pooled and isinstance(context, AtMost):
        context = min(int(context), longest)
    if not pooled and context > longest:
        raise InputError(
            f"{passages.source!r} has only {passages.text_tokens} tokens, less than a passage of "
            f"{context}; give more text, or a context of at most {longest}"
        )
    tokens = min(int(study.tokens), passages.text_tokens)
    study = replace(study, tokens=tokens, context=context).fill(loaded.outline)
    study = replace(study, model=loaded.record, text=passages.record)
    return ProbeWork(study, loaded, model, passages, executor)


@dataclass(frozen=True, eq=False)
class ProbeWork:
    """A probe that is ready: see :class:`esscher.runs.old_study.Work`."""

    study: ProbeStudy
    loaded: LoadedModel
    model: AnyModel
    passages: PassageSet
    executor: CellExecutor

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield layers, as many as the disk has room for, or all passages."""
        if self.study.mode == "pooled":
            yield from self._layers(run)
            return
        study = replace(self.study, executor=None)  # workers know nothing of who computes
        names = study.cells()
        draws = -(-study.samples // len(names))
        yield {
            name: Task(name, _passage_cell, (self.model, passage, draws, study))
            for name, passage in zip(names, self.passages.passages, strict=False)
        }

    def _layers(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield layers whose tokens the disk has room for; they are gone before the next ones.

        A small cloud of tokens lies where temporary files go. A large one, and one that other
        machines read, lies in the run's directory until its layers are measured.
        """
        study, loaded = replace(self.study, executor=None), self.loaded
        layers = [int(name.removeprefix("layer-")) for name in run.missing(study.cells())]
        if not layers:
            return
        linear = [layer for layer in layers if head_weights(loaded, layer).linear]
        moments = PassageMoments(self.passages, study.tokens, linear)

        def watch(read: Sequence[Passage], capture: LayerInputs) -> None:
            moments.take(read, replace(capture, scaling=study.alpha * capture.scaling))

        layer_bytes = cloud_bytes(
            rows=study.tokens,
            layers=1,
            heads=len(study.heads),
            key_heads=loaded.shape.key_heads,
            head_dim=loaded.shape.head_dim,
        )
        place = run.folder / CLOUD
        while layers:
            shutil.rmtree(place, ignore_errors=True)  # of a run that was stopped
            free = shutil.disk_usage(run.folder).free
            count = int(SHARE * free / layer_bytes)
            if count < 1:
                raise InputError(
                    f"the tokens of one layer take {layer_bytes / 1e9:.1f} GB, but "
                    f"{run.folder} has only {free / 1e9:.1f} GB left; choose fewer tokens or "
                    "heads, or another disk for the run"
                )
            batch = layers[:count]
            doing = f"reading the text for layers {batch[0]} to {batch[-1]}: passage"

            def progress(done: int, total: int, doing: str = doing) -> None:
                run.doing(f"{doing} {done:,} of {total:,}")

            large = self.executor.remote or len(batch) * layer_bytes >= SMALL_CLOUD
            cloud = collect_cloud(
                loaded,
                self.passages,
                tokens=study.tokens,
                layers=batch,
                heads=study.heads,
                folder=place if large else None,
                progress=progress,
                watch=watch,
            )
            run.doing("")
            tokens = self.executor.share(cloud)
            tasks = {}
            for layer in batch:
                name, shares = f"layer-{layer}", moments.delimiters[layer]
                covariance = moments.covariance(layer)
                arguments = (self.model, tokens, layer, shares, covariance, study)
                tasks[name] = Task(name, _layer_cell, arguments)
            yield tasks
            layers = [layer for layer in layers if layer not in batch]
            shutil.rmtree(place, ignore_errors=True)


def _layer_cell(
    model: AnyModel,
    cloud: CloudFile,
    layer: int,
    shares: Array,
    covariance: Array | None,
    study: ProbeStudy,
) -> Cell:
    """One layer in pooled mode; on another machine, the cloud is mapped from its files."""
    with opened_model(model) as loaded:
        weights = head_weights(loaded, layer)
        measured, numbers = measure_pooled(
            cloud,
            layer,
            study.sizes,
            study.samples,
            study.seed,
            output_gram(weights.W_o[list(study.heads)]),
            study.alpha,
        )
        psi = one_sided_psi(weights, covariance, study.alpha)
        token_ids = cloud.token_ids
        stats = tuple(
            describe_head(
                number,
                study.sizes,
                study.seed,
                lambda row: str(loaded.tokenizer.decode([int(token_ids[row])])),
                context=loaded.max_positions,
                delimiters=float(shares[head]),
                psi=None if psi is None else psi[head],
            )
            for head, number in zip(measured.heads, numbers, strict=True)
        )
    return make_cell([(measured, stats)])


def _passage_cell(model: AnyModel, passage: Passage, draws: int, study: ProbeStudy) -> Cell:
    """One passage in context mode."""
    with opened_model(model) as loaded:
        rng = random_stream(study.seed, "probe queries", passage.number)
        asking, keys = split(len(passage.ids), passage.is_delimiter, loaded.causal, rng)
        token_ids, layers = passage.ids[keys], list[MeasuredLayer]()

        def measure(passage: Passage, capture: LayerInputs) -> None:
            capture = replace(capture, scaling=study.alpha * capture.scaling)
            with torch.inference_mode():
                measured, numbers, sinks = measure_context(
                    capture,
                    asking,
                    keys,
                    study.sizes,
                    draws,
                    study.seed,
                    passage.number,
                    output_gram(head_weights(loaded, capture.layer).W_o),
                )
                shares = delimiter_shares(capture, passage.is_delimiter)
            stats = tuple(
                describe_head(
                    numbers[h],
                    study.sizes,
                    study.seed,
                    lambda row: str(loaded.tokenizer.decode([int(token_ids[row])])),
                    context=loaded.max_positions,
                    passages=len(study.cells()),
                    delimiters=float(shares[h]),
                    apart=sinks[h],
                )
                for h in study.heads
            )
            units, heads = [*study.heads, len(measured.heads)], study.heads
            products = measured.products
            measured = replace(
                measured,
                heads=heads,
                errors=measured.errors[:, units],
                relative=measured.relative[units],
                reference_error=measured.reference_error[units],
                products=None if products is None else products[..., heads, :][..., heads],
            )
            layers.append((measured, stats))

        visit_passages(loaded, [passage], measure, layers=study.layers)
    return make_cell(layers)


# What one pass says about a head.

#: Numbers of tokens among which those for a tolerance are looked for: the first, how many, and how
#: many times the cloud's tokens the last is.
FIRST, GRID, BEYOND = 16, 32, 32
#: Queries of a passage from which errors are predicted, however many passages there are.
FEWEST_QUERIES = 64
#: More tokens than that are never looked for.
MOST_TOKENS = 1e8
#: Resamples of the queries, for the interval of the number of tokens.
RESAMPLES = 200
#: Relative size of what predictions leave out, such as what two tokens do together. With it errors
#: of exponents are as large as stated, by root mean square, on MiniLM and SmolLM2 reading Wikipedia
#: (docs/predictions.md has the others).
LEFT_OUT = ByMetric(mean=0.015, cov=0.045, map=0.012)
#: Largest exponent of a number that floats hold.
LARGE = 700.0
#: Sinks that are listed.
LISTED = 5


def describe_head(
    numbers: HeadNumbers,
    sizes: Sequence[int],
    seed: int,
    label: Callable[[int], str],
    *,
    context: int,
    passages: int = 1,
    delimiters: float,
    psi: float | None = None,
    apart: NDArray[np.int64] | None = None,
) -> HeadStatistics:
    """One-pass statistics of a head.

    Parameters
    ----------
    numbers
        What one pass gave.
    sizes
        Sizes of the samples.
    seed
        Seed of resampling.
    label
        The token of a key, for the list of sinks.
    context
        Context length of the model.
    passages
        Passages over which the statistics will be averaged: each takes fewer queries, then.
    delimiters
        Share of the attention that goes to delimiters.
    psi
        One-sided constant of the published bound, where it is known.
    apart
        Keys that are sinks and have been set apart already; found here if left out.
    """
    moments = numbers.coupled
    asymptotic = exponents(moments.horizon)
    one_sided = None if psi is None else exponents(psi**0.5)
    sinks: Any = "auto" if apart is None else apart
    burn_in = float(np.exp(min(moments.log_burn_in, LARGE)))
    tail = received_exponent(numbers.received * len(numbers.tilts), sinks=sinks, burn_in=burn_in)
    order = sorted(map(int, tail.sinks), key=lambda j: -numbers.received[j])
    p10, median, p90 = np.quantile(numbers.participation, [0.1, 0.5, 0.9]).tolist()
    # the relative output error at any n, and resamples of it over the queries
    keys = len(numbers.keys)
    top = max(BEYOND * keys, context, sizes[-1])
    grid = np.unique([*np.geomspace(FIRST, top, GRID).round().tolist(), context])
    effort = replace(EFFORT, queries=max(EFFORT.queries // passages, FEWEST_QUERIES))
    predicted = cloud_errors(numbers.cloud, sizes, grid=grid, effort=effort, seed=seed)
    rng = random_stream(seed, "probe prediction")
    copies = resampling_counts(len(predicted.weights), RESAMPLES, rng) * predicted.weights
    copies /= copies.sum(axis=1, keepdims=True)
    error = np.sqrt(predicted.weights @ predicted.map_squares) / numbers.norm
    resampled = np.sqrt(copies @ predicted.map_squares) / numbers.norm
    tokens: dict[str, float | None] = {}
    intervals: dict[str, Ends] = {}
    for name in TOLERANCES:
        tokens[name] = tokens_needed(error, predicted.grid, float(name))
        each = [tokens_needed(curve, predicted.grid, float(name)) for curve in resampled]
        each.sort(key=lambda n: np.inf if n is None else n)  # None, never, is the largest
        low, high = (each[int(q * (RESAMPLES - 1))] for q in (0.025, 0.975))
        intervals[name] = low, high
    at = int(np.searchsorted(predicted.grid, context))
    at_context = float(error[at])
    least, most = np.quantile(resampled[:, at], [0.025, 0.975]).tolist()
    return HeadStatistics(
        horizon=moments.horizon,
        frobenius=moments.frobenius,
        tau=moments.tau,
        spectrum=tuple(moments.spectrum.tolist()),
        psi=moments.horizon**2,
        psi_one_sided=psi,
        paper_reference=asymptotic.paper_reference,
        paper_bound=asymptotic.paper_bound,
        paper_reference_one_sided=None if one_sided is None else one_sided.paper_reference,
        paper_bound_one_sided=None if one_sided is None else one_sided.paper_bound,
        sharp=ByMetric(mean=asymptotic.mean, cov=asymptotic.cov, map=asymptotic.map_rms),
        log_burn_in=moments.log_burn_in,
        frozen_share=moments.frozen_share(sizes[-1]),
        khat=tail,
        ess={"p10": p10, "median": median, "p90": p90},
        sinks=tuple((label(j), float(numbers.received[j])) for j in order[:LISTED]),
        sink_share=float(numbers.received[order].sum()) if order else 0.0,
        delimiter_share=delimiters,
        tails=key_tails(numbers, seed),
        norm=numbers.norm,
        predicted_error=ByMetric(
            mean=predicted_error(predicted.mean, LEFT_OUT.mean),
            cov=predicted_error(predicted.cov, LEFT_OUT.cov),
            map=predicted_error(predicted.map, LEFT_OUT.map),
        ),
        keys=keys,
        tokens_for=tokens,
        tokens_for_interval=intervals,
        context=context,
        at_context=at_context,
        at_context_interval=(min(least, at_context), max(most, at_context)),
    )


def predicted_error(predicted: Predicted, left_out: float) -> PredictedError:
    """A predicted error as it is stored: the expected norm, with its standard error.

    To the noise of what is sampled comes what the prediction leaves out, as if it was independent
    at every size.
    """
    exponent, noise = predicted.slope() or (None, None)
    if noise is not None:
        log_sizes = np.log(predicted.sizes)
        noise = float(np.hypot(noise, left_out / np.linalg.norm(log_sizes - log_sizes.mean())))
    standard_error = np.hypot(predicted.standard_error, left_out * predicted.norm)
    return PredictedError(
        error=tuple(predicted.norm.tolist()),
        standard_error=tuple(standard_error.tolist()),
        exponent=exponent,
        exponent_error=noise,
    )


def tokens_needed(error: Array, grid: Array, tolerance: float) -> float | None:
    """First number of tokens with at most this relative error; None beyond ``MOST_TOKENS``.

    Beyond the grid, which goes far beyond the cloud, the error of draws falls like 1/sqrt(n).
    """
    below = np.flatnonzero(error <= tolerance)
    if not below.size:
        n = float(grid[-1]) * float(error[-1] / tolerance) ** 2
        return float(np.ceil(n)) if n <= MOST_TOKENS else None
    i = int(below[0])
    if i == 0:
        return float(grid[0])
    x = np.interp(-np.log(tolerance), -np.log(error[[i - 1, i]]), np.log(grid[[i - 1, i]]))
    return float(np.ceil(np.exp(x) - 1e-9))


def key_tails(numbers: HeadNumbers, seed: int) -> Cloud | None:
    """Measure the keys' worst projection, see :func:`esscher.math.tails.cloud_tails`.

    None where there are too few keys or passages to search in one half and judge on the other.
    """
    try:
        return cloud_tails(numbers.keys, numbers.passages, seed=seed, effort=QUICK)[0]
    except InputError:
        return None


def one_sided_psi(
    weights: HeadWeights, covariance: Array | None, alpha: float = 1.0
) -> list[float] | None:
    """``||Sigma||_2 ||Sigma^{1/2} A||_2^2`` of each head, Sigma the covariance of hidden states.

    ``alpha`` scales A.

    None where queries and keys are no linear functions of the hidden states (rotary positions).
    """
    if covariance is None or not weights.linear:
        return None
    largest = float(np.linalg.eigvalsh(covariance)[-1])
    psi = []
    for w_q, w_k in zip(weights.W_q, weights.W_k, strict=True):
        # A = W_k' W_q has the rank of a head: its norm is that of a d_k x d_k matrix
        product = (w_k @ covariance @ w_k.T) @ (w_q @ w_q.T) * (alpha * weights.scaling) ** 2
        psi.append(largest * float(np.abs(np.linalg.eigvals(product)).max()))
    return psi
