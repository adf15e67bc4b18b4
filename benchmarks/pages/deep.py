"""The page on deep stacks: how the sampling error of attention travels through layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.finding import Finding, markdown_table
from esscher.core.errors import InputError
from esscher.math.statistics.records import class_counts, class_words
from esscher.runs.registry import load
from esscher.show.drawing import Plot
from esscher.studies.deep import Deep
from esscher.studies.deep.headlines import SAME

#: Rows of a table of layers that the page shows; all of them are in the CSV file.
SHOWN = 8


def deep_finding(runs: Sequence[Path]) -> Finding:
    """Make the page from stored runs of ``esscher deep`` and ``deep-stack``.

    Parameters
    ----------
    runs
        Directories of runs. Those without any complete cell are an error; incomplete ones are used
        and named.
    """
    if not runs:
        raise InputError("there are no runs to make a page of; give directories of esscher deep")
    sections: list[str] = []
    tables: dict[str, pd.DataFrame] = {}
    figures: dict[str, Plot] = {}
    trouble: list[str] = []
    for folder in runs:
        found = _read(folder)
        if not found.layers:
            raise InputError(f"{folder} has no complete cell yet; run its command again")
        name = _name(found, set(figures))
        configuration = found.study.configuration()
        if not found.complete:
            trouble.append(f"{name} is incomplete: {found.cells} cells are there.")
        if found.is_gaussian:
            sections.append(_stack_section(found))
            tables[f"{name}-limit"] = found.limit_table()
            limits = found.to_dict()["limit"]
            for agrees, words in ((False, "is contradicted"), (None, "is undecided")):
                layers = [limit["layer"] for limit in limits if limit["agrees"] is agrees]
                if layers:
                    trouble.append(f"{name}: the recursion {words} in layers {layers}.")
        else:
            sections.append(_model_section(found, configuration))
            tables[f"{name}-end"] = found.end_table()
        tables[f"{name}-layers"] = found.table()
        figures[name] = found.plot()
    return Finding(
        "deep",
        "Deep stacks: how the sampling error travels through layers",
        "\n\n".join(sections),
        tables,
        figures,
        tuple(trouble),
    )


def _read(run: Path) -> Deep:
    found = load(run)
    if not isinstance(found, Deep):
        raise InputError(f"{run} holds a run of kind {found.study.name!r}, not of deep stacks")
    return found


def _layers(found: Deep) -> list[dict[str, Any]]:
    """The layers as plain numbers, lists and strings."""
    return list(found.to_dict()["layers"])


def _name(found: Deep, taken: set[str]) -> str:
    """Name of a run's tables and figure: what was measured, numbered if it occurs twice."""
    configuration = found.study.configuration()
    subject = "gaussian" if found.is_gaussian else str(configuration["model"]["name"])
    plain = "deep-" + re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")
    name, number = plain, 2
    while name in taken:
        name, number = f"{plain}-{number}", number + 1
    return name


def _stack_section(found: Deep) -> str:
    configuration, sizes = found.study.configuration(), found.sizes
    rows = []
    for layer in _some(_layers(found)):
        limit = found.to_dict()["limit"][layer["layer"]]
        rows.append(
            {
                "depth": layer["layer"] + 1,
                f"error, n = {sizes[0]}": _percent(layer["error"]["map"], 0),
                f"error, n = {sizes[-1]}": _percent(layer["error"]["map"], -1),
                "growth": _step(layer["growth"]["map"][-1]),
                "exponent map": _exponent(layer["fit"]["map"]),
                "exponent mean": _exponent(layer["fit"]["mean"]),
                "exponent cov": _exponent(layer["fit"]["cov"]),
                "largest deviation from the recursion": _deviation(limit),
            }
        )
    agree = [limit["agrees"] for limit in found.to_dict()["limit"]]
    return "\n\n".join(
        [
            f"## Gaussian stack of {configuration['depth']} layers",
            f"d = {configuration['dim']}, horizon {configuration['horizon']:g} in every layer, "
            f"residual {configuration['residual']:g}, gain {configuration['output_scale']:g}, "
            f"n = {sizes[0]} to {sizes[-1]:,}, {configuration['replicates']} replicates, seed "
            f"{configuration['seed']}. {found.headline}",
            f"The measured limit agrees with the recursion within {100 * SAME:g}% of a variance in "
            f"{agree.count(True)} of {len(agree)} layers, differs in {agree.count(False)}, and is "
            f"undecided in {agree.count(None)}; layers share their tokens, so that these are not "
            "independent confirmations. Errors are those of a token against the limit map of its "
            "own input, relative; deviations are in standard errors, beside the bound that the "
            "largest of them stays below with probability 0.95.",
            markdown_table(pd.DataFrame(rows)),
        ]
    )


