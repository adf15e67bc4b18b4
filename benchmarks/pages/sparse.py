"""Sparse patterns: one page from stored runs of ``esscher sparse`` and ``sparse-law``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.finding import Finding, markdown_table
from esscher.core.errors import InputError
from esscher.math.statistics.records import class_counts, class_words
from esscher.runs.registry import load
from esscher.studies.sparse import Sparse
from esscher.studies.sparse.compare import NO_CROSSING
from esscher.studies.sparse.result import RANDOM, count_heads
from esscher.studies.sparse.verdicts import MARGIN, spoken

#: Meaning of the columns of the page's tables.
LEGEND = (
    "Errors are relative to the norm of dense outputs. Exponents beta of error ~ C r^-beta are "
    "fitted to errors divided by sqrt(1 - r/N), with 95% intervals from resampled replicates; an "
    "asterisk marks a fit that is not to be trusted or not a power law. `ratio`: map error over "
    "that of random selection, geometric mean over the budgets. `bias`: share of the squared map "
    "error, at the largest budget, that averaging does not remove: over tokens and choices at "
    "fixed queries for laws, over choices on the same passage for models (so that it is all of the "
    "error where nothing is random). `10%`: keys for 10% relative map error. `worth`: random keys "
    "with the same error as the largest budget. A pattern keeps the exponent of random selection "
    f"if the whole interval of the difference lies within {MARGIN:g} of 0 (r random keys, the "
    "trivial alternative, are in every comparison), it is faster or slower if the interval lies "
    "beyond, and undecided otherwise: then the words below the table say how many replicates "
    "would decide. All verdicts are about these budgets."
)


def sparse_finding(runs: Sequence[str | Path]) -> Finding:
    """One page from several stored runs.

    Parameters
    ----------
    runs
        Directories of ``esscher sparse`` and ``sparse-law``, in the order of the page, which uses
        their names.
    """
    if not runs:
        raise InputError("a finding needs at least one stored run of esscher sparse or sparse-law")
    studies = {Path(run).name: _read(Path(run)) for run in runs}
    if len(studies) < len(runs):
        raise InputError("two runs have the same name; give runs with names of their own")
    trouble = []
    for name, study in studies.items():
        if not study.patterns:
            raise InputError(f"the run {name} holds no measurements yet; run it first")
        if not study.complete:
            trouble.append(f"The run {name} is not complete.")
    rows = [LEGEND, "", "## Which patterns keep the exponent", "", *_summary(studies)]
    tables, figures = {}, {}
    for name, study in studies.items():
        table = pattern_table(study)
        rows += ["", f"## {study.subject}", "", study.headline, "", markdown_table(table)]
        rows += ["", *_words(study)]
        if study.heads:
            heads = head_table(study)
            rows += ["", *_about_heads(study), "", markdown_table(heads)]
            tables[f"{name}-heads"] = study.heads_table()
        tables[name] = study.table()
        tables[f"{name}-curves"] = study.curves_table()
        figures[name] = study.plot()
    return Finding(
        "sparse",
        "Sparse patterns: what a budget of keys costs",
        "\n".join(rows),
        tables,
        figures,
        tuple(trouble),
    )


def _read(run: Path) -> Sparse:
    found = load(run)
    if not isinstance(found, Sparse):
        raise InputError(f"{run} holds a run of kind {found.study.name!r}, not of sparse patterns")
    return found


def _plain(study: Sparse) -> dict[str, Any]:
    """The patterns as plain numbers, lists and strings."""
    return dict(study.to_dict()["patterns"])


def pattern_table(study: Sparse) -> pd.DataFrame:
    """One row per pattern: exponents, error, ratio, bias, break-even, verdict."""
    budgets = study.budgets
    rows = []
    for name, entry in _plain(study).items():
        even = entry["break_even"]
        row: dict[str, Any] = {"pattern": name}
        row |= {metric: _exponent(entry["fit"][metric]) for metric in ("map", "mean", "cov")}
        last = entry["curve"]["dense"]["map"]
        row[f"error at r = {budgets[-1]}"] = _percent(
            last["mean"][-1], None if last["standard_error"] is None else last["standard_error"][-1]
        )
        versus = entry["versus_random"]
        row["ratio"] = "1" if versus is None else _interval(
            versus["map"]["ratio"], versus["map"]["ratio_interval"]
        )  # fmt: skip
        row["bias"] = _bias(entry["bias"])
        row["10%"] = _budget(even["for_target"], "budget", budgets)
        row["worth"] = "" if versus is None else _budget(even["as_random"], "random_keys", budgets)
        row["verdict"] = entry["verdict"]
        rows.append(row)
    return pd.DataFrame(rows)


def head_table(study: Sparse) -> pd.DataFrame:
    """One row per pattern: how it does over single heads."""
    frame, budgets = study.heads_table(), study.budgets
    rows = []
    for name in study.patterns:
        own = frame[frame["pattern"] == name]
        reached = own["state"] != "above"
        needed = own["budget"].where(own["state"] != "below", budgets[0])
        rows.append(
            {
                "pattern": name,
                "median exponent": f"{own['exponent'].median():.2f}",
                "10% to 90% of heads": (
                    f"{own['exponent'].quantile(0.1):.2f} to {own['exponent'].quantile(0.9):.2f}"
                ),
                "heads within 10% error": f"{int(reached.sum())} of {len(own)}",
                "median keys of those": (
                    f"{needed[reached].median():.0f}" if reached.any() else "none"
                ),
                "exponents": class_words(
                    class_counts(unit.patterns[name].map.interval for unit in study.heads)
                ),
                "better than random / worse / undecided": (
                    ""
                    if name == RANDOM
                    else " / ".join(str(n) for n in count_heads(study.heads, name).values())
                ),
            }
        )
    return pd.DataFrame(rows)


def _summary(studies: dict[str, Sparse]) -> list[str]:
    """A table of verdicts, one column per run."""
    names = list(dict.fromkeys(name for study in studies.values() for name in study.patterns))
    rows = []
    for name in names:
        row: dict[str, Any] = {"pattern": name}
        for run, study in studies.items():
            entry = _plain(study).get(name)
            if entry is None:
                row[run] = ""
                continue
            fit, versus = entry["fit"]["map"], entry["versus_random"]
            times = "" if versus is None else f", x {versus['map']['ratio']:.2g}"
            row[run] = f"{entry['verdict']} ({fit['exponent']:.2f}{times})"
        rows.append(row)
    lines = [
        "Verdict on the map error (exponent, error over that of random selection):",
        "",
        markdown_table(pd.DataFrame(rows)),
    ]
    lines += ["", *(f"- `{run}`: {study.subject}" for run, study in studies.items())]
    return lines


def _words(study: Sparse) -> list[str]:
    """Say what the table leaves out: evidence, crossings, the limit."""
    rows = []
    for name, entry in _plain(study).items():
        if entry["versus_random"] is None:
            continue
        crossing = entry["break_even"]["crossing"]
        where = ""
        if crossing["budget"] is not None:
            low, high = (f"{end:.0f}" if end else "?" for end in crossing["interval"])
            where = f", r = {crossing['budget']:.0f} ({low} to {high})"
        other = [
            f"its {m} {spoken(entry['verdicts'][m]['verdict'])}"
            for m in ("mean", "cov")
            if entry["verdicts"][m]["verdict"] != entry["verdict"]
        ]
        extra = f"; {'; '.join(other)}" if other else ""
        rows.append(
            f"- **{name}** {spoken(entry['verdict'])}: {entry['evidence']}{extra}. "
            f"{crossing['says'].capitalize()}{where}."
        )
    if "corrected" in study.patterns:
        rows += ["", _crossings(_plain(study)["corrected"]["break_even"]["against"])]
    limits = {n: e["fit_limit"]["map"] for n, e in _plain(study).items() if "fit_limit" in e}
    if limits:
        listed = ", ".join(f"{name} {_exponent(fit)}" for name, fit in limits.items())
        dense = study.to_dict()["dense_against_limit"]["map"]
        rows += [
            "",
            f"Against the infinite-token limit (dense attention itself is {_percent(dense, None)} "
            f"from it) the exponents of the map error are: {listed}.",
        ]
    return rows


def _crossings(against: dict[str, Any]) -> str:
    """Where corrected selection breaks even with the others."""
    parts = []
    for found in against.values():
        where = ""
        if found["budget"] is not None:
            low, high = (f"{end:.0f}" if end else "?" for end in found["interval"])
            where = f" (r = {found['budget']:.0f}, {low} to {high})"
        if found["says"] != NO_CROSSING:
            parts.append(f"{found['says']}{where}")
    same = [name for name, found in against.items() if found["says"] == NO_CROSSING]
    if same:
        parts.append(f"no crossing beyond noise with {', '.join(same)}")
    return f"Corrected selection is {'; '.join(parts)}."


def _about_heads(study: Sparse) -> list[str]:
    last = study.budgets[-1]
    return [
        f"Over the {len(study.heads)} heads, each fitted on its own (intervals over passages, each "
        f"at its own level). Better than random: a smaller map error at r = {last}, paired over "
        "passages, after Holm over the heads. They share passages and random choices, and Holm's "
        "procedure holds however they depend on each other."
    ]


def _exponent(fit: dict[str, Any]) -> str:
    mark = "" if fit["trusted"] and fit["law"] == "power" else "*"
    return f"{_interval(fit['exponent'], fit['interval'], 3)}{mark}"


def _interval(value: float, ends: Sequence[float | None], digits: int = 3) -> str:
    if ends[0] is None or ends[1] is None:
        return f"{value:.{digits}g}"
    return f"{value:.{digits}g} [{ends[0]:.{digits}g}, {ends[1]:.{digits}g}]"


def _percent(value: float, error: float | None) -> str:
    return f"{100 * value:.3g}%" + ("" if error is None else f" ± {100 * error:.1g}")


def _bias(bias: dict[str, Any]) -> str:
    if bias["share"] is None:
        return ""
    value, noise = bias["square"][-1], bias["standard_error"][-1]
    share = 100 * bias["share"][-1]
    if share > 99.999:  # nothing is random on a passage
        return "all"
    spread = 100 * noise * bias["share"][-1] / value
    digits = f"{abs(spread):.0f}" if abs(spread) >= 1 else f"{abs(spread):.1g}"
    seen = "" if value > 2 * noise else "none seen: "
    return f"{seen}{share:.0f}% ± {digits}"


def _budget(found: dict[str, Any], name: str, budgets: Sequence[int]) -> str:
    under, over = f"under {budgets[0]}", f"over {budgets[-1]}"
    low, high = (f"{end:.0f}" if end else "" for end in found["interval"])
    if found["state"] == "inside":
        return f"{found[name]:.0f} [{low or under}, {high or over}]"
    point = under if found["state"] == "below" else over
    return f"{point} [{low or under}, {high or over}]" if low or high else point
