"""The result as people see it: the tables and the sentences."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from esscher.core.shown import between, counted, two_digits
from esscher.core.variables import var, with_ends
from esscher.runs.fits import Fit
from esscher.show.table_view import TableView
from esscher.studies.sweep.study import METRICS, Sweep, SweepData

TITLE = "Sweep of a synthetic head"
#: The errors in words.
TITLES = dict(zip(METRICS, ("mean output", "covariance", "map (rms)"), strict=True))
EXPONENT = var(
    "",
    "exponent β",
    "d3",
    name="exponent",
    terminal="exponent",
    interval="digits",
    help="β of error ~ C n^-β",
)
CONSTANT = var("", "constant C", "s3", name="constant")


def exponents(result: Sweep) -> xr.Dataset:
    """Return what is known of the rates; nothing where none could be fitted."""
    data = result.data if result.has_fits else result.data[[]]
    floats = [str(name) for name in data.data_vars if data[name].dtype.kind == "f"]
    return data.drop_vars([name for name in floats if data[name].isnull().all()])


TABLES = (
    TableView(
        "exponents",
        "Exponents",
        ("alpha", "metric"),
        (
            *(SweepData.horizon, EXPONENT, CONSTANT, SweepData.predicted, SweepData.asymptotic),
            *(SweepData.paper_reference, SweepData.paper_bound, SweepData.verdict),
            *(SweepData.floor_share, SweepData.floor_power, Fit.trusted, Fit.reasons),
        ),
        exponents,
        caption="β and C of error ~ C n^-β, with 95% intervals over replicates. Law: as predicted "
        "if the errors follow the predicted curve within noise; undecided if the errors may still "
        "level off (at half the last error), fall like a power of ln n, or be the sum of two "
        "powers, n^-1/2 and n^-1.",
        least=("bound", "ref.", "conj.", "floor <", "predicted"),
        most=30,
    ),
    TableView(
        "errors",
        "Errors",
        ("alpha", "size"),
        (SweepData.horizon, SweepData.error),
        caption="Mean over replicates with 95% intervals.",
    ),
    TableView(
        "replicates",
        "Errors of every replicate",
        ("alpha", "replicate", "size"),
        (SweepData.replicate_error,),
        most=0,
        page=False,
    ),
)


def subject(result: Sweep) -> str:
    """Return what was measured, in a line."""
    settings, head = result.setup.settings, result.head_record
    state = "" if result.complete else " (not complete)"
    low, high = float(result["horizon"].min()), float(result["horizon"].max())
    return (
        f"{counted(result.data.sizes['replicate'], 'replicate')}{state} of {head.tokens} tokens, "
        f"d = {head.key_dim}, H = {low:.3g}{'' if low == high else f' to {high:.3g}'}, queries: "
        f"{settings.queries}, seed {settings.seed}"
    )


def headline(result: Sweep) -> str:
    """Say how fast the error of the mean output falls, at the smallest and largest horizon."""
    data = result.data.sel(metric="mean").sortby("horizon")
    n = result.setup.settings.sizes[-1]
    sentences = []
    for place in dict.fromkeys((0, data.sizes["alpha"] - 1)):
        at = data.isel(alpha=place)
        where, error = f"At H = {float(at['horizon']):.3g}", float(at["error"].isel(size=-1)[0])
        size = "" if math.isnan(error) else f"; it is {two_digits(error)} at n = {n:,}"
        exponent, ends = with_ends(at["exponent"])
        if math.isnan(exponent):
            sentences.append(
                f"{where} no rate can be fitted to the error of the mean output{size}."
            )
            continue
        predicted, burn_in = float(at["predicted"]), float(at["log_burn_in"])
        text = f"{where} the error of the mean output falls with exponent {between(exponent, ends)}"
        text += "" if math.isnan(predicted) else f", predicted {two_digits(predicted)}"
        sentences.append(f"{text}{size}.")
        if not at["trusted"] and burn_in > math.log(n):
            needed = two_digits(math.exp(burn_in)) if burn_in < 34 else f"e^{burn_in:.0f}"
            sentences.append(
                f"n is too small to see the asymptotic rate: that takes about {needed} tokens."
            )
        elif not at["trusted"]:
            sentences.append("The exponent is not to be trusted.")
    return " ".join([*sentences, *(f"Note: {note}." for note in cautions(result))])


def cautions(result: Sweep) -> list[str]:
    """Return what a reader must know: of the limit, and of predictions."""
    data, settings = SweepData(result.data), result.setup.settings
    said = []
    if settings.reference_tokens is not None:
        why = str(data.no_limit.values)
        said.append(
            f"{why}{': ' if why else ''}errors are against attention over "
            f"{settings.reference_tokens} tokens drawn once, whose law the samples follow; "
            "exponents describe the approach to those tokens"
        )
    worst = data.dataset.isel(alpha=int(np.argmax(data.limit_covariance_error.fillna(0).values)))
    if worst["limit_covariance_error"] > 0:
        said.append(
            f"the limit is known by {worst['method'].item()}: its mean to "
            f"{float(worst['limit_mean_error']):.2g} and its covariance to "
            f"{float(worst['limit_covariance_error']):.2g}; errors below that mean nothing"
        )
    return [*said, *dict.fromkeys(note for note in data.prediction_note.values.tolist() if note)]


def notes(result: Sweep) -> list[str]:
    """Return what is said below the tables of a terminal."""
    rows = result.table("exponents").to_dict("records") if result.has_fits else []
    return [
        f"{subject(result)}.",
        *(
            f"Not trusted, H = {row['horizon']:.4g}, {row['metric']}: {row['reasons']}."
            for row in rows
            if row["reasons"]
        ),
    ]
