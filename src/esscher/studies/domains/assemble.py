"""From the numbers of all blocks to what is said about the corpora, as plain numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from esscher.core.validation import Array
from esscher.runs import Cell
from esscher.studies.domains.comparison import varies
from esscher.studies.domains.ranks import plan_transfer, rank_agreement
from esscher.studies.domains.statistics import BY_NAME, STATISTICS, Statistic
from esscher.studies.domains.tested import rounded, run_tests
from esscher.studies.domains.variance import components


def assemble(
    cells: list[list[Cell]], about: dict[str, Any], complete: bool, alpha: float
) -> dict[str, Any]:
    """Compare corpora.

    Parameters
    ----------
    cells
        Cells by corpus and block, as many blocks of every corpus, at least two.
    about
        What the run says about itself.
    complete
        Whether these are all blocks.
    alpha
        False discovery rate, and one minus the level of intervals.
    """
    configuration = about["configuration"]
    names = [corpus["name"] for corpus in configuration["corpora"]]
    seed = configuration["seed"]
    first = cells[0][0].table
    used = [s for s in STATISTICS if s.name in first.columns]
    raw = {s.name: _grid(cells, s.name) for s in used}
    # what is the same everywhere (delimiters of a model without any) is no statistic
    used = [s for s in used if s.name == "tokens" or np.ptp(np.nan_to_num(raw[s.name])) > 0]
    values = {s.name: s.forward(raw[s.name]) for s in used}
    whole = np.concatenate([values[s.name] for s in used])
    units = first[["layer", "head"]].to_numpy()
    tests = run_tests(values, used, names, units, alpha, seed)
    results = {
        "kind": "domains",
        "complete": complete,
        "configuration": configuration,
        "versions": about["versions"],
        "created": about["created"],
        "alpha": alpha,
        "blocks": whole.shape[2],
        "units": units.tolist(),
        "statistics": {
            s.name: {"title": s.title, "scale": "ratio" if s.logarithmic else "difference"}
            for s in used
        },
        "corpora": [
            _corpus(c, configuration["corpora"][c], cells[c], values, alpha)
            for c in range(len(names))
        ],
        **tests,
        "variance": {s.name: _components(values[s.name]) for s in used},
        "rank": {s.name: _ranks(values[s.name], names, seed) for s in used},
        "transfer": plan_transfer(values["tokens"], names, alpha, seed),
        "layers": {s.name: _layers(values[s.name], units, s, names, alpha) for s in used},
    }
    results["headline"] = headline(results)
    return results


def nothing_yet(about: dict[str, Any], done: int, wanted: int, alpha: float) -> dict[str, Any]:
    """Results of a run of which too little is there to compare anything."""
    return {
        "kind": "domains",
        "complete": False,
        "configuration": about["configuration"],
        "versions": about["versions"],
        "created": about["created"],
        "alpha": alpha,
        "blocks": 0,
        "headline": f"{done} of {wanted} blocks are measured: too few to compare corpora yet.",
    }


def _grid(cells: list[list[Cell]], name: str) -> Array:
    """One statistic, axes [head, corpus, block]."""
    columns = [[cell.table[name].to_numpy(dtype=np.float64) for cell in row] for row in cells]
    return np.ascontiguousarray(np.moveaxis(np.array(columns), 2, 0))


def _known(values: Array) -> Array | None:
    """Heads whose number is known in every block; None if it is a constant of most of them.

    Sinks are such a number: where most heads have none, there is no variance to divide and no
    order to keep.
    """
    if np.mean(varies(values)) < 0.5:
        return None
    return values[np.isfinite(values).all(axis=(1, 2))]


def _components(values: Array) -> dict[str, Any] | None:
    known = _known(values)
    found = None if known is None else components(known)
    return None if found is None else found.to_dict()


def _ranks(values: Array, names: list[str], seed: int) -> dict[str, Any] | None:
    known = _known(values)
    return None if known is None else rank_agreement(known, names, seed)


def _corpus(
    index: int, about: dict[str, Any], cells: list[Cell], values: dict[str, Array], alpha: float
) -> dict[str, Any]:
    medians = {}
    for name, found in values.items():
        statistic = BY_NAME[name]
        # the median over heads is one number per block; its interval is over the blocks
        by_block = _over_heads(np.nanmedian, found[:, index])
        low, middle, high = _interval(by_block, alpha)
        medians[name] = {
            "value": rounded(statistic.backward(np.array(middle))),
            "interval": [rounded(statistic.backward(np.array(end))) for end in (low, high)],
        }
    shares = {key: float(np.mean([cell.about[key] for cell in cells])) for key in
              ("tokens", "distinct", "unknown")}  # fmt: skip
    return about | shares | {"median": medians}


def _over_heads(summary: Callable[..., Any], values: Array) -> Array:
    """A summary over the heads whose number is known, by block; ``nan`` where none is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(summary(values, axis=0))


