"""What is computed: a layer is a cell in pooled mode, a passage in context mode."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.options import AtMost
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models import (
    AnyModel,
    HeadWeights,
    LayerInputs,
    LoadedModel,
    head_weights,
    opened_model,
)
from esscher.engine.sampled.context import delimiter_shares, measure_context, split
from esscher.engine.sampled.layer import HeadNumbers, LayerMeasurement, output_gram
from esscher.engine.sampled.pooled import PassageMoments, measure_pooled
from esscher.engine.sampled.sizes import FEWEST_KEYS, needed_context
from esscher.engine.text import (
    CloudFile,
    Passage,
    PassageSet,
    cloud_bytes,
    collect_cloud,
    read_passages,
    seen_cloud,
    stored_layers,
    visit_passages,
)
from esscher.math.statistics import received_exponent, resampling_counts
from esscher.math.statistics.records import ByMetric, Ends
from esscher.math.tails.candidates import Cloud
from esscher.math.tails.cloud import cloud_tails
from esscher.math.tails.directions import QUICK
from esscher.math.theory import exponents
from esscher.math.theory.cloud import EFFORT, CloudErrors, Predicted, cloud_errors
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell, CellRun
from esscher.studies.probe.assemble import LayerFound, make_cell
from esscher.studies.probe.result import (
    AtContext,
    ByTolerance,
    HeadStatistics,
    PredictedError,
    PredictedExponents,
    Psi,
    Quantiles,
    Sink,
    Sinks,
)
from esscher.studies.probe.study import ProbeStudy


def read_text(
    study: ProbeStudy, loaded: LoadedModel, model: AnyModel, executor: CellExecutor
) -> ProbeWork:
    """Cut the text into passages."""
    pooled, context = study.mode == "pooled", study.context
    least = FEWEST_KEYS if pooled else needed_context(loaded.outline)
    found = read_passages(
        loaded, study.text, tokens=study.tokens, context=context, column=study.column, least=least
    )
    longest = max(len(passage.ids) for passage in found)
    if not pooled and isinstance(context, AtMost):
        context = min(int(context), longest)
    if not pooled and context > longest:
        raise InputError(
            f"{found.source!r} has only {found.text_tokens} tokens, less than a passage of "
            f"{context}; give more text, or a context of at most {longest}"
        )
    tokens = min(int(study.tokens), found.text_tokens)
    study = replace(study, tokens=tokens, context=context).fill(loaded.outline)
    study = replace(study, model=loaded.record, text=found.record)
    return ProbeWork(study, loaded, model, found, executor)


@dataclass(frozen=True, eq=False)
class ProbeWork:
    """A probe that is ready: see :class:`esscher.runs.study.Work`."""

    study: ProbeStudy
    loaded: LoadedModel
    model: AnyModel
    passages: PassageSet
    executor: CellExecutor

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield layers, as many as the disk has room for, or passages."""
        return self._layers(run) if self.study.mode == "pooled" else self._passages()

    def _layers(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        layers = [int(name.removeprefix("layer-")) for name in run.missing(self.study.cells())]
        if not layers:
            return
        asked = self._asked
        linear = [layer for layer in layers if head_weights(self.loaded, layer).linear]
        seen = PassageMoments(self.passages, asked.tokens, linear)
        for cloud in collected_clouds(
            self.loaded,
            self.passages,
            asked,
            layers,
            run,
            remote=self.executor.remote,
            watch=lambda read, layer: seen.take(read, _scaled(layer, asked.alpha)),
        ):
            tokens = str(cloud.folder.resolve()) if self.executor.remote else cloud
            shares = seen.delimiters
            yield {
                name: Task(
                    name,
                    _layer_cell,
                    (self.model, tokens, layer, shares[layer], seen.covariance(layer), asked),
                )
                for layer in layers
                if layer in cloud.layers
                for name in [f"layer-{layer}"]
            }

    def _passages(self) -> Iterator[Mapping[str, Task]]:
        names = self.study.cells()
        draws = -(-self.study.samples // len(names))
        yield {
            name: Task(
                name,
                _passage_cell,
                (self.model, self.passages.passages[number], draws, self._asked),
            )
            for number, name in enumerate(names)
        }

    @property
    def _asked(self) -> ProbeStudy:
        """The study as tasks take it: workers know nothing of who computes."""
        return replace(self.study, executor=None)


def _layer_cell(
    model: AnyModel,
    tokens: CloudFile | str,
    layer: int,
    shares: Array,
    covariance: Array | None,
    study: ProbeStudy,
) -> Cell:
    """One layer in pooled mode; on another machine, the cloud is mapped from its files."""
    cloud = seen_cloud(tokens) if isinstance(tokens, str) else tokens
    with opened_model(model) as loaded:
        weights = head_weights(loaded, layer)
        label = _labels(loaded, np.asarray(cloud.token_ids))
        measured, numbers = measure_pooled(
            cloud,
            layer,
            study.sizes,
            study.samples,
            study.seed,
            study.sampling,
            output_gram(weights.W_o[list(study.heads)]),
            alpha=study.alpha,
        )
        if study.sampling == "without":
            measured = _corrected(measured, cloud.rows)
        psi = one_sided_psi(weights, covariance, study.alpha)
        stats = tuple(
            describe_head(
                number,
                study.sizes,
                study.seed,
                label,
                context=loaded.max_positions,
                delimiters=float(shares[head]),
                psi=None if psi is None else psi[head],
            )
            for head, number in zip(measured.heads, numbers, strict=True)
        )
    return make_cell([LayerFound(measured, stats)])


def _passage_cell(model: AnyModel, passage: Passage, draws: int, study: ProbeStudy) -> Cell:
    """One passage in context mode."""
    with opened_model(model) as loaded:
        rng = random_stream(study.seed, "probe queries", passage.number)
        asking, keys = split(len(passage.ids), passage.is_delimiter, loaded.causal, rng)
        layers: list[LayerFound] = []

        def sink(passage: Passage, capture: LayerInputs) -> None:
            capture = _scaled(capture, study.alpha)
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
            label = _labels(loaded, passage.ids[keys])
            stats = tuple(
                describe_head(
                    numbers[h],
                    study.sizes,
                    study.seed,
                    label,
                    context=loaded.max_positions,
                    passages=len(study.cells()),
                    delimiters=float(shares[h]),
                    apart=sinks[h],
                )
                for h in study.heads
            )
            layers.append(LayerFound(_chosen(measured, study.heads), stats))

        visit_passages(loaded, [passage], sink, layers=study.layers)
    return make_cell(layers)


def _scaled(capture: LayerInputs, alpha: float) -> LayerInputs:
    """A layer whose tilts are scaled; its tokens are those of the model as it is."""
    return replace(capture, scaling=alpha * capture.scaling)


def _corrected(measured: LayerMeasurement, tokens: int) -> LayerMeasurement:
    """Errors of samples without replacement, divided by sqrt((N - n)/(N - 1))."""
    n = np.asarray(measured.sizes, dtype=np.float64)
    factor = (tokens - n) / (tokens - 1)
    products = measured.products
    return replace(
        measured,
        errors=measured.errors / np.sqrt(factor),
        products=None if products is None else products / factor[:, None, None],
    )


def _chosen(measured: LayerMeasurement, heads: tuple[int, ...]) -> LayerMeasurement:
    """Some heads of a layer, and the layer as a whole."""
    units = [*heads, len(measured.heads)]
    products = measured.products
    return replace(
        measured,
        heads=heads,
        errors=measured.errors[:, units],
        relative=measured.relative[units],
        reference_error=measured.reference_error[units],
        products=None if products is None else products[..., heads, :][..., heads],
    )


def _labels(loaded: LoadedModel, ids: NDArray[np.int64]) -> Callable[[int], str]:
    return lambda row: str(loaded.tokenizer.decode([int(ids[row])]))


# Token clouds of a pooled probe: as many layers at a time as the disk has room for.
#
# A small cloud lies where temporary files go. A large one lies in the run's directory until its
# layers are measured: a run that is stopped goes on with what is there.

#: Name of the cloud in a run's directory.
CLOUD = "cloud"
#: Clouds of fewer bytes are kept among temporary files.
SMALL_CLOUD = 1_000_000_000
#: Share of the free disk that a cloud may take.
SHARE = 0.9


def collected_clouds(
    loaded: LoadedModel,
    passages: PassageSet,
    study: ProbeStudy,
    layers: Sequence[int],
    run: CellRun,
    *,
    remote: bool,
    watch: Callable[[Sequence[Passage], LayerInputs], object],
) -> Iterator[CloudFile]:
    """Yield clouds which together hold the layers; each is gone once the next is asked for.

    Parameters
    ----------
    loaded, passages, study
        What to collect.
    layers
        Layers that are wanted.
    run
        The run, which is told how far the reading has got.
    remote
        Whether other machines read the cloud: then it lies in the run's directory in any case,
        which all of them should see.
    watch
        See :func:`esscher.engine.text.collect_cloud`.
    """
    bytes_of_layer = _layer_bytes(loaded, study)
    place = run.folder / CLOUD
    waiting = list(layers)

    def collect(chosen: Sequence[int], where: Path | None) -> CloudFile:
        def progress(done: int, total: int) -> None:
            run.doing(
                f"reading the text for layers {chosen[0]} to {chosen[-1]}: passage {done:,} of "
                f"{total:,}"
            )

        cloud = collect_cloud(
            loaded,
            passages,
            tokens=study.tokens,
            context=study.context,
            layers=chosen,
            heads=study.heads,
            folder=where,
            progress=progress,
            watch=watch,
        )
        run.doing("")
        return cloud

    while waiting:
        chosen = stored_layers(place)
        begun = not set(chosen).isdisjoint(waiting)
        if not begun:
            shutil.rmtree(place, ignore_errors=True)
            chosen = _that_fit(waiting, bytes_of_layer, run.folder)
        large = begun or remote or len(chosen) * bytes_of_layer >= SMALL_CLOUD
        yield collect(chosen, place if large else None)
        waiting = [layer for layer in waiting if layer not in chosen]
        shutil.rmtree(place, ignore_errors=True)


def _layer_bytes(loaded: LoadedModel, study: ProbeStudy) -> int:
    shape = loaded.shape
    return cloud_bytes(
        rows=study.tokens,
        layers=1,
        heads=len(study.heads),
        key_heads=shape.key_heads,
        head_dim=shape.head_dim,
    )


def _that_fit(layers: Sequence[int], size: int, folder: Path) -> list[int]:
    """The first layers whose cloud the disk has room for."""
    free = shutil.disk_usage(folder).free
    count = int(SHARE * free / size)
    if count < 1:
        raise InputError(
            f"the tokens of one layer take {size / 1e9:.1f} GB, but {folder} has only "
            f"{free / 1e9:.1f} GB left; choose fewer tokens or heads, or another disk for the run"
        )
    return list(layers[:count])


# What one pass says about a head.

#: Relative output errors for which the number of tokens is given.
TOLERANCES = {"percent_5": 0.05, "percent_10": 0.1, "percent_20": 0.2}
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
    keys = len(numbers.keys)
    top = max(BEYOND * keys, context, sizes[-1])
    grid = np.unique([*np.geomspace(FIRST, top, GRID).round().tolist(), context])
    effort = replace(EFFORT, queries=max(EFFORT.queries // passages, FEWEST_QUERIES))
    found = cloud_errors(numbers.cloud, sizes, grid=grid, effort=effort, seed=seed)
    outputs = _MapCurve.of(found, numbers.norm, random_stream(seed, "probe prediction"))
    needed: dict[str, Any] = {name: outputs.crossing(at) for name, at in TOLERANCES.items()}
    ess = numbers.participation
    order = sorted(map(int, tail.sinks), key=lambda j: -numbers.received[j])
    quantiles = (float(np.quantile(ess, q)) for q in (0.1, 0.5, 0.9))
    p10, median, p90 = quantiles
    return HeadStatistics(
        horizon=moments.horizon,
        frobenius=moments.frobenius,
        tau=moments.tau,
        spectrum=tuple(moments.spectrum.tolist()),
        psi=Psi(two_sided=moments.horizon**2, one_sided=psi),
        log_burn_in=moments.log_burn_in,
        frozen_share=moments.frozen_share(sizes[-1]),
        khat=tail,
        ess=Quantiles(p10=p10, median=median, p90=p90),
        sinks=Sinks(
            count=len(order),
            share=float(numbers.received[order].sum()) if order else 0.0,
            tokens=tuple(
                Sink(token=label(j), share=float(numbers.received[j])) for j in order[:LISTED]
            ),
        ),
        delimiter_share=delimiters,
        tails=key_tails(numbers, seed),
        norm=numbers.norm,
        predicted_error=ByMetric(
            mean=_curve(found.mean, LEFT_OUT.mean),
            cov=_curve(found.cov, LEFT_OUT.cov),
            map=_curve(found.map, LEFT_OUT.map),
        ),
        predicted=PredictedExponents(
            khat=tail.exponent,
            sharp=ByMetric(mean=asymptotic.mean, cov=asymptotic.cov, map=asymptotic.map_rms),
            paper_reference=asymptotic.paper_reference,
            paper_bound=asymptotic.paper_bound,
            paper_reference_one_sided=None if one_sided is None else one_sided.paper_reference,
            paper_bound_one_sided=None if one_sided is None else one_sided.paper_bound,
        ),
        keys=keys,
        tokens_for=ByTolerance(**{name: n for name, (n, _) in needed.items()}),
        tokens_for_interval=ByTolerance(**{name: ends for name, (_, ends) in needed.items()}),
        at_context=outputs.at(context, keys),
    )


def _curve(found: Predicted, left_out: float) -> PredictedError:
    """A predicted error as it is stored: the expected norm, with its standard error.

    To the noise of what is sampled comes what the prediction leaves out, as if it was independent
    at every size.
    """
    exponent, noise = found.slope() or (None, None)
    if noise is not None:
        noise = float(np.hypot(noise, left_out / _spread(found.sizes)))
    return PredictedError(
        error=tuple(found.norm.tolist()),
        standard_error=tuple(np.hypot(found.standard_error, left_out * found.norm).tolist()),
        exponent=exponent,
        exponent_error=noise,
    )


def _spread(sizes: Array) -> float:
    """Root of the sum of squares of ``ln n`` about its mean: a slope's error is one over it."""
    return float(np.linalg.norm(np.log(sizes) - np.log(sizes).mean()))


@dataclass(frozen=True, eq=False)
class _MapCurve:
    """Relative output error at any n, and resamples of it over the queries."""

    grid: Array
    error: Array
    resampled: Array

    @classmethod
    def of(cls, found: CloudErrors, norm: float, rng: np.random.Generator) -> _MapCurve:
        copies = resampling_counts(len(found.weights), RESAMPLES, rng) * found.weights
        copies /= copies.sum(axis=1, keepdims=True)
        squares = found.map_squares
        return cls(
            found.grid,
            np.sqrt(found.weights @ squares) / norm,
            np.sqrt(copies @ squares) / norm,
        )

    def crossing(self, tolerance: float) -> tuple[float | None, Ends]:
        """First number of tokens with at most this error, and its interval; None: beyond MOST."""
        # None (never) is the largest of them
        found = [_crossing(error, self.grid, tolerance) for error in self.resampled]
        order = sorted(found, key=lambda n: np.inf if n is None else n)
        low, high = (order[int(q * (RESAMPLES - 1))] for q in (0.025, 0.975))
        return _crossing(self.error, self.grid, tolerance), (low, high)

    def at(self, n: int, keys: int) -> AtContext:
        """Error at n tokens."""
        i = int(np.searchsorted(self.grid, n))
        ends = np.quantile(self.resampled[:, i], [0.025, 0.975])
        error = float(self.error[i])
        low, high = min(float(ends[0]), error), max(float(ends[1]), error)
        return AtContext(n=n, error=error, interval=(low, high), extrapolated=n > keys)


def _crossing(relative: Array, grid: Array, tolerance: float) -> float | None:
    """First number of tokens with at most this relative error; None beyond ``MOST_TOKENS``.

    Beyond the grid, which goes far beyond the cloud, the error of draws falls like 1/sqrt(n).
    """
    below = np.flatnonzero(relative <= tolerance)
    if not below.size:
        n = float(grid[-1]) * float(relative[-1] / tolerance) ** 2
        return float(np.ceil(n)) if n <= MOST_TOKENS else None
    i = int(below[0])
    if i == 0:
        return float(grid[0])
    x = np.interp(-np.log(tolerance), -np.log(relative[[i - 1, i]]), np.log(grid[[i - 1, i]]))
    return float(np.ceil(np.exp(x) - 1e-9))


def key_tails(numbers: HeadNumbers, seed: int) -> Cloud | None:
    """Measure the keys' worst projection, see :func:`esscher.math.tails.cloud_tails`.

    None where there are too few keys or passages to search in one half and judge on the other.
    """
    try:
        return cloud_tails(numbers.keys, numbers.passages, seed=seed, effort=QUICK).numbers
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
