"""Claims about the heads of an encoder: exponents beside Psi, scaled tilts, the argmax of heads.

All tokens of a text are one cloud, of which n are drawn with replacement, as in a pooled probe:
exponents are those of :func:`esscher.probe` with the same options and seed. What one pass predicts
besides is left out here, which is most of a probe's time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from esscher.core.errors import InputError
from esscher.core.options import AtMost
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.sampled.sizes import METRICS
from esscher.math.coupling import CoupledMoments
from esscher.math.statistics import fit_rate
from esscher.math.statistics.intervals import mean_bounds, rank_correlation
from esscher.math.statistics.records import class_counts
from esscher.math.theory import exponents
from esscher.show.chart import Axis, Series, bands, figure, guides, lines, panel, points, words
from esscher.show.theme import BLUE, GREEN, GREY, LINE, VERMILION, limits
from esscher.studies.paper.ledger import (
    Check,
    Claim,
    Entry,
    Measurement,
    Rows,
    Scale,
    Setting,
    Unit,
    judged,
    verdict_of,
    with_interval,
)

if TYPE_CHECKING:
    from altair.typing import ChartType

    from esscher.engine.models.weights import HeadWeights
    from esscher.engine.text.collect import CloudFile

#: Units of a measurement of all layers: unit i has the layers i, i + 6 and so on.
PARTS = 6
#: Longest passage, as in a probe.
CONTEXT = 512
#: Resamples of heads.
RESAMPLES = 1_000
#: Queries whose logits are held at a time.
QUERIES = 1_024
#: The authors' experiment with BigBird, for models that read :data:`LONG_CONTEXT` tokens at a time:
#: numbers of tokens drawn; half-widths of windows, and keys drawn beside a window.
LONG_CONTEXT = 4_096
LONG_SIZES = (1_000, 3_000, 12)
HALF_WIDTHS = (500, 1_500, 12)
RANDOM_KEYS = 50


# Measurements.


def _sizes(first: int, last: int, count: int) -> tuple[int, ...]:
    return tuple(int(n) for n in np.unique(np.geomspace(first, last, count).round()))


@lru_cache(maxsize=2)
def _cloud(
    setting: Setting, layers: tuple[int, ...], tokens: int
) -> tuple[CloudFile, dict[int, tuple[HeadWeights, Array | None]]]:
    """Tokens of some layers; by layer its weights, and the covariance of hidden states."""
    from esscher.engine.models.weights import head_weights
    from esscher.engine.sampled.pooled import PassageMoments
    from esscher.engine.sampled.sizes import FEWEST_KEYS
    from esscher.engine.text.collect import collect_cloud
    from esscher.engine.text.packing import read_passages

    loaded = setting.loaded(setting.encoder)
    context = loaded.outline.context(None, CONTEXT)
    passages = read_passages(
        loaded, setting.text, tokens=tokens, context=context, least=FEWEST_KEYS
    )
    tokens = min(tokens, passages.text_tokens)
    weights = {layer: head_weights(loaded, layer) for layer in layers}
    seen = PassageMoments(passages, tokens, [one for one in layers if weights[one].linear])
    cloud = collect_cloud(
        loaded,
        passages,
        tokens=tokens,
        layers=layers,
        watch=seen.take,
    )
    return cloud, {layer: (weights[layer], seen.covariance(layer)) for layer in layers}


def _layers(setting: Setting, part: int) -> tuple[int, ...]:
    return tuple(range(part, setting.loaded(setting.encoder).shape.layers, PARTS))


def _reads_long(setting: Setting) -> bool:
    """Whether the encoder reads passages as long as BigBird's."""
    return setting.loaded(setting.encoder).outline.max_positions >= LONG_CONTEXT