def _interval(blocks: Array, alpha: float) -> tuple[float, float, float]:
    """Lower end, mean and upper end of Student's interval over blocks (last axis)."""
    middle, count = float(blocks.mean()), len(blocks)
    error = float(blocks.std(ddof=1)) / np.sqrt(count)
    half = float(stats.t.ppf(1 - alpha / 2, count - 1)) * error
    return middle - half, middle, middle + half


def _layers(
    values: Array, units: Any, statistic: Statistic, names: list[str], alpha: float
) -> dict[str, list[dict[str, Any]]]:
    """Mean over the heads of a layer, by corpus, with an interval over blocks."""
    out: dict[str, list[dict[str, Any]]] = {}
    for c, name in enumerate(names):
        rows = []
        for layer in np.unique(units[:, 0]):
            by_block = _over_heads(np.nanmean, values[units[:, 0] == layer, c])
            ends = [rounded(statistic.backward(np.array(x))) for x in _interval(by_block, alpha)]
            rows.append({"layer": int(layer), "low": ends[0], "value": ends[1], "high": ends[2]})
        out[name] = rows
    return out


def headline(results: dict[str, Any]) -> str:
    """The answer in a few sentences."""
    counts, total = results["counts"]["any"], len(results["units"])
    rate = f"{100 * results['alpha']:g}%"
    sentences = [
        f"Corpora differ beyond chance in {counts['heads']} of {total} heads (false discovery rate "
        f"{rate}; {counts['heads_holm']} family-wise)."
    ]
    variance = results["variance"].get("tokens")
    if variance is not None and variance["head_over_corpus"]:
        low, high = variance["head_over_corpus_interval"]
        ratio, most, least = variance["head_over_corpus"], "head", "corpus"
        if ratio < 1:
            ratio, most, least = 1 / ratio, least, most
            low, high = (1 / high, 1 / low) if high is not None and low > 0 else (None, None)
        within = "" if high is None else f" (95%: {low:.2g} to {high:.2g})"
        sentences.append(
            f"For the tokens that 10% output error takes, which {most} it is matters {ratio:.2g} "
            f"times as much as which {least}{within}."
        )
    transfer = results["transfer"]
    sentences.append(
        "A number of tokens planned on one corpus is off by a factor of "
        f"{transfer['factor']:.2f} on another for a typical head, and by "
        f"{transfer['factor_within']:.2f} on other text of the same corpus."
    )
    if not results["complete"]:
        sentences.append(f"So far from {results['blocks']} blocks of every corpus.")
    return " ".join(sentences)


def differences(results: dict[str, Any]) -> pd.DataFrame:
    """Every comparison of two corpora: one row per statistic, head and pair."""
    rows = []
    for name, found in results.get("tests", {}).items():
        for pair in found["pairs"]:
            for (layer, head), effect, low, high, p in zip(
                results["units"], pair["effect"], pair["low"], pair["high"], pair["adjusted"],
                strict=True,
            ):  # fmt: skip
                rows.append((name, layer, head, pair["a"], pair["b"], effect, low, high, p))
    columns = ["statistic", "layer", "head", "a", "b", "effect", "low", "high", "adjusted_p"]
    return pd.DataFrame(rows, columns=columns)
