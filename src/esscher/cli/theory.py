"""``esscher theory``: limit, exponents, constants, burn-in and predicted curves of a head."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from esscher.cli.printing import BlockCommand, print_json
from esscher.cli.study import HEAD_OPTIONS, synthetic_head
from esscher.core.options import geometric_sizes
from esscher.core.shown import plain_count, with_error
from esscher.core.validation import STANDARD_LAWS
from esscher.show.tables import PlainConsole, PlainTable

if TYPE_CHECKING:
    from esscher.math.theory import Prediction


@click.command(cls=BlockCommand, params=list(HEAD_OPTIONS))
@click.option(
    "--law",
    default="gaussian",
    show_default=True,
    help=f"Law of the tokens: {', '.join(STANDARD_LAWS)}.",
)
@click.option("--sizes", metavar="A:B[:K]", help="Predict errors at these n, such as 1e3:1e12.")
@click.option(
    "--queries",
    type=click.Choice(["tokens", "population"]),
    default="tokens",
    show_default=True,
    help="Queries: the tokens themselves, or independent of the keys.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def theory(
    horizon: float | None,
    dim: int | None,
    spectrum: str | None,
    tau: str | None,
    law: str,
    df: float,
    sizes: str | None,
    queries: str,
    as_json: bool,
) -> None:
    """Predict how fast a head converges, and how large n must be.

    A head is given by its attention horizon or spectrum and by the law of its tokens. With --sizes
    its errors are predicted at every n; "esscher sweep --predict" measures them beside it.

    \b
    Examples:
      esscher theory --horizon 1.5
      esscher theory --spectrum 1.5,0.7,0.2 --tau 0.5 --sizes 1e3:1e12
      esscher theory --horizon 0.8 --dim 8 --sizes 100:1e6:9
      esscher theory --law laplace --horizon 0.5 --dim 4
    """  # noqa: D301 - click's mark for verbatim lines
    from esscher.math.theory import predict

    head = synthetic_head(law, horizon, dim, spectrum, tau, df)
    n = None if sizes is None else geometric_sizes(sizes)
    prediction = predict(head, n, queries=queries)
    if as_json:
        print_json(prediction.to_dict() | {"law": law})
        return
    _print(prediction)


def _print(prediction: Prediction) -> None:
    import numpy as np

    from esscher.math.limits import NoLimit

    console = PlainConsole()
    head = prediction.head
    console.say(prediction.headline)
    console.print()
    facts = [
        ("horizon H", f"{head.horizon:.4g}", "two-sided, 1/sqrt(d_k) included"),
        ("Frobenius horizon F", f"{head.frobenius:.4g}", ""),
        ("mean tilt |tau|", f"{np.linalg.norm(head.tau):.4g}", ""),
    ]
    limit = prediction.limit
    if not isinstance(limit, NoLimit):
        error = float(np.sqrt(np.sum(np.diag(limit.covariance_error) ** 2)))
        variance = f"{np.trace(limit.covariance):.5g}"
        facts += [
            ("burn-in", prediction.burn_in_text, "tokens, one effective token per typical query"),
            ("output variance", variance, f"{limit.method}, +- {error:.1g}"),
        ]
    names, numbers = (max(len(fact[i]) for fact in facts) for i in (0, 1))
    for name, number, remark in facts:
        console.say(f"{name:{names}}  {number:{numbers}}  {remark}".rstrip())
    if isinstance(limit, NoLimit):
        return
    for note in prediction.notes:
        console.say(f"Note: {note}.")
    console.print()
    console.print(_exponent_table(prediction))
    if prediction.curves:
        console.print()
        console.print(_curve_table(prediction))


def _exponent_table(prediction: Prediction) -> PlainTable:
    beta, c = prediction.exponents, prediction.constants
    assert beta is not None
    assert c is not None
    table = PlainTable("Asymptotic exponents beta of error ~ C n^-beta")
    table.add_column("error of")
    table.add_column("beta", justify="right")
    table.add_column("C", justify="right")
    table.add_column("source")
    root = [None if x is None else x**0.5 for x in (c.mean, c.cov, c.map)]
    # rates of bounded tokens follow from bounded weights; the others are conjectured
    bounded = beta.tail_index == math.inf and prediction.head.horizon > 0
    source = "bounded tokens" if bounded else "conjectured"
    rows = (
        ("mean output, expected norm", beta.mean, c.mean_norm, source),
        ("mean output, root mean square", beta.mean_rms, root[0], source),
        ("covariance, expected norm", beta.cov, None, source),
        ("covariance, root mean square", beta.mean_rms, root[1], source),
        ("map, expected norm", beta.map_l1, None, source),
        ("map, root mean square", beta.map_rms, root[2], source),
        ("mean output", beta.paper_reference, None, "published reference"),
        ("mean output", beta.paper_bound, None, "published bound"),
    )
    for name, exponent, constant, origin in rows:
        table.add_row(
            name, f"{exponent:.4f}", "" if constant is None else f"{constant:.4g}", origin
        )
    table.caption = (
        f"Received attention has tail index {beta.tail_index:.4g}; "
        f"C: {prediction.queries} queries. "
        "Published: reference 1/(2(1+H^2)), bound 1/(2(1+32 H^2))."
    )
    return table


def _curve_table(prediction: Prediction) -> PlainTable:
    curves = prediction.curves
    title = f"Predicted errors at finite n (queries: {prediction.queries})"
    table = PlainTable(title, least=("cov rms", "cov", "mean rms", "mean"))
    table.add_column("n", justify="right")
    for name in curves:
        label = {"map": "map rms", "mean_rms": "mean rms", "cov_rms": "cov rms"}.get(name, name)
        table.add_column(label, justify="right")
    for i, n in enumerate(prediction.sizes):
        row = [plain_count(n)]
        for curve in curves.values():
            noise = curve.standard_error[i]
            row.append(with_error(curve.error[i], noise))
        table.add_row(*row)
    if len(prediction.sizes) > 1:
        slopes = [f"{c.slope():.3f}" for c in curves.values()]
        asymptotic = [f"{prediction.asymptotic(k):.3f}" for k in curves]
        settled, reached = (
            ["-" if n is None else plain_count(n) for n in map(start, curves)]
            for start in (prediction.settled_from, prediction.constant_from)
        )
        table.add_section()
        table.add_row("slope", *slopes)
        table.add_row("conjectured", *asymptotic)
        table.add_row("rate from", *settled)
        table.add_row("constant from", *reached)
        table.caption = (
            "In brackets: standard error of the last digit. Slope: fitted on this range. "
            "Conjectured: the exponent as n grows. Rate from: the local slope is within 0.05 of it "
            "from there on. Constant from: the error is within 10% of its C n^-beta from there on."
        )
    return table