def _fitted(name: str, errors: Array, sizes: Sequence[int], seed: int, heads: int = 1) -> Unit:
    """Columns of an exponent: 95% intervals of this head and of all ``heads`` together, its law.

    ``_over_log`` is how much better powers of n describe the curve than powers of ln n do: the
    difference of their criteria.
    """
    ends = ("", "_low", "_high", "_joint_low", "_joint_high", "_over_log")
    missing = dict.fromkeys([f"{name}{end}" for end in ends], float("nan"))
    try:
        rate = fit_rate(errors, sizes, seed=seed)
    except InputError:  # errors are 0 at most sizes
        return missing | {f"{name}_law": "none", f"{name}_trusted": False}
    joint = rate if heads == 1 else fit_rate(errors, sizes, seed=seed, level=1 - 0.05 / heads)
    fits = rate.selection.laws
    return missing | {
        name: rate.exponent,
        f"{name}_low": rate.interval[0],
        f"{name}_high": rate.interval[1],
        f"{name}_joint_low": joint.interval[0],
        f"{name}_joint_high": joint.interval[1],
        f"{name}_over_log": fits["logarithmic"].criterion - fits["power"].criterion
        if fits
        else float("nan"),
        f"{name}_law": rate.verdict,
        f"{name}_trusted": rate.trusted,
    }


def _measured(
    unit: Unit,
    setting: Setting,
    layers: tuple[int, ...],
    metrics: Sequence[str],
    alpha: float = 1.0,
    joint: bool = False,
) -> Rows:
    """One row per head: Psi and the published exponents in both conventions, those measured.

    With ``joint`` intervals hold the exponents of all heads at once, and rows also say what the
    heads of their layer have in common.
    """
    from esscher.engine.sampled.layer import output_gram
    from esscher.engine.sampled.pooled import measure_pooled
    from esscher.studies.probe.measure import one_sided_psi
    from esscher.studies.probe.together import amplification, effective_heads

    sizes, seed = _sizes(unit["first"], unit["last"], unit["count"]), setting.seed
    shape = setting.loaded(setting.encoder).shape
    if setting.scale == "paper" and joint and _reads_long(setting):
        sizes = _sizes(*LONG_SIZES)
    rows: Rows = []
    for layer in layers:
        cloud, weights = _cloud(setting, layers, unit["tokens"])
        gram = output_gram(weights[layer][0].W_o) if joint else None
        measured, numbers = measure_pooled(
            cloud, layer, sizes, unit["replicates"], seed, gram, alpha
        )
        together: dict[str, float | None] = {}
        if measured.products is not None and len(measured.heads) > 1:
            last = measured.products[0][:, -1]  # of mean outputs, at the largest size
            for name, estimate in (
                ("effective_heads", effective_heads(last, seed)),
                ("amplification", amplification(last, seed)),
            ):
                ends = (estimate.value, *estimate.interval)
                together |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
        one_sided = one_sided_psi(*weights[layer], alpha)
        for h, head in enumerate(measured.heads):
            horizon = numbers[h].coupled.horizon
            two = exponents(horizon)
            psi = float("nan") if one_sided is None else one_sided[head]
            row = {
                "layer": layer,
                "head": head,
                "alpha": alpha,
                "H": horizon,
                "H_unscaled": horizon * shape.head_dim**0.5,
                "psi": horizon**2,
                "psi_one_sided": psi,
                "bound": two.paper_bound,
                "bound_one_sided": 1 / (2 * (1 + 32 * psi)),
                "reference": two.paper_reference,
                "reference_one_sided": 1 / (2 * (1 + psi)),
                "largest_n": sizes[-1],
            } | together
            for metric in metrics:
                errors = measured.errors[METRICS.index(metric), h]
                heads = shape.layers * shape.heads if joint else 1
                row |= _fitted(metric, errors, sizes, seed, heads)
            rows.append(row)
    return rows


def _heads_units(scale: Scale) -> list[Unit]:
    options = {
        "quick": {"tokens": 6_144, "first": 64, "last": 1_024, "count": 5, "replicates": 32},
        "standard": {"tokens": 9_216, "first": 64, "last": 2_048, "count": 6, "replicates": 160},
        "paper": {"tokens": 9_216, "first": 64, "last": 384, "count": 10, "replicates": 500},
    }[scale]
    return [{"part": part} | options for part in range(PARTS)]


def _measure_heads(unit: Unit, setting: Setting) -> Rows:
    return _measured(unit, setting, _layers(setting, unit["part"]), METRICS, joint=True)


