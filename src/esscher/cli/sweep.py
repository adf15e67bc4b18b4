"""``esscher sweep``: measure error curves, in parallel, in a run that can be killed and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from esscher.cli.cluster import chosen_cluster, executor_options
from esscher.cli.endings import finish
from esscher.cli.options import geometric_sizes, numbers, plain_console, plain_table
from esscher.cli.stopping import resumable
from esscher.cli.synthetic import head_options, synthetic_head
from esscher.core.errors import InputError
from esscher.core.shown import counted, plain_count, with_error
from esscher.core.validation import Array
from esscher.math.laws import STANDARD_LAWS
from esscher.show.tables import PlainConsole
from esscher.studies.sweep.curve import ErrorCurve
from esscher.studies.sweep.engine import sweep as run_sweep
from esscher.studies.sweep.measure import METRICS


@click.command()
@click.argument("law", metavar="LAW")
@head_options
@click.option("--sizes", metavar="A:B:K", required=True, help="Geometric grid of sizes n.")
@click.option("--alpha", metavar="A:B:K", help="Geometric grid of multipliers of the tilts.")
@click.option(
    "--replicates",
    type=int,
    default=64,
    show_default=True,
    help="Independent samples of tokens; with --precision, those to begin with.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the tokens.")
@click.option(
    "--precision", type=float, help="Go on until the exponent of the mean is known to +- this."
)
@click.option(
    "--max-replicates", type=int, help="But no more work than that (default 16 x --replicates)."
)
@click.option(
    "--queries",
    type=click.Choice(["tokens", "population"]),
    default="tokens",
    show_default=True,
    help="The tokens themselves, or queries independent of the keys.",
)
@click.option("--query-count", type=int, help="Number of queries (default: all, or 1024).")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64"]),
    default="float32",
    show_default=True,
    help="Precision of logits and weights; sums are in float64.",
)
@click.option("--device", default="cpu", show_default=True, help="cpu, or a device of PyTorch.")
@click.option(
    "--reference-tokens",
    type=int,
    help="Compare with attention over N tokens drawn once (default for laws without a limit: 4n).",
)
@click.option(
    "--predict/--no-predict",
    default=True,
    show_default=True,
    help="Also predict the exponents on these sizes (seconds per scale).",
)
@executor_options
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def sweep(
    law: str,
    horizon: float | None,
    dim: int | None,
    spectrum: str | None,
    tau: str | None,
    df: float,
    sizes: str,
    alpha: str | None,
    replicates: int,
    seed: int,
    precision: float | None,
    max_replicates: int | None,
    queries: str,
    query_count: int | None,
    dtype: str,
    device: str,
    reference_tokens: int | None,
    predict: bool,
    workers: int,
    scheduler: str | None,
    cluster: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure how fast attention over n tokens converges to its limit.

    LAW is the law of the tokens: gaussian, mixture, sphere, cube, signs, laplace, student. The last
    two have no limit; they are compared with attention over many tokens. Stopped or killed, the
    same command resumes.

    \b
    Examples:
      esscher sweep gaussian --dim 8 --horizon 1.5 --sizes 200:20000:10 --out RUN
      esscher sweep sphere --dim 8 --horizon 1 --alpha 0.1:10:5 --sizes 100:5000:6 --workers 2
      esscher sweep gaussian --horizon 0.5 --sizes 100:3000:6 --precision 0.02
    """  # noqa: D301 - click's mark for verbatim lines
    if law not in STANDARD_LAWS:
        raise InputError(f"there is no law {law!r}; choose from {', '.join(STANDARD_LAWS)}")
    with resumable(out), chosen_cluster(scheduler, cluster, workers) as executor:
        curve = run_sweep(
            synthetic_head(law, horizon, dim, spectrum, tau, df),
            geometric_sizes(sizes),
            replicates,
            seed,
            scales=(1.0,) if alpha is None else geometric_scales(alpha),
            queries=queries,
            query_count=query_count,
            dtype=dtype,
            device=device,
            reference_tokens=reference_tokens,
            predict=predict,
            executor=executor,
            out=out,
            precision=precision,
            max_replicates=max_replicates,
        )
    finish(lambda: {"law": law} | curve.to_dict(), lambda: print_curve(curve), as_json, out)


