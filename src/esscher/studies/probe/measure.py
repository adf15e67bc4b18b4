"""Tasks and cells: a layer is a cell in pooled mode, a passage in context mode."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import xarray as xr
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
from esscher.engine.sampled.layer import PRODUCTS, HeadNumbers, LayerMeasurement, output_gram
from esscher.engine.sampled.pooled import PassageMoments, measure_pooled
from esscher.engine.sampled.sizes import FEWEST_KEYS, METRICS, needed_context
from esscher.engine.text.collect import CloudFile, cloud_bytes, collect_cloud, visit_passages
from esscher.engine.text.packing import Passage, read_passages
from esscher.math.statistics import find_sinks, received_khat, resampling_counts
from esscher.math.theory import exponents
from esscher.math.theory.cloud import EFFORT, Predicted, cloud_errors
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Run
from esscher.runs.study import Setup, Work
from esscher.studies.probe.study import TOLERANCES, ProbeSettings, ProbeStudy, Samples

#: Name of the cloud in a run's directory.
CLOUD = "cloud"
#: Clouds of fewer bytes are kept among temporary files.
SMALL_CLOUD = 1_000_000_000
#: Share of the free disk that a cloud may take.
SHARE = 0.9


def read_text(
    study: ProbeStudy,
    settings: ProbeSettings,
    loaded: LoadedModel,
    model: AnyModel,
    executor: CellExecutor,
) -> Work:
    """Cut the text into passages."""
    pooled, context = settings.mode == "pooled", settings.context
    least = FEWEST_KEYS if pooled else needed_context(loaded.outline)
    passages = read_passages(
        loaded,
        study.text,
        tokens=settings.tokens,
        context=context,
        column=study.column,
        least=least,
    )
    longest = max(len(passage.ids) for passage in passages)
    if not pooled and isinstance(context, AtMost):
        context = min(int(context), longest)
    if not pooled and context > longest:
        raise InputError(
            f"{passages.source!r} has only {passages.text_tokens} tokens, less than a passage of "
            f"{context}; give more text, or a context of at most {longest}"
        )
    tokens = min(int(settings.tokens), passages.text_tokens)
    settings = replace(study, tokens=tokens, context=int(context)).resolve(loaded.outline)
    setup = Setup(settings, {"model": loaded.record, "text": passages.record})
    cells = ProbeStudy.cells(setup)

    def of_passages(run: Run) -> Iterator[Mapping[str, Task]]:
        yield {
            name: Task(name, measure_passage, (model, passage, settings))
            for name, passage in zip(cells, passages.passages, strict=False)
        }

    def of_layers(run: Run) -> Iterator[Mapping[str, Task]]:
        """Yield layers whose tokens the disk has room for; they are gone before the next ones."""
        layers = [int(name.removeprefix("layer-")) for name in run.missing(cells)]
        if not layers:
            return
        linear = [layer for layer in layers if head_weights(loaded, layer).linear]
        moments = PassageMoments(passages, settings.tokens, linear)

        def watch(read: Sequence[Passage], capture: LayerInputs) -> None:
            moments.take(read, replace(capture, scaling=settings.alpha * capture.scaling))

        layer_bytes = cloud_bytes(
            rows=settings.tokens,
            layers=1,
            heads=len(settings.heads),
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

            large = executor.remote or len(batch) * layer_bytes >= SMALL_CLOUD
            cloud = collect_cloud(
                loaded,
                passages,
                tokens=settings.tokens,
                layers=batch,
                heads=settings.heads,
                folder=place if large else None,
                progress=progress,
                watch=watch,
            )
            run.doing("")
            tokens = executor.share(cloud)
            tasks = {}
            for layer in batch:
                name, shares = f"layer-{layer}", moments.delimiters[layer]
                covariance = moments.covariance(layer)
                arguments = (model, tokens, layer, shares, covariance, settings)
                tasks[name] = Task(name, measure_layer, arguments)
            yield tasks
            layers = [layer for layer in layers if layer not in batch]
            shutil.rmtree(place, ignore_errors=True)

    return setup, of_layers if pooled else of_passages


def measure_layer(
    model: AnyModel,
    cloud: CloudFile,
    layer: int,
    shares: Array,
    covariance: Array | None,
    settings: ProbeSettings,
) -> xr.Dataset:
    """One layer in pooled mode; on another machine, the cloud is mapped from its files."""
    with opened_model(model) as loaded:
        weights = head_weights(loaded, layer)
        measured, numbers = measure_pooled(
            cloud,
            layer,
            settings.sizes,
            settings.samples,
            settings.seed,
            output_gram(weights.W_o[list(settings.heads)]),
            settings.alpha,
        )
        psi = one_sided_psi(weights, covariance, settings.alpha)
        token_ids = cloud.token_ids
        heads = [
            describe_head(
                number,
                settings,
                lambda row: str(loaded.tokenizer.decode([int(token_ids[row])])),
                context=loaded.max_positions,
                delimiters=float(shares[head]),
                psi=None if psi is None else psi[head],
            )
            for head, number in zip(measured.heads, numbers, strict=True)
        ]
    return as_cell(0, [(measured, heads)])


def measure_passage(model: AnyModel, passage: Passage, settings: ProbeSettings) -> xr.Dataset:
    """One passage in context mode."""
    with opened_model(model) as loaded:
        rng = random_stream(settings.seed, "probe queries", passage.number)
        asking, keys = split(len(passage.ids), passage.is_delimiter, loaded.causal, rng)
        token_ids, heads = passage.ids[keys], list(settings.heads)
        layers: list[MeasuredLayer] = []

        def measure(passage: Passage, capture: LayerInputs) -> None:
            capture = replace(capture, scaling=settings.alpha * capture.scaling)
            with torch.inference_mode():
                measured, numbers, sinks = measure_context(
                    capture,
                    asking,
                    keys,
                    settings.sizes,
                    settings.samples,
                    settings.seed,
                    passage.number,
                    output_gram(head_weights(loaded, capture.layer).W_o),
                )
                shares = delimiter_shares(capture, passage.is_delimiter)
            described = [
                describe_head(
                    numbers[h],
                    settings,
                    lambda row: str(loaded.tokenizer.decode([int(token_ids[row])])),
                    context=loaded.max_positions,
                    delimiters=float(shares[h]),
                    apart=sinks[h],
                )
                for h in heads
            ]
            units, products = [*heads, len(measured.heads)], measured.products
            chosen = replace(
                measured,
                heads=settings.heads,
                errors=measured.errors[:, units],
                reference_error=measured.reference_error[units],
                products=None if products is None else products[..., heads, :][..., heads],
            )
            layers.append((chosen, described))

        visit_passages(loaded, [passage], measure, layers=settings.layers)
    return as_cell(passage.number, layers)


#: Errors of a layer, and what one pass says about its heads, by variable.
MeasuredLayer = tuple[LayerMeasurement, Sequence[Mapping[str, Any]]]


def as_cell(passage: int, layers: Sequence[MeasuredLayer]) -> xr.Dataset:
    """Return what is stored of layers."""
    first, heads = layers[0]
    rows, columns = np.triu_indices(len(first.heads))  # products of each pair of heads once
    data = Samples.new(
        passage=[passage],
        layer=[measured.layer for measured, _ in layers],
        head=first.heads,
        metric=METRICS,
        replicate=range(first.errors.shape[2]),
        size=first.sizes,
        within=TOLERANCES,
        entry=range(len(heads[0]["spectrum"])),
        rank=range(LISTED),
        errors=PRODUCTS,
        pair=[f"{first.heads[i]} x {first.heads[j]}" for i, j in zip(rows, columns, strict=True)],
    )
    for name in heads[0]:
        setattr(data.one_pass, name, [[[h[name] for h in described] for _, described in layers]])
    errors = np.array([measured.errors for measured, _ in layers])  # [layer, metric, unit, ...]
    data.error = errors[None, :, :, :-1].swapaxes(2, 3)
    data.layer_error = errors[None, :, :, -1]
    products = [m.products for m, _ in layers if m.products is not None]
    data.product = np.array(products)[None][..., rows, columns]
    unknown = np.full(len(first.heads), np.nan)
    noise = {"mean": [m.reference_error[:-1] for m, _ in layers]} | {
        "cov": [unknown if m.cov_error is None else m.cov_error[:-1] for m, _ in layers]
    }
    by_metric = [noise.get(metric, [unknown] * len(layers)) for metric in METRICS]
    data.reference_error = np.moveaxis(np.array([by_metric]), 1, -1)
    return data.dataset


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
LEFT_OUT = {"mean": 0.015, "cov": 0.045, "map": 0.012}
#: Sinks that are listed.
LISTED = 5


def describe_head(
    numbers: HeadNumbers,
    settings: ProbeSettings,
    label: Callable[[int], str],
    *,
    context: int,
    delimiters: float,
    psi: float | None = None,
    apart: NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """Return what one pass says about a head: see :class:`esscher.studies.probe.study.OnePass`.

    Parameters
    ----------
    numbers
        What one pass gave.
    settings
        Of the study.
    label
        The token of a key, for the list of sinks.
    context
        Context length of the model.
    delimiters
        Share of the attention that goes to delimiters.
    psi
        One-sided constant of the published bound, where it is known.
    apart
        Keys that are sinks and have been set apart already; found here if left out.
    """
    moments, sizes, seed = numbers.coupled, settings.sizes, settings.seed
    asymptotic = exponents(moments.horizon)
    received = numbers.received * len(numbers.tilts)
    sinks = find_sinks(received) if apart is None else apart
    order = sorted(map(int, sinks), key=lambda j: -numbers.received[j])
    absent = LISTED - len(order[:LISTED])
    # the relative output error at any n, and resamples of it over the queries
    keys = len(numbers.keys)
    top = max(BEYOND * keys, context, sizes[-1])
    grid = np.unique([*np.geomspace(FIRST, top, GRID).round().tolist(), context])
    # statistics are averaged over passages: each takes fewer queries, then
    passages = 1 if settings.mode == "pooled" else settings.passages
    effort = replace(EFFORT, queries=max(EFFORT.queries // passages, FEWEST_QUERIES))
    predicted = cloud_errors(numbers.cloud, sizes, grid=grid, effort=effort, seed=seed)
    rng = random_stream(seed, "probe prediction")
    copies = resampling_counts(len(predicted.weights), RESAMPLES, rng) * predicted.weights
    copies /= copies.sum(axis=1, keepdims=True)
    error = np.sqrt(predicted.weights @ predicted.map_squares) / numbers.norm
    resampled = np.sqrt(copies @ predicted.map_squares) / numbers.norm
    tokens = []
    for tolerance in TOLERANCES:
        each = sorted(tokens_needed(curve, predicted.grid, tolerance) for curve in resampled)
        ends = [each[int(q * (RESAMPLES - 1))] for q in (0.025, 0.975)]
        tokens.append([tokens_needed(error, predicted.grid, tolerance), *ends])
    at = int(np.searchsorted(predicted.grid, context))
    at_context = float(error[at])
    least, most = np.quantile(resampled[:, at], [0.025, 0.975]).tolist()
    curves = [
        predicted_error(curve, LEFT_OUT[metric])
        for metric, curve in (
            ("mean", predicted.mean),
            ("cov", predicted.cov),
            ("map", predicted.map),
        )
    ]
    return {
        "horizon": moments.horizon,
        "psi": moments.horizon**2,
        "psi_one_sided": np.nan if psi is None else psi,
        "paper_bound": asymptotic.paper_bound,
        "paper_reference": asymptotic.paper_reference,
        "sharp": [asymptotic.mean, asymptotic.cov, asymptotic.map_rms],
        "frobenius": moments.frobenius,
        "tau": moments.tau,
        "spectrum": moments.spectrum,
        "log_burn_in": moments.log_burn_in,
        "khat": received_khat(received, sinks),
        "ess": float(np.quantile(numbers.participation, 0.5)),
        "sink_share": float(numbers.received[order].sum()) if order else 0.0,
        "delimiter_share": delimiters,
        "sink_token": [*(label(j) for j in order[:LISTED]), *[""] * absent],
        "sink_received": [*numbers.received[order[:LISTED]].tolist(), *[np.nan] * absent],
        "norm": numbers.norm,
        "keys": float(keys),
        "tokens": np.where(np.isinf(tokens), np.nan, tokens),
        "at_context": [at_context, min(least, at_context), max(most, at_context)],
        "predicted_error": [curve for curve, _, _ in curves],
        "predicted_standard_error": [noise for _, noise, _ in curves],
        "curve_exponent": [exponent for _, _, (exponent, _) in curves],
        "curve_exponent_error": [noise for _, _, (_, noise) in curves],
    }


def predicted_error(
    predicted: Predicted, left_out: float
) -> tuple[Array, Array, tuple[float, float]]:
    """Expected norms with their standard errors, and their exponent with its own.

    To the noise of what is sampled comes what the prediction leaves out, as if it was independent
    at every size. A single size has no exponent: NaN.
    """
    exponent, noise = predicted.slope() or (np.nan, np.nan)
    log_sizes = np.log(predicted.sizes)
    spread = np.linalg.norm(log_sizes - log_sizes.mean())
    if spread > 0:
        noise = float(np.hypot(noise, left_out / spread))
    standard_error = np.hypot(predicted.standard_error, left_out * predicted.norm)
    return predicted.norm, standard_error, (exponent, noise)


def tokens_needed(error: Array, grid: Array, tolerance: float) -> float:
    """First number of tokens with at most this relative error; infinite beyond ``MOST_TOKENS``.

    Beyond the grid, which goes far beyond the cloud, the error of draws falls like 1/sqrt(n).
    """
    below = np.flatnonzero(error <= tolerance)
    if not below.size:
        n = float(grid[-1]) * float(error[-1] / tolerance) ** 2
        return float(np.ceil(n)) if n <= MOST_TOKENS else np.inf
    i = int(below[0])
    if i == 0:
        return float(grid[0])
    x = np.interp(-np.log(tolerance), -np.log(error[[i - 1, i]]), np.log(grid[[i - 1, i]]))
    return float(np.ceil(np.exp(x) - 1e-9))


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
