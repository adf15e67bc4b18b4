"""The result as people see it: the tables and the sentences."""

from __future__ import annotations

import xarray as xr

from esscher.core.shown import between, counted, rates_said
from esscher.core.variables import var, with_ends
from esscher.engine.patterns import BASELINE
from esscher.math.statistics.intervals import class_counts, rate_words
from esscher.runs.fits import Fit
from esscher.show.table_view import TableView
from esscher.studies.sparse.compare import FASTER, KEEPS, MARGIN, NEVER, SLOWER, UNDECIDED
from esscher.studies.sparse.study import (
    AnySparse,
    SparseData,
    SparseLawData,
    SparseLawSettings,
)

TITLE = "Sparse attention patterns"
#: Verdicts in the order of the headline.
VERDICTS = (KEEPS, FASTER, SLOWER, NEVER, UNDECIDED)
#: How verdicts are made.
RULE = (
    "Verdict: whether the 95% interval of the exponent of the map minus that of random selection "
    f"lies within {MARGIN:g} of 0, or beyond; replicates (passages of a model) are independent, "
    "and one exponent stands for these budgets."
)
#: Variables that only tables show.
LAST = var(
    "",
    "error at the last budget",
    "s3",
    name="last_error",
    terminal="error",
    interval="range",
    help="relative map error at the largest budget, 95% interval",
)
MEAN, COV = (
    var("", f"exponent, {what}", name=f"exponent_{what}", terminal=what, interval="digits")
    for what in ("mean", "cov")
)
BEST = var(
    "",
    "smallest error",
    name="best",
    kind="U",
    terminal="best",
    help="pattern with the smallest mean map error; not tested against the next one",
)
HEAD_ERROR = var("", "error", "s3", name="error", terminal="error,")
HEAD_EXPONENT = var("", "exponent", name="exponent", page=False)


def verdicts(result: AnySparse) -> xr.Dataset:
    """Return the map of every pattern, and its exponents of mean and covariance."""
    data = result.data
    table = data.sel(metric="map", drop=True)
    table["last_error"] = table["error"].isel(budget=-1, drop=True)
    for metric in ("mean", "cov"):
        table[f"exponent_{metric}"] = data["exponent"].sel(metric=metric, drop=True)
    return table


def heads(result: AnySparse) -> xr.Dataset:
    """Return the errors of every head at the largest budget, and its exponents."""
    data = SparseData(result.data)
    error = data.head_error.isel(budget=-1, drop=True)
    best = result.data["pattern"].values[error.argmin("pattern").values]
    columns = {"error": error, "exponent": data.head_exponent}
    return xr.Dataset(columns | {"best": (("layer", "head"), best)})


TABLES = (
    TableView(
        "patterns",
        "Error against dense attention",
        ("pattern",),
        (
            *(SparseLawData.verdict, Fit.exponent, Fit.trusted),
            *(SparseLawData.difference, SparseLawData.ratio, LAST, MEAN, COV),
            *(Fit.law, Fit.reasons),
        ),
        verdicts,
        caption=RULE,
        least=("cov", "mean", "trusted", "error", "x random"),
    ),
    TableView(
        "heads",
        "All heads",
        ("layer", "head"),
        (BEST, HEAD_ERROR, HEAD_EXPONENT),
        heads,
        sort=f"error_{BASELINE}",
        caption="Map errors at the largest budget. The CSV file also has the exponents of all "
        "patterns, with intervals over passages (not adjusted for the number of heads).",
        most=0,
    ),
    TableView(
        "curves",
        "Errors by budget",
        ("pattern", "metric", "budget"),
        (SparseLawData.error,),
        page=False,
    ),
)
CURVES = TableView(
    "head-curves",
    "Map errors of heads by budget",
    ("layer", "head", "pattern", "budget"),
    (SparseData.head_error,),
)


def subject(result: AnySparse) -> str:
    """Return what was measured, in a line."""
    setup, settings = result.setup, result.setup.settings
    if not isinstance(settings, SparseLawSettings):
        return (
            f"{setup.model.name} on {setup.text.source}, "
            f"{counted(len(settings.layers) * len(settings.heads), 'head')}, "
            f"{counted(settings.passages, 'passage')} of {settings.context} tokens"
        )
    horizon = f"spectrum {list(settings.spectrum or ())}"
    if settings.horizon is not None:
        horizon = f"H = {settings.horizon:g}"
    return (
        f"{settings.law} tokens, {horizon}, d = {settings.dim}, N = {settings.tokens:,}, "
        f"{counted(settings.replicates, 'replicate')}"
    )


def headline(result: AnySparse) -> str:
    """Return the answer in a few sentences."""
    exponent, ends = with_ends(verdicts(result)["exponent"].sel(pattern=BASELINE))
    sentences = [
        "Random selection: the error falls with the number of keys, with exponent "
        f"{between(exponent, ends)}, {rate_words(ends)}."
    ]
    given = result["verdict"].to_series()
    groups = {verdict: given.index[given == verdict].tolist() for verdict in VERDICTS}
    said = "; ".join(
        f"{verdict} ({', '.join(names)})" for verdict, names in groups.items() if names
    )
    if said:
        sentences.append(f"Compared with it on these budgets: {said}.")
    if "head" in result.data.dims:
        random = result["head_exponent"].sel(pattern=BASELINE, bound=["low", "high"])
        counts = class_counts(map(tuple, random.values.reshape(-1, 2).tolist()))
        sentences.append(f"With random keys the error falls {rates_said(counts, 'head')}.")
    return " ".join(sentences)


def notes(result: AnySparse) -> list[str]:
    """Return what is said below the tables of a terminal."""
    first, *_, last = result.data["budget"].values
    return [
        f"{subject(result)}; r = {first:,} to {last:,} of {float(result['visible']):,.0f} keys "
        f"that a query sees. {RULE}"
    ]
