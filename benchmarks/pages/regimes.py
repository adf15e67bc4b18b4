"""The page on regimes: where the heads of real models stand at today's context windows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.finding import Finding, markdown_table
from esscher.core.errors import InputError
from esscher.math.theory.regimes import CONTEXT_WINDOWS, REGIMES
from esscher.math.theory.regimes_chart import draw_regimes
from esscher.runs.registry import load
from esscher.studies.probe import Probe
from esscher.studies.probe.regimes import count_words, order_check, regime_counts, regime_table

#: Caveat for readers of the counts.
CAVEAT = (
    "A head is placed by its horizon H and its typical tilt strength S = sqrt(F^2 + |tau|^2), both "
    "measured by a stored probe, at the position x = S/sqrt(2 ln n), or H^2/(1+H^2) if that is "
    "larger and H > 1: parametric up to x = 1/2, frozen from x = 1 ([extreme lengths]"
    "(../../extreme-lengths.md)).\n\n"
    "**What this is and is not.** It is Gaussian theory, to leading order in ln n, applied to "
    "second moments of the tokens that were probed. It says what would happen if a context window "
    "were filled with tokens like these; the models were not run at such lengths, and the keys of "
    "a longer text need not be like these. Tokens that are lighter than Gaussian far out thaw "
    "earlier than this says. The check below asks whether the position orders heads as their "
    "measured attention does, at the length of the probe."
)


def regimes_finding(runs: Sequence[Path]) -> Finding:
    """Make the page from stored runs of ``esscher probe``, one per model.

    Raises
    ------
    InputError
        Without runs, and for one in which no head is measured yet.
    """
    if not runs:
        raise InputError("there are no runs to make a page of; give directories of esscher probe")
    sections, trouble = [], []
    tables: dict[str, pd.DataFrame] = {}
    heads: dict[str, pd.DataFrame] = {}
    counts = []
    for folder in runs:
        found = load(folder)
        assert isinstance(found, Probe)
        name = _name(found, set(heads))
        table = regime_table(found)
        heads[name] = table
        tables[f"regimes-{_plain(name)}"] = table
        if not found.complete:
            trouble.append(f"{name} is incomplete: {len(table)} heads are there.")
        counts += [{"model": name} | row for row in regime_counts(found)]
        sections.append(_section(name, found, table))
    tables["regimes-counts"] = pd.DataFrame(
        [
            {key: value for key, value in row.items() if key != "ranges"}
            | {f"{kind}_low": row["ranges"][kind][0] for kind in REGIMES}
            | {f"{kind}_high": row["ranges"][kind][1] for kind in REGIMES}
            for row in counts
        ]
    )
    figure = draw_regimes(heads, title="Regimes of attention; points are heads, hollow where H > 1")
    return Finding(
        "regimes",
        "Regimes: where heads stand at today's context windows",
        "\n\n".join([CAVEAT, _summary(counts), *sections]),
        tables,
        {"regimes": figure},
        tuple(trouble),
    )


def _name(found: Probe, taken: set[str]) -> str:
    """Name of a model, unlike those that are taken."""
    model = found.study.model_record.name
    name, number = model, 2
    while name in taken:
        name, number = f"{model} ({number})", number + 1
    return name


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _summary(counts: list[dict[str, Any]]) -> str:
    rows = [
        {"heads of": row["model"], "window": row["window"]}
        | {kind: count_words(row, kind) for kind in REGIMES}
        for row in counts
    ]
    return (
        "Heads in each regime, by context window; in brackets the range if every H and S were 5% "
        "smaller or larger:\n\n" + markdown_table(pd.DataFrame(rows))
    )


def _section(name: str, found: Probe, table: pd.DataFrame) -> str:
    study = found.study
    lengths = table["n"]
    shown = f"{lengths.min():,.0f}"
    if lengths.max() > lengths.min():
        shown += f" to {lengths.max():,.0f}"
    quantiles = [
        {"": words}
        | {
            label: float(np.quantile(table[column], q))
            for label, q in (("10%", 0.1), ("median", 0.5), ("90%", 0.9), ("largest", 1.0))
        }
        for column, words in (("H", "horizon H"), ("S", "typical strength S"))
    ]
    return "\n".join(
        [
            f"## {name} on {study.text_record.source}, {study.mode} mode",
            "",
            f"{len(table)} heads, {int((table['H'] > 1).sum())} with H > 1; "
            f"{study.tokens:,} tokens, seed {study.seed}.",
            "",
            markdown_table(pd.DataFrame(quantiles), 2),
            "",
            _check(found, table, shown),
            "",
            _moving(table),
        ]
    )


def _check(found: Probe, table: pd.DataFrame, lengths: str) -> str:
    """Measured effective keys against the position, at the length of the probe."""
    if len(table) < 4:
        return "Too few heads to compare with their measured attention."
    check = order_check(found)
    return (
        f"Check at the length of the probe (n = {lengths}): the rank correlation of "
        "S/sqrt(2 ln n) with the measured effective number of keys, 1/sum p^2 (median over "
        f"queries), is {check['correlation']:.2f} ({check['low']:.2f} to {check['high']:.2f}, 95%, "
        "heads taken as independent); -1 is perfect order."
    )


def _moving(table: pd.DataFrame) -> str:
    """Which heads leave the frozen regime between the first and the last window, and which not."""
    windows = list(CONTEXT_WINDOWS)
    first, last = windows[0], windows[-1]
    words = []
    frozen = table[table[first] == "frozen"]
    if len(frozen):
        named = ", ".join(f"{row.layer}.{row.head}" for row in frozen.itertuples())
        words.append(f"Frozen at {first} (layer.head): {named}.")
        still = frozen[frozen[last] == "frozen"]
        if len(still):
            named = ", ".join(f"{row.layer}.{row.head}" for row in still.itertuples())
            words.append(f"Frozen at {last} still: {named}.")
    else:
        words.append(f"No head is frozen at {first}.")
    moved = int(((table[first] != "parametric") & (table[last] == "parametric")).sum())
    words.append(f"Heads that become parametric between {first} and {last}: {moved}.")
    return " ".join(words)