def geometric_scales(text: str) -> Array:
    """Read ``a:b:k`` (k scales in geometric progression), or ``a,b,c``."""
    parts = text.split(":")
    if len(parts) == 1:
        return numbers(text, "--alpha")
    if len(parts) != 3:
        raise InputError(f"--alpha is {text!r}; write first:last:count or a list a,b,c")
    first, last, count = numbers(",".join(parts), "--alpha")
    if not 0 < first < last:
        raise InputError(f"--alpha is {text!r}; it must start above 0 and end above its start")
    if count != int(count) or not 2 <= count <= 10_000:
        raise InputError(f"--alpha is {text!r}; the count must be a whole number of at least 2")
    return np.geomspace(first, last, int(count))


def print_curve(curve: ErrorCurve) -> None:
    """Print the errors at every scale and size."""
    console = plain_console()
    head = curve.configuration["head"]
    state = "" if curve.complete else " (not complete)"
    console.say(
        f"{counted(len(curve.replicates), 'replicate')}{state} of "
        f"{head['law'] or head['kind']} tokens, "
        f"d = {head['key_dim']}, queries: {curve.queries}, seed {curve.seed}",
    )
    for note in curve.notes:
        console.say(f"Note: {note}.")
    for alpha, rows in curve.to_frame().groupby("alpha", sort=False):
        horizon = rows["horizon"].iloc[0]
        table = plain_table(
            f"Errors at horizon H = {horizon:.4g} (alpha = {alpha:.4g})", least=("median",)
        )
        for name in ("n", "mean", "median", "cov", "median", "map", "median"):
            table.add_column(name, justify="right")
        for row in rows.to_dict("records"):
            table.add_row(plain_count(row["n"]), *_cells(row))
        console.print(table)
    if len(curve.sizes) > 1 and len(curve.replicates):
        _print_rates(console, curve)
    console.explain(
        "Errors of the mean output, of its covariance (Frobenius norm) and of the map (rms): "
        "mean and median over replicates, in brackets the standard error of the last digit.",
    )


def _print_rates(console: PlainConsole, curve: ErrorCurve) -> None:
    table = plain_table(
        "Exponents beta of error ~ C n^-beta, 95% intervals",
        least=("bound", "ref.", "sharp", "predicted"),
    )
    for name in ("H", "of", "beta", "interval", "predicted", "sharp", "ref.", "bound"):
        table.add_column(name, justify="left" if name == "of" else "right")
    table.add_column("law")
    warnings: list[str] = []
    for s, horizon in enumerate(curve.horizons):
        for metric in METRICS:
            rate = curve.rate(metric, s)
            lines = (rate.predicted, rate.sharp, rate.paper_reference, rate.paper_bound)
            table.add_row(
                f"{horizon:.4g}",
                metric,
                f"{rate.exponent:.3f}",
                f"{rate.interval[0]:.3f}-{rate.interval[1]:.3f}",
                *("" if line is None else f"{line:.3f}" for line in lines),
                rate.law + ("" if rate.trusted else " *"),
            )
            if not rate.trusted:
                reasons = "; ".join(rate.reasons)
                warnings.append(f"* H = {horizon:.4g}, {metric}: {reasons}.")
    console.print(table)
    for warning in warnings:
        console.say(warning)


def _cells(row: dict[Any, Any]) -> list[str]:
    cells = []
    for metric in ("mean", "cov", "map"):
        noise = row[f"{metric}_standard_error"]
        cells.append(with_error(row[metric], noise if np.isfinite(noise) else 0.0))
        cells.append(f"{row[f'{metric}_median']:.4g}")
    return cells
