"""A probe as people see it: the tables and the sentences."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import xarray as xr

from esscher.core.shown import counted, rates_said, two_digits
from esscher.core.variables import BOUNDS, by_row, var
from esscher.math.statistics.intervals import class_counts
from esscher.runs.fits import Fit
from esscher.runs.result import Result
from esscher.show.table_view import TableView
from esscher.studies.probe.combine import NORMAL
from esscher.studies.probe.study import TOLERANCES, OnePass, ProbeData, ProbeSettings

Probe = Result[ProbeSettings]
TITLE = "Probe of a model"
#: Output error from which a head is one to leave alone: sampling it is no estimate.
LARGE = 0.5
#: Heads of a flag that are named.
NAMED = 12
NEVER = "more than 10⁸"

#: Variables that only tables show.
TOKENS = tuple(
    var(
        "bound",
        f"tokens for {tolerance:.0%}",
        "n3",
        name=f"tokens_{100 * tolerance:.0f}",
        help=f"for {tolerance:.0%} relative output error, with 95% interval",
        terminal="tokens for 10%" if tolerance == 0.1 else "",
        page=tolerance == 0.1,
        missing=NEVER,
        last=True,
    )
    for tolerance in TOLERANCES
)
EXTRAPOLATED = var(
    "",
    name="extrapolated",
    kind="b",
    terminal="beyond",
    help="whether that is more than the tokens that were read: extrapolated, and larger if more "
    "text has rarer tokens",
)
HOLDS = var(
    "",
    "bound",
    name="holds",
    kind="U",
    terminal="bound",
    help="whether the mean's exponent is above the paper's, by its 95% interval",
)
FLAGGED = var("", "flags", name="flags", kind="U", help="what stands out at this head")
LOST = var("", "sinks and delimiters", name="lost", page=False)
SINKS = var("", "largest sinks", name="sinks", kind="U", page=False)
COUNT = var("", "heads", "n0", name="heads", kind="i", terminal="heads")
WHICH = var("", "which", name="which", kind="U", terminal="which")
TYPICAL = var(
    "", "mean exponent", name="typical", terminal="mean", help="mean exponent of the heads"
)
WORST = var("", "worst exponent", name="worst", terminal="worst", help="smallest of them")
WORST_HEAD = var("", "worst head", "n0", name="worst_head", kind="i")
SIDE_BY_SIDE = var(
    "bound",
    "exponent, side by side",
    name="side_by_side",
    terminal="side by side",
    interval="digits",
    help="exponent of the heads' outputs side by side",
)
PROJECTED = var(
    "bound",
    "exponent, projected",
    name="projected",
    terminal="projected",
    interval="digits",
    help="exponent behind the output projection",
)
ERROR = var("bound", name="error", format="s3", help="measured, relative")
FITTED = var("", name="fitted", format="s3")
TRUSTED = var("", name="trusted", kind="b", help="whether the fitted exponent can be")
PREDICTED = var("bound", name="predicted", format="s3", help="predicted from one pass")


def heads(result: Probe) -> xr.Dataset:
    """Return the numbers of every head, with words for tables."""
    data = ProbeData(result.data)
    table = result.data.drop_dims(["size", "errors"])
    for tolerance, column in zip(TOLERANCES, TOKENS, strict=True):
        table[column.name] = data.one_pass.tokens.sel(within=tolerance, drop=True)
    needed = table["tokens_10"].sel(bound="value", drop=True)
    low, high = (exponents(result).sel(metric="mean", bound=end) for end in ("low", "high"))
    bound, flags = data.one_pass.paper_bound, data.flagged["flag"].values
    holds = np.where(low > bound, "holds", np.where(high < bound, "violated", "undecided"))
    table = table.drop_vars("tokens").assign(
        extrapolated=~(needed <= data.one_pass.keys),
        holds=(bound.dims, holds),
        lost=data.one_pass.sink_share + data.one_pass.delimiter_share,
        flags=by_row(lambda raised: ", ".join(flags[raised]), "flag", data.flagged),
        sinks=by_row(
            lambda tokens, shares: (
                ", ".join(
                    f"{token!r} {share:.0%}"
                    for token, share in zip(tokens, shares, strict=True)
                    if share == share  # fewer sinks than are named
                )
                or "none"
            ),
            "rank",
            data.one_pass.sink_token,
            data.one_pass.sink_received,
        ),
    )
    unknown = ["exponent", "trusted"] if result.setup.settings.predict else []
    if bool(data.one_pass.psi_one_sided.isnull().all()):
        unknown.append("psi_one_sided")
    return table.drop_vars(unknown)


def exponents(result: Probe) -> xr.DataArray:
    """Return the exponents of the heads: measured, or predicted if nothing was sampled."""
    data = ProbeData(result.data)
    return data.predicted_exponent if result.setup.settings.predict else data.fit.exponent


def by_need(result: Probe) -> pd.DataFrame:
    """Return the table of heads, those that need most tokens first."""
    return TABLES[0].ordered(result)


def enough_for(result: Probe, share: float) -> float:
    """Return the tokens for 10% error that are enough for a share of the heads; NaN: none are."""
    tokens = by_need(result)["tokens_10"]
    return float(tokens.iloc[-math.ceil(share * len(tokens))])


def flags(result: Probe) -> xr.Dataset:
    """Return the flags that are raised, with their heads, those that need most tokens first."""
    raised = ProbeData(result.data).flagged.to_dataframe("raised").reset_index()
    order = by_need(result)[["layer", "head"]].merge(raised[raised["raised"]])
    rows: dict[str, tuple[int, str]] = {}
    for flag, there in order.groupby("flag", sort=False):
        names = [f"{layer}.{head}" for layer, head in there[["layer", "head"]].to_numpy()]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        rows[str(flag)] = len(names), ", ".join(names[:NAMED]) + more
    if not rows:
        return xr.Dataset()
    columns = zip(("heads", "which"), zip(*rows.values(), strict=True), strict=True)
    data = {name: ("flag", list(values)) for name, values in columns}
    return xr.Dataset(data, {"flag": list(rows)})


def layers(result: Probe) -> xr.Dataset:
    """Return what the heads of each layer have in common, of errors of the mean output."""
    data = ProbeData(result.data)
    if bool(data.correlation.isnull().all()):  # one head, or too few samples
        return xr.Dataset()
    table = result.data[["effective_heads", "amplification"]].sel(errors="mean", drop=True)
    table = table.isel(size=-1, drop=True)
    each = data.fit.exponent.sel(metric="mean", bound="value", drop=True)
    return table.assign(
        typical=each.mean("head"),
        worst=each.min("head"),
        worst_head=each["head"][each.argmin("head")].drop_vars("head"),
        side_by_side=data.side_by_side.exponent.sel(metric="mean", drop=True),
        projected=data.projected.exponent.sel(errors="mean", drop=True),
    )


def curves(result: Probe) -> xr.Dataset:
    """Return errors of every head against n, relative to the size of its outputs.

    That of the covariance is relative to its square. Measured and predicted ones have 95%
    intervals.
    """
    data = ProbeData(result.data)
    one_pass = data.one_pass
    square = 1 + (data.dataset["metric"] == "cov")
    scale = one_pass.norm.where(one_pass.norm > 0, 1.0) ** square
    error, reach = one_pass.predicted_error, NORMAL * one_pass.predicted_standard_error
    low = (error - reach).where(error - reach > error / 10, error / 10)
    predicted = xr.concat([error, low, error + reach], "bound", join="override")
    constant, exponent = (f.sel(bound="value") for f in (data.fit.constant, data.fit.exponent))
    fitted = constant * data.dataset["size"] ** -exponent
    table = {"error": data.error / scale, "fitted": fitted / scale, "predicted": predicted / scale}
    return xr.Dataset(table | {"trusted": data.fit.trusted}).assign_coords(bound=list(BOUNDS))


TABLES = (
    TableView(
        "heads",
        "All heads",
        ("layer", "head"),
        (
            *(*TOKENS, EXTRAPOLATED, OnePass.at_context, FLAGGED, OnePass.horizon),
            *(OnePass.psi, OnePass.paper_bound, HOLDS, OnePass.paper_reference, Fit.exponent),
            *(ProbeData.predicted_exponent, OnePass.khat, OnePass.ess, OnePass.sink_share),
            *(OnePass.delimiter_share, LOST, SINKS, OnePass.psi_one_sided, OnePass.sharp),
            *(OnePass.frobenius, OnePass.tau, ProbeData.reference_share, OnePass.keys),
        ),
        heads,
        sort="tokens_10",
        caption="Brackets are 95% intervals. Click a row, or press Enter on it, to see the head's "
        "curves above. The CSV file has every column.",
        least=(
            *("ESS", "k-hat", "predicted cov", "predicted map", "bound", "beyond"),
            *("predicted mean", "H", "exponent cov", "paper", "exponent map"),
        ),
    ),
    TableView(
        "flags",
        "Flags: what stands out",
        ("flag",),
        (COUNT, WHICH),
        flags,
        sort="heads",
        most=100,
        caption="Heads are written LAYER.HEAD, those that need most tokens first. Each head's own "
        "flags stand beside it in the table of all heads.",
    ),
    TableView(
        "layers",
        "Heads together: errors of the mean output",
        ("layer",),
        (
            *(ProbeData.effective_heads, ProbeData.amplification, TYPICAL, WORST, WORST_HEAD),
            *(SIDE_BY_SIDE, PROJECTED),
        ),
        layers,
        most=1000,
        page=False,
    ),
)
CURVES = TableView(
    "curves",
    "Errors of every head",
    ("layer", "head", "metric", "size"),
    (ERROR, FITTED, PREDICTED, TRUSTED),
    curves,
)


def subject(result: Probe) -> str:
    """Return what was measured: model, text, mode, tokens, sizes and replicates."""
    setup, settings = result.setup, result.setup.settings
    how = counted(settings.replicates, "replicate")
    return (
        f"{setup.model.name} on {setup.text.source}, {settings.mode}, {settings.tokens:,} tokens, "
        f"n = {settings.sizes[0]:,} to {settings.sizes[-1]:,}, "
        f"{'predicted from one pass' if settings.predict else how}"
    )


def headline(result: Probe) -> str:
    """Return the answer in a few sentences: the tokens it takes, and how fast errors fall."""
    frame, context = by_need(result), result.setup.model.max_positions
    needed, keys = frame["tokens_10"].fillna(np.inf), frame["keys"]
    neediest = f"{frame['layer'][0]}.{frame['head'][0]}"
    large = int((frame["at_context_low"] > LARGE).sum())
    ends = exponents(result).sel(metric="mean", bound=["low", "high"]).transpose(..., "bound")
    counts = class_counts(
        (None, None) if low != low else (low, high)
        for low, high in ends.values.reshape(-1, 2).tolist()
    )
    how = "predicted" if result.setup.settings.predict else "measured"
    text = (
        "For 10% output error a typical head needs "
        f"{_tokens(float(needed.median()), float(keys.median()))}, the neediest ({neediest}) "
        f"{_tokens(float(needed[0]), float(keys[0]))}. "
    )
    if large:
        text += (
            f"At {context:,.0f} tokens, the model's own context length, {counted(large, 'head')} "
            f"{'is' if large == 1 else 'are'} more than {LARGE:.0%} off: keep all tokens there. "
        )
    return f"{text}The error of the mean output falls {rates_said(counts, 'head')} ({how})."


def _tokens(tokens: float, read: float) -> str:
    """A number of tokens; beyond those that were read it is extrapolated, and says so."""
    if not math.isfinite(tokens):
        return "more tokens than can be predicted"
    text = two_digits(max(tokens, 1.0)) if tokens >= 10 else f"{tokens:.0f}"
    return f"~{text} tokens (extrapolated)" if tokens > read else f"{text} tokens"


def notes(result: Probe) -> list[str]:
    """Return what is said below the tables of a terminal."""
    bounds = heads(result)["holds"].values
    violated = int((bounds == "violated").sum())
    return [
        "The paper's bound on the exponent of the mean holds at "
        f"{int((bounds == 'holds').sum())} of {bounds.size} heads"
        + (f" and is violated at {violated}." if violated else ".")
    ]
