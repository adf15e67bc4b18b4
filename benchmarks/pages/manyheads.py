"""The page on many heads: what the heads of a layer have in common, made from stored probes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.finding import Finding, markdown_table
from esscher.core.errors import InputError
from esscher.runs.registry import load
from esscher.show.content import Plot
from esscher.studies.probe import Probe, ProbeStudy


def manyheads_finding(runs: Sequence[Path]) -> Finding:
    """Make the page from stored runs of ``esscher probe``, one per model and mode.

    Raises
    ------
    InputError
        Without runs, and for one that has no layer with several heads.
    """
    if not runs:
        raise InputError("there are no runs to make a page of; give directories of esscher probe")
    sections, trouble = [], []
    tables: dict[str, pd.DataFrame] = {}
    figures: dict[str, Plot] = {}
    for folder in runs:
        found = load(folder)
        assert isinstance(found, Probe)
        table = found.layers_table()
        if table.empty:
            raise InputError(f"{folder} has no layer with several heads; probe all heads")
        name = _name(found, set(figures))
        if not found.complete:
            trouble.append(f"{name} is incomplete: {len(table)} layers are there.")
        sections.append(_section(found, table))
        tables[name] = table
        figures[name] = found.plot("layers")
    return Finding(
        "manyheads",
        "Many heads: what their errors have in common",
        "\n\n".join(sections),
        tables,
        figures,
        tuple(trouble),
    )


def _name(found: Probe, taken: set[str]) -> str:
    """Name of a model and mode for files, unlike those that are taken."""
    words = f"{found.study.model_record.name} {found.study.mode}".lower()
    plain = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
    name, number = f"manyheads-{plain}", 2
    while name in taken:
        name, number = f"manyheads-{plain}-{number}", number + 1
    return name


def _section(found: Probe, table: pd.DataFrame) -> str:
    study = found.study
    rows = [_row(row) for row in table.to_dict("records")]
    return "\n".join(
        [
            f"## {study.model_record.name} on {study.text_record.source}, {study.mode} mode",
            "",
            _words(study, table),
            "",
            "Errors of the mean output, 95% intervals by resampling samples:",
            "",
            markdown_table(pd.DataFrame(rows)),
        ]
    )


def _words(study: ProbeStudy, table: pd.DataFrame) -> str:
    """The numbers of all layers in a few sentences."""
    middle = table.median(numeric_only=True)
    low, high = table["amplification"].min(), table["amplification"].max()
    heads = int(table["heads"].max())
    gap = float((table["projected"] - table["side_by_side"]).abs().max())
    return (
        f"{study.replicates} samples, {heads} heads a layer, correlations at n = "
        f"{study.sizes[-1]}. Behind the output projection the errors of the mean are "
        f"worth {middle['effective_heads']:.1f} independent heads of {heads} (median over layers), "
        f"those of single queries {middle['effective_heads_map']:.1f}. The squared error of a "
        f"layer's mean output is {middle['amplification']:.2f} times (median; {low:.2f} to "
        f"{high:.2f}) what independent heads would make of it, that of single queries "
        f"{middle['amplification_map']:.2f} times. Magnitudes go together with a correlation of "
        f"{middle['magnitude_correlation']:.2f}. The output projection changes a layer's exponent "
        f"by at most {gap:.2f}.\n\n{_alternative(table, heads)}"
    )


def _alternative(table: pd.DataFrame, heads: int) -> str:
    """The trivial alternative, and what the intervals say of it."""
    fewer = int((table["effective_heads_high"] < heads).sum())
    below = int((table["amplification_high"] < 1).sum())
    above = int((table["amplification_low"] > 1).sum())
    return (
        f"The trivial alternative, independent heads ({heads} effective ones, an amplification of "
        f"1), is excluded by the intervals of the effective heads in {fewer} of {len(table)} "
        f"layers and of the amplification in {below + above} (below 1 in {below}, above in "
        f"{above}). Weakest point: samples come from one cloud of one text, resampled at one "
        "size; intervals are about such samples, each layer at its own level."
    )


def _row(row: dict[Any, Any]) -> dict[str, Any]:
    def between(name: str, digits: int = 2) -> str:
        value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
        text = f"{value:.{digits}f}"
        return text if low is None else f"{text} ({low:.{digits}f} to {high:.{digits}f})"

    return {
        "layer": row["layer"],
        "effective heads": between("effective_heads", 1),
        "of magnitudes": between("effective_magnitudes", 1),
        "amplification": between("amplification"),
        "amplification, queries": between("amplification_map"),
        "exponent of heads, mean": f"{row['heads_mean']:.2f}",
        "worst": f"{row['heads_worst']:.2f}",
        "side by side": between("side_by_side"),
        "projected": between("projected"),
    }
