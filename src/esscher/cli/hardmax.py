"""``esscher hardmax``: the mean output when the tilt goes to infinity at fixed n."""

from __future__ import annotations

import click

from esscher.cli.printing import plain_console, plain_table, print_json
from esscher.core.errors import InputError
from esscher.core.options import geometric_sizes
from esscher.core.shown import plain_count, two_digits
from esscher.math.simulation import HardmaxCurve, hardmax_curve


@click.command()
@click.option(
    "--sizes", metavar="A:B[:K]", default="1e2:1e12", show_default=True, help="Numbers of keys n."
)
@click.option("--dim", type=int, default=1, show_default=True, help="Dimension of the tokens.")
@click.option(
    "--scale", type=float, default=1.0, show_default=True, help="Standard deviation of the tokens."
)
@click.option(
    "--replicates", type=int, help="Simulated samples (default 100000 for d = 1, else 200)."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the simulation.")
@click.option(
    "--queries",
    type=click.Choice(["population", "tokens"]),
    default="population",
    show_default=True,
    help="Queries: independent of the keys, or the tokens themselves.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def hardmax(
    sizes: str,
    dim: int,
    scale: float,
    replicates: int | None,
    seed: int,
    queries: str,
    as_json: bool,
) -> None:
    """Print the error of hardmax attention, exact and simulated.

    Hardmax is softmax at an infinite tilt: each query picks one key. The error is that of the mean
    output: E|mean output| in one dimension, the root mean square in more. The leading term is that
    of population queries.

    \b
    Examples:
      esscher hardmax --sizes 1e2:1e12
      esscher hardmax --dim 3 --sizes 1e2:1e9:8 --json
    """  # noqa: D301 - click's mark for verbatim lines
    if seed < 0:
        raise InputError(f"--seed is {seed}; it must be at least 0")
    curve = hardmax_curve(
        geometric_sizes(sizes),
        dim=dim,
        scale=scale,
        replicates=replicates,
        seed=seed,
        queries=queries,
    )
    if as_json:
        print_json(curve.to_dict())
        return
    console = plain_console()
    console.say("How fast does hardmax attention converge?")
    console.say(_answer(curve), "bold")
    table = plain_table(
        f"Hardmax attention, d = {dim}, queries: {queries}", least=("leading term",)
    )
    for name in ("n", "exact", "leading term", "simulated", "+-"):
        table.add_column(name, justify="right")
    for row in curve.table().to_dict("records"):
        table.add_row(
            plain_count(row["n"]),
            _cell(row.get("exact")),
            _cell(row.get("leading")),
            _cell(row["simulated"]),
            f"{row['standard_error']:.1g}",
        )
    console.print(table)


def _answer(curve: HardmaxCurve) -> str:
    """The answer in words."""
    rows = curve.table().to_dict("records")
    first, last = (
        f"{two_digits(row['simulated'])} at n = {plain_count(row['n'])}"
        for row in (rows[0], rows[-1])
    )
    falls = f", from {first} to {last}" if len(rows) > 1 else f"; it is {first}"
    return f"The error of its mean output falls only like (ln n)^-{curve.exponent:g}{falls}."


def _cell(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.6f}"