def _alpha_units(scale: Scale) -> list[Unit]:
    first, count, options = {
        "quick": (0.1, 4, {"tokens": 4_096, "last": 1_024, "count": 5, "replicates": 32}),
        "standard": (0.1, 7, {"tokens": 9_216, "last": 2_048, "count": 6, "replicates": 96}),
        "paper": (0.01, 13, {"tokens": 9_216, "last": 2_048, "count": 10, "replicates": 200}),
    }[scale]
    alphas = np.geomspace(first, 10.0, count)
    return [{"alpha": float(f"{alpha:.6g}"), "first": 64} | options for alpha in alphas]


def _measure_alpha(unit: Unit, setting: Setting) -> Rows:
    """The second layer: all alphas see the same samples."""
    layer = min(1, setting.loaded(setting.encoder).shape.layers - 1)
    return _measured(unit, setting, (layer,), ("mean",), unit["alpha"])


def _argmax_units(scale: Scale) -> list[Unit]:
    tokens, replicates = {"quick": (2_048, 48), "standard": (4_096, 64), "paper": (9_216, 256)}[
        scale
    ]
    return [
        {"part": part, "tokens": tokens, "replicates": replicates, "first": 16}
        for part in range(PARTS)
    ]


def argmax_errors(
    queries: NDArray[np.float32],
    keys: NDArray[np.float32],
    values: NDArray[np.float32],
    sizes: Sequence[int],
    replicates: int,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Errors of attention that takes the key with the largest logit, among n keys of a cloud.

    All queries see the same n keys, drawn with replacement; smaller samples are the beginnings of
    larger ones. The limit of a query is the value of the largest of all keys.

    Parameters
    ----------
    queries, keys, values
        Rows of a head.
    sizes, replicates, rng
        Sizes of samples, how many there are, and their random stream.

    Returns
    -------
    Mean over the queries of output less limit, axes [replicate, size, coordinate], and of its
    square, axes [replicate, size].
    """
    samples = rng.integers(len(keys), size=(replicates, sizes[-1]))
    shift = np.zeros((replicates, len(sizes), values.shape[1]))
    square = np.zeros((replicates, len(sizes)))
    for start in range(0, len(queries), QUERIES):
        asking = queries[start : start + QUERIES]
        every = np.arange(len(asking))
        limit = values[(asking @ keys.T).argmax(axis=1)].astype(np.float64)
        for r, sample in enumerate(samples):
            logits = asking @ keys[sample].T
            largest = np.full(len(asking), -np.inf, dtype=np.float32)
            chosen = np.zeros(len(asking), dtype=np.int64)
            first = 0
            for j, n in enumerate(sizes):
                place = logits[:, first:n].argmax(axis=1) + first
                better = logits[every, place] > largest
                chosen[better] = sample[place[better]]
                largest[better] = logits[every, place][better]
                gap = values[chosen] - limit
                shift[r, j] += gap.sum(axis=0)
                square[r, j] += (gap**2).sum()
                first = n
    return shift / len(queries), square / len(queries)


def _measure_argmax(unit: Unit, setting: Setting) -> Rows:
    """One row per head and size; what is said of a head's curve stands in all of its rows."""
    layers = _layers(setting, unit["part"])
    rows: Rows = []
    for layer in layers:
        cloud, _ = _cloud(setting, layers, unit["tokens"])
        sizes = [unit["first"]]
        while 2 * sizes[-1] <= cloud.rows / 4:
            sizes.append(2 * sizes[-1])
        view = cloud.layer(layer)
        for head in view.heads:
            q, k, v = map(np.array, view.head(head))
            rng = random_stream(setting.seed, "argmax of heads", layer, head)
            shift, square = argmax_errors(q, k, v, sizes, unit["replicates"], rng)
            whole = np.concatenate(
                [v[(q[i : i + QUERIES] @ k.T).argmax(axis=1)] for i in range(0, len(q), QUERIES)]
            )
            norm = float(np.sqrt((whole.astype(np.float64) ** 2).sum(axis=1).mean()))
            errors = {"mean": np.linalg.norm(shift, axis=2) / norm, "map": np.sqrt(square) / norm}
            keys = k.astype(np.float64)
            horizon = CoupledMoments.of(q.astype(np.float64) * view.scaling, keys).horizon
            columns: Unit = {"layer": layer, "head": head, "H": horizon, "psi": horizon**2}
            for metric, values in errors.items():
                columns |= _fitted(metric, values, sizes, setting.seed)
            curves = {metric: mean_bounds(values, 0.0) for metric, values in errors.items()}
            for j, n in enumerate(sizes):
                at: Unit = {"n": n, "tokens": cloud.rows}
                for metric, curve in curves.items():
                    mean, low, high = curve[j].tolist()
                    at |= {
                        f"{metric}_error": mean,
                        f"{metric}_error_low": low,
                        f"{metric}_error_high": high,
                    }
                rows.append(columns | at)
    return rows


def _windows_units(scale: Scale) -> list[Unit]:
    """At the authors' scale only: 500 replicates are 10 passages with 50 queries each."""
    return [{"passage": i, "queries": 50} for i in range(10)] if scale == "paper" else []


def window_errors(
    queries: NDArray[np.float32],
    keys: NDArray[np.float32],
    values: NDArray[np.float32],
    half_widths: Sequence[int],
    count: int,
    rng: np.random.Generator,
) -> Array:
    """Squared errors of attention to a window of keys and :data:`RANDOM_KEYS` keys beside it.

    Parameters
    ----------
    queries, keys, values
        Rows of a head, in the order of the text; logits are their products.
    half_widths
        Keys on either side of a query.
    count, rng
        Number of queries, and the stream that draws them and the keys beside their windows.

    Returns
    -------
    Squared distance from attention to all keys, over the mean square of that: [query, width].
    """
    length, widest = len(keys), max(half_widths)
    errors, squares = np.zeros((count, len(half_widths))), 0.0
    for i, place in enumerate(rng.integers(widest, length - widest, size=count)):
        logits = (keys @ queries[place]).astype(np.float64)
        weights = np.exp(logits - logits.max())
        dense = weights @ values / weights.sum()
        squares += float(dense @ dense) / count
        order = rng.permutation(length)
        for j, half in enumerate(half_widths):
            beside = order[np.abs(order - place) > half][:RANDOM_KEYS]
            chosen = np.concatenate([np.arange(place - half, place + half + 1), beside])
            output = weights[chosen] @ values[chosen] / weights[chosen].sum()
            errors[i, j] = ((output - dense) ** 2).sum()
    return errors / squares


def _measure_windows(unit: Unit, setting: Setting) -> Rows:
    """One row per head and width; nothing for models that read shorter passages."""
    from esscher.engine.text.collect import iterate_passages
    from esscher.engine.text.packing import first_passages

    if not _reads_long(setting):
        return []
    loaded, number = setting.loaded(setting.encoder), unit["passage"]
    # a short text has fewer passages
    passages = first_passages(loaded, setting.text, AtMost(number + 1), LONG_CONTEXT)
    rows: Rows = []
    halves = _sizes(*HALF_WIDTHS)
    for _, layer in iterate_passages(loaded, passages.passages[number : number + 1]):
        for head in range(layer.q.shape[1]):
            q = layer.q[0, head].numpy() * np.float32(layer.scaling)
            k, v = layer.k[0, head].numpy(), layer.v[0, head].numpy()
            rng = random_stream(setting.seed, "windows", number, layer.layer, head)
            squares = window_errors(q, k, v, halves, unit["queries"], rng).mean(axis=0)
            rows += [
                {
                    "layer": layer.layer,
                    "head": head,
                    "passage": number,
                    "n": 2 * half + 1 + RANDOM_KEYS,
                    "error": float(square) ** 0.5,
                }
                for half, square in zip(halves, squares, strict=True)
            ]
    return rows


MEASUREMENTS: dict[str, Measurement] = {
    "windows": Measurement(_windows_units, _measure_windows),
    "heads": Measurement(_heads_units, _measure_heads),
    "alpha-heads": Measurement(_alpha_units, _measure_alpha),
    "argmax-heads": Measurement(_argmax_units, _measure_argmax),
}


# Rules.


def over_heads(
    table: pd.DataFrame,
    statistic: Callable[[NDArray[np.int64]], float],
    purpose: str,
    most: float = np.inf,
) -> tuple[float, float, float]:
    """Return a statistic of heads and its 95% interval, by resampling layers and their heads.

    Heads of a layer share their tokens, so that layers are drawn first, then heads in each of them.
    Resampling a few of anything gives intervals that are too short: they are widened as Student's t
    does it for that many layers, or heads of one layer.

    Parameters
    ----------
    table
        One row per head, with its layer.
    statistic
        Takes numbers of rows.
    purpose
        Names the random stream.
    most
        Largest absolute value that the statistic can have.
    """
    rng = random_stream(0, purpose)
    layer = table["layer"].to_numpy()
    groups = [np.flatnonzero(layer == one) for one in np.unique(layer)]
    resampled = []
    for _ in range(RESAMPLES):
        drawn = [groups[i] for i in rng.integers(len(groups), size=len(groups))]
        resampled.append(
            statistic(np.concatenate([rng.choice(layer, size=len(layer)) for layer in drawn]))
        )
    value = statistic(np.arange(len(table)))
    count = len(groups) if len(groups) > 1 else len(table)
    widened = float("inf")
    if count > 1:
        widened = float(stdtrit(count - 1, 0.975) / 1.96 * np.sqrt(count / (count - 1)))
    low, high = value + widened * (np.nanquantile(resampled, [0.025, 0.975]) - value)
    return value, max(float(low), -most), min(float(high), most)


def median_head(
    table: pd.DataFrame, column: str, most: float = np.inf
) -> tuple[float, float, float]:
    """Return the median of a column over heads, and its 95% interval."""
    values = table[column].to_numpy(dtype=float)
    return over_heads(table, lambda rows: float(np.median(values[rows])), f"median {column}", most)


def _judge_heads(tables: Mapping[str, pd.DataFrame], setting: Setting) -> Entry:
    table = tables["heads"].sort_values(["layer", "head"]).reset_index(drop=True)
    count, largest = len(table), int(table["largest_n"].max())
    moments = {"mean": "mean", "cov": "covariance"}

    above = {m: int((table[f"{m}_low"] > table["bound"]).sum()) for m in moments}
    one_sided = {m: int((table[f"{m}_low"] > table["bound_one_sided"]).sum()) for m in moments}
    violated = {m: int((table[f"{m}_joint_high"] < table["bound"]).sum()) for m in moments}
    loose = float((table["mean"] / table["bound"]).median())
    bound = Check(
        says="The bound holds at every head: beta is at least 1/(2(1 + 32 Psi)).",
        verdict=verdict_of(
            all(above[m] == count for m in moments), any(violated[m] for m in moments)
        ),
        measured=f"Above it at {above['mean']} of {count} heads (mean) and {above['cov']} "
        f"(covariance); with the one-sided Psi at {one_sided['mean']} and {one_sided['cov']}. The "
        f"median head's exponent of the mean is {loose:.0f} times the bound.",
        rule="Holds if the 95% interval of mean and covariance is above the bound at every head; "
        "contradicted if at some head it is below, at 95% for all heads together.",
    )

    half: list[Check] = []
    parts: dict[str, str] = {}
    for m, name in moments.items():
        below = int((table[f"{m}_high"] < 0.5).sum())
        faster = int((table[f"{m}_low"] >= 0.5).sum())
        surely = int((table[f"{m}_joint_low"] >= 0.5).sum())
        ends = zip(table[f"{m}_low"], table[f"{m}_high"], strict=True)
        equal = class_counts(ends)["at 1/2"]
        parts[m] = f"{below} below, {count - below - faster} not told from 1/2, {faster} above"
        half.append(
            Check(
                says=f"The {name} converges at a rate strictly below 1/2.",
                verdict=verdict_of(below == count, surely > 0),
                measured=f"Of {count} heads, {parts[m]} (above at 95% for all heads together: "
                f"{surely}). The trivial alternative, 1/2 within 0.05, is shown at {equal}.",
                rule="By 95% intervals. Holds if the interval is below 1/2 at every head; "
                "contradicted if at some head it is at or above 1/2, at 95% for all heads "
                "together. A head whose interval holds 1/2 decides nothing.",
            )
        )

    known = table[table["mean"].notna()]
    beta, psi, layer = (known[name].to_numpy() for name in ("mean", "psi", "layer"))

    def within_layers(rows: NDArray[np.int64]) -> float:
        each = [rows[layer[rows] == number] for number in np.unique(layer[rows])]
        return float(
            np.mean([rank_correlation(psi[layer_rows], beta[layer_rows]) for layer_rows in each])
        )

    slower = over_heads(
        known, lambda rows: rank_correlation(psi[rows], beta[rows]), "beta against Psi", 1.0
    )
    within = over_heads(known, within_layers, "beta against Psi within layers", 1.0)
    rank = Check(
        says="Heads with a larger Psi converge more slowly.",
        verdict=verdict_of(slower[2] < 0, slower[1] > 0),
        measured="Rank correlation of the exponent of the mean with Psi: "
        f"{with_interval(*slower)}; within layers {with_interval(*within)} on average.",
        rule="Spearman's correlation over heads; 95% interval by resampling layers and the heads "
        "in them. Holds if it is below 0, contradicted if it is above 0. The noise of exponents "
        "pulls it towards 0.",
    )

    off = {
        name: (known[column] - known["mean"]).abs()
        for name, column in (("reference", "reference"), ("one-sided", "reference_one_sided"))
    }
    trivial = (known["mean"] - 0.5).abs()
    worse = (off["reference"] - trivial).to_numpy()
    gap = over_heads(known, lambda rows: float(worse[rows].mean()), "reference against 1/2")
    reference = Check(
        says="The line 1/(2(1 + Psi)) predicts exponents better than always saying 1/2.",
        verdict=verdict_of(gap[2] < 0, gap[1] > 0),
        measured=f"Mean absolute error {off['reference'].mean():.3f} (one-sided Psi "
        f"{off['one-sided'].mean():.3f}), of 1/2 {trivial.mean():.3f}; difference "
        f"{with_interval(*gap, digits=3)}.",
        rule="Exponents of the mean, difference of absolute errors head by head; 95% interval by "
        "resampling layers and the heads in them. Holds if it is below 0, contradicted if above.",
        counts=False,
    )

    evidence = {"heads": table}
    checks = [bound, *half, rank, reference]
    windows = tables.get("windows")
    if windows is not None and len(windows):
        # one curve per passage: the root mean square over heads; passages are what is independent
        squares = windows.assign(square=windows["error"] ** 2)
        curves = squares.pivot_table(index="passage", columns="n", values="square") ** 0.5
        rate = fit_rate(curves.to_numpy(), curves.columns.tolist(), seed=setting.seed)
        typical, (low, high) = float(table["map"].median()), rate.interval
        low, high = -np.inf if low is None else low, np.inf if high is None else high
        checks.append(
            Check(
                says=f"A window and {RANDOM_KEYS} random keys converge like random keys alone.",
                verdict=verdict_of(
                    low <= typical <= high and high - low <= 0.2, not low <= typical <= high
                ),
                measured=f"Exponent {with_interval(rate.exponent, low, high)} in the number of "
                f"keys, over {len(curves)} passages; random keys, median head: {typical:.2f}.",
                rule="Contradicted if the 95% interval over passages excludes the median head's "
                "exponent of the map, holds if it contains it and is no wider than 0.2.",
                counts=False,
            )
        )
        evidence["windows"] = windows

    width = float((table["mean_high"] - table["mean_low"]).median() / 2)
    return judged(
        "heads",
        f"The bound holds at {above['mean']} of {count} heads, {loose:.0f} times below what the "
        f"median head does. Exponents of the mean: {parts['mean']}; of the covariance: "
        f"{parts['cov']}. Rank correlation of the exponent of the mean with Psi: "
        f"{with_interval(*slower)}.",
        checks,
        f"Exponents are slopes up to n = {largest:,}, on one text. That of the covariance has a "
        "bias of order 1/n in it, which makes it steeper on such sizes.",
        f"More replicates: the interval of a typical head is ± {width:.2f}; exponents closer to "
        "1/2 than that are not told from it. More heads, for the correlation.",
        evidence,
    )


def judge_alpha_heads(table: pd.DataFrame) -> Check:
    """Judge whether exponents of the mean fall when the tilts of real heads are scaled up."""
    wide = table.pivot_table(index=["layer", "head"], columns="alpha", values="mean").dropna()
    alphas = wide.columns.to_numpy(dtype=float)
    first, last = float(alphas[0]), float(alphas[-1])
    heads = wide.reset_index()[["layer", "head"]].assign(
        change=(wide[last] - wide[first]).to_numpy(),
        rank=[rank_correlation(alphas, row) for row in wide.to_numpy()],
    )
    (value, low, high), ranks = median_head(heads, "change"), median_head(heads, "rank", 1.0)
    # heads share their samples, so that resampling them misses the noise they have in common: at
    # worst that is all noise of a head's exponents
    half = table.assign(half=(table["mean_high"] - table["mean_low"]) / 2).groupby("alpha")["half"]
    noise = float(np.hypot(half.median()[first], half.median()[last]))
    change = (value, value - np.hypot(value - low, noise), value + np.hypot(high - value, noise))
    return Check(
        says="Heads converge more slowly as their tilts are scaled up.",
        verdict=verdict_of(change[2] < 0, change[1] > 0),
        measured=f"From alpha = {first:g} to {last:g} the exponent of the mean changes by "
        f"{with_interval(*change)} at the median of {len(heads)} heads, from "
        f"{wide[first].median():.2f} to {wide[last].median():.2f}; rank correlation with alpha "
        f"{with_interval(*ranks)}.",
        rule="Median over heads of the change from the smallest alpha to the largest, with the "
        "same samples; 95% interval by resampling heads, widened by the noise of a head's "
        "exponents. Holds if it is below 0, contradicted if it is above.",
    )


def judge_argmax_heads(table: pd.DataFrame) -> Check:
    """Judge whether the argmax of real heads converges like a power of the logarithm."""
    heads = table.drop_duplicates(["layer", "head"])
    laws = heads["mean_law"].value_counts()
    listed = ", ".join(f"{name} {number}" for name, number in laws.items())
    known = heads[heads["mean_over_log"].notna()]
    slope = median_head(known, "mean")
    gap = known["mean_over_log"].to_numpy()
    over = over_heads(known, lambda rows: float(gap[rows].mean()), "laws of argmax")
    return Check(
        says="With the argmax in place of the softmax, the error of the mean of real heads decays "
        "like a power of the logarithm.",
        verdict=verdict_of(over[2] < 0, over[1] > 0),
        measured=f"From n = {table['n'].min():,} to {table['n'].max():,} powers of n describe the "
        f"error better than powers of ln n by {with_interval(*over, digits=1)} per head "
        f"(difference of the criteria of the fits). The median exponent is "
        f"{with_interval(*slope)}. Laws that single curves decide, at {len(heads)} heads: "
        f"{listed}.",
        rule="Mean over heads of that difference; 95% interval by resampling layers and the heads "
        "in them. Holds if it is below 0, contradicted if it is above. The paper's statement is "
        "about Gaussian tokens on the line; here the limit is the largest of the "
        f"{int(table['tokens'].max()):,} tokens that were read.",
        counts=False,
    )


# Figures.

MEASURED, REFERENCE, BOUND = "measured", "1/(2(1 + Ψ))", "1/(2(1 + 32 Ψ))"


def _draw_heads(entry: Entry) -> ChartType:
    table = entry.table("heads")
    kinds = Series(
        "kind",
        (MEASURED, REFERENCE, BOUND),
        colours=(BLUE, VERMILION, GREEN),
        shapes=("circle", LINE, LINE),
    )
    top = limits([0.0, 0.6, *table["mean_high"], *table["cov_high"]])
    panels = []
    for metric, column, title in (
        ("mean", "psi", "mean output"),
        ("cov", "psi", "covariance"),
        ("mean", "psi_one_sided", "mean output, one-sided Ψ"),
    ):
        rows = [
            {
                "name": f"head {row['layer']}.{row['head']}",
                "kind": MEASURED,
                "psi": row[column],
                "beta": row[metric],
                "low": row[f"{metric}_low"],
                "high": row[f"{metric}_high"],
                "hollow": not row[f"{metric}_trusted"],
            }
            for row in table.to_dict("records")
            if row[column] is not None and row[metric] is not None
        ]
        if not rows:  # one-sided Psi is not known everywhere
            continue
        ends = limits([row["psi"] for row in rows], log=True)
        x = Axis("psi", "Ψ", log=True, limits=ends)
        y = Axis("beta", "exponent β", limits=top)
        curves = [
            {"kind": kind, "psi": psi, "beta": 1 / (2 * (1 + factor * psi))}
            for kind, factor in ((REFERENCE, 1.0), (BOUND, 32.0))
            for psi in np.geomspace(*ends, 60)
        ]
        panels.append(
            panel(
                guides([{"at": 0.5, "name": "1/2"}], x, y),
                lines(curves, x, y, kinds),
                points(rows, x, y, kinds),
                title=title,
            )
        )
    note = "one point per head; bars: 95% intervals; hollow: not to be trusted"
    return figure(panels, "Measured exponents against Ψ", note=note)


EACH, MIDDLE = "each head", "median, 95% interval"
SQUARE_ROOT, LOGARITHM = "1/√n", "1/√(ln n)"


def draw_alpha_heads(table: pd.DataFrame) -> ChartType:
    """Draw exponents of the mean of real heads against the factor of their tilts: a panel."""
    kinds = Series("kind", (EACH, MIDDLE), colours=(GREY, VERMILION), shapes=(LINE, "circle"))
    x = Axis("alpha", "factor α of the tilts", log=True, limits=limits(table["alpha"], log=True))
    middle = []
    for alpha, some in table[table["mean"].notna()].groupby("alpha"):
        value, low, high = median_head(some, "mean")
        middle.append({"kind": MIDDLE, "alpha": alpha, "beta": value, "low": low, "high": high})
    y = Axis("beta", "exponent β, mean output", limits=limits([0.0, 0.6, *table["mean"].dropna()]))
    curves = [
        lines(
            [
                {"kind": EACH, "alpha": row["alpha"], "beta": row["mean"]}
                for row in some.to_dict("records")
            ],
            x,
            y,
            kinds,
        )
        for _, some in table.groupby(["layer", "head"])
    ]
    layer = ", ".join(str(one) for one in sorted(table["layer"].unique()))
    return panel(
        guides([{"at": 0.5, "name": "1/2"}], x, y),
        *curves,
        points(middle, x, y, kinds),
        title=f"real heads, layer {layer}",
    )


def draw_argmax_heads(table: pd.DataFrame) -> ChartType:
    """Draw the argmax's error of the mean against n, over all heads: a panel."""
    start = table["n"].min()
    known = table[table["mean_error"] > 0]
    first = known[known["n"] == start].set_index(["layer", "head"])["mean_error"]
    keys = pd.MultiIndex.from_frame(known[["layer", "head"]])
    known = known.assign(error=known["mean_error"].to_numpy() / first.reindex(keys).to_numpy())
    rows, spread = [], []
    for n, some in known.groupby("n"):
        value, low, high = median_head(some, "error")
        rows.append({"kind": MIDDLE, "n": n, "error": value, "low": low, "high": high})
        least, most = some["error"].quantile([0.1, 0.9])
        spread.append({"kind": MIDDLE, "n": n, "low": least, "high": most})
    curves = []
    for n in np.geomspace(start, table["n"].max(), 20):
        logarithm = np.log(n) / np.log(start)
        curves += [
            {"kind": SQUARE_ROOT, "n": n, "error": (n / start) ** -0.5},
            {"kind": LOGARITHM, "n": n, "error": logarithm**-0.5},
        ]
    ends = limits(
        [row[key] for row in spread for key in ("low", "high")] + [row["error"] for row in curves],
        log=True,
    )
    kinds = Series(
        "kind",
        (MIDDLE, SQUARE_ROOT, LOGARITHM),
        colours=(BLUE, VERMILION, GREEN),
        shapes=("circle", LINE, LINE),
    )
    x = Axis("n", "tokens n", log=True, limits=limits(table["n"], log=True))
    y = Axis("error", f"error over that at n = {start}", log=True, limits=ends)
    counts = table.drop_duplicates(["layer", "head"])["mean_law"].value_counts()
    text = "\n".join(f"{name}: {number}" for name, number in counts.items())
    return panel(
        bands(spread, x, y, colour=BLUE),
        lines(curves, x, y, kinds),
        points(rows, x, y, kinds),
        words([{"text": text}]),
        title="argmax of real heads (band: 10 to 90% of heads)",
    )


CLAIMS: dict[str, Claim] = {
    "heads": Claim(
        title="Heads of an encoder",
        says="Heads of a real model converge at rates strictly below 1/2, more slowly the larger "
        "Psi is, and never more slowly than the bound.",
        uses=("heads", "windows"),
        judge=_judge_heads,
        draw=_draw_heads,
    ),
}