def _model_section(found: Deep, configuration: dict[str, Any]) -> str:
    model = configuration["model"]
    kind = "decoder: a reduced cache" if model["causal"] else "encoder"
    parts = [
        f"## {model['name']} ({kind})",
        f"{configuration['passages']} passages of {configuration['context']} tokens of "
        f"{configuration['text']['source']}, {configuration['draws']} draws, seed "
        f"{configuration['seed']}. {found.headline}",
        _exponent_sentence(found),
        markdown_table(_layer_table(found)),
        "Intervals are over passages, the draws of a passage averaged first; a few passages of one "
        "text say nothing about other texts. End of the model:",
        markdown_table(_end_table(found)),
    ]
    terciles = found.to_dict()["terciles"]
    if terciles is not None:
        middle = len(found.sizes) // 2
        where = "in each layer" if terciles["scope"] == "layer" else "in the whole model"
        rows = [
            {
                "third": name,
                "heads": about["heads"],
                "H": f"{about['horizon_min']:.2f} to {about['horizon_max']:.2f}",
                "median H": about["horizon_median"],
                "mean layer": about["mean_layer"],
            }
            | {
                title: _percent(terciles[part][name], middle) if name in terciles[part] else ""
                for part, title in (
                    ("error", "error behind the last block"),
                    ("common", "of which common to all tokens"),
                )
            }
            for name, about in terciles["heads"].items()
        ]
        parts += [
            f"Thirds of the heads by horizon, {where}; while one is sampled ({terciles['keys']}) "
            f"the others attend to all keys (n = {found.sizes[middle]} in the last columns):",
            markdown_table(pd.DataFrame(rows), 2),
        ]
    return "\n\n".join(parts)


def _exponent_sentence(found: Deep) -> str:
    out, layers = [], _layers(found)
    for mode in layers[0]["fit"]:
        fits = [layer["fit"][mode] for layer in layers if layer["fit"][mode] is not None]
        if not fits:
            continue
        values = [fit["exponent"] for fit in fits]
        trusted = sum(fit["trusted"] for fit in fits)
        counts = class_words(class_counts(fit["interval"] for fit in fits))
        out.append(
            f"{mode} samples: the exponent of a layer's error is {np.median(values):.2f} in the "
            f"median layer, {min(values):.2f} to {max(values):.2f} over all of them ({trusted} of "
            f"{len(fits)} can be trusted; by their intervals {counts})"
        )
    text = "; ".join(out)
    return f"{text[:1].upper()}{text[1:]}." if text else "One budget gives no exponents."


def _layer_table(found: Deep) -> pd.DataFrame:
    middle = len(found.sizes) // 2
    n = found.sizes[middle]
    rows = []
    for layer in _some(_layers(found)):
        row: dict[str, Any] = {"layer": layer["layer"]}
        for mode in layer["error"]:
            row |= {
                f"{mode}: error, n = {n}": _percent(layer["error"][mode], middle),
                f"{mode}: growth": _step(layer["growth"][mode][middle]),
                f"{mode}: exponent": _exponent(layer["fit"][mode]),
            }
        rows.append(row)
    return pd.DataFrame(rows)


def _end_table(found: Deep) -> pd.DataFrame:
    end = found.to_dict()["end"]
    titles = {"kl": "KL (nats)", "top1": "same top token", "perplexity": "perplexity",
              "cosine": "cosine"}  # fmt: skip
    variants = next(iter(end.values()))
    rows = [
        {"sampled": variant, "n": str(n)}
        | {titles[name]: _interval(end[name][variant], j) for name in end}
        for variant in variants
        for j, n in enumerate(found.sizes)
    ]
    if "perplexity" in end:
        rows.append({"sampled": "nothing", "n": "all",
                     "perplexity": _interval(end["perplexity"]["dense"], 0)})  # fmt: skip
    main = "kl" if "kl" in end else "cosine"
    for variant in variants:
        fit = end[main][variant]["fit"]
        rows.append({"sampled": variant, "n": "exponent", titles[main]: _exponent(fit)})
    return pd.DataFrame(rows)


def _some(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most a few layers, evenly spaced, with the first and the last."""
    chosen = np.unique(np.linspace(0, len(layers) - 1, min(SHOWN, len(layers))).round())
    return [layers[int(i)] for i in chosen]


def _percent(found: dict[str, Any], j: int) -> str:
    error = found["standard_error"][j]
    noise = "" if error is None else f" ± {100 * error:.2g}"
    return f"{100 * found['mean'][j]:.3g}{noise}%"


def _interval(found: dict[str, Any], j: int) -> str:
    ends = found["interval"][j]
    value = f"{found['mean'][j]:.3g}"
    return value if ends is None else f"{value} ({ends[0]:.3g} to {ends[1]:.3g})"


def _step(step: dict[str, Any] | None) -> str:
    if step is None:
        return ""
    low, high = step["interval"]
    value = f"{step['factor']:.2f}"
    return value if None in (low, high) else f"{value} ({low:.2f} to {high:.2f})"


def _exponent(fit: dict[str, Any] | None) -> str:
    if fit is None:
        return ""
    low, high = fit["interval"]
    value = f"{fit['exponent']:.2f}{'' if fit['trusted'] else '*'}"
    return value if None in (low, high) else f"{value} ({low:.2f} to {high:.2f})"


def _deviation(limit: dict[str, Any]) -> str:
    if limit["largest"] is None:
        return ""
    return f"{limit['largest']:.2f} (bound {limit['bound']:.2f})"
