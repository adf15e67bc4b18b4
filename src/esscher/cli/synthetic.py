"""Options that describe a synthetic head, shared by the commands that take one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from esscher.core.errors import InputError
from esscher.core.options import numbers
from esscher.core.validation import as_dim
from esscher.math.heads import WeightHead, law_head
from esscher.math.laws import STANDARD_LAWS, standard_law

OPTIONS = (
    click.option(
        "--horizon", type=float, help="Attention horizon H, with all singular values equal."
    ),
    click.option(
        "--dim", type=int, help="Dimension of the tokens (default: length of the spectrum, or 1)."
    ),
    click.option(
        "--spectrum",
        metavar="LIST",
        help="Singular values of M instead of a horizon, such as 1.5,0.7,0.2.",
    ),
    click.option(
        "--tau", metavar="LIST", help="Mean tilt; a single number is along the first axis."
    ),
    click.option(
        "--df",
        type=float,
        default=5.0,
        show_default=True,
        help="Degrees of freedom of the law student.",
    ),
)


#: What describes a head: the law, and these options.
HEAD = ("law", "horizon", "dim", "spectrum", "tau", "df")


def head_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that :func:`synthetic_head` reads, in this order, to a command."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def head_parameters() -> list[click.Parameter]:
    """Return LAW and the options that :func:`synthetic_head` reads, for a command that is built."""

    def described() -> None:
        """Hold the options."""

    held: Any = head_options(described)
    law = click.Argument(["law"], metavar="LAW")
    return [law, *reversed(held.__click_params__)]


def synthetic_head(
    law: str,
    horizon: float | None,
    dim: int | None,
    spectrum: str | None,
    tau: str | None,
    df: float,
) -> WeightHead:
    """Build the head that the options describe, over a standard law."""
    if law not in STANDARD_LAWS:
        raise InputError(f"there is no law {law!r}; choose from {', '.join(STANDARD_LAWS)}")
    if (horizon is None) == (spectrum is None):
        raise InputError("give either --horizon or --spectrum, such as --horizon 1.5")
    values = None if spectrum is None else numbers(spectrum, "--spectrum")
    size = as_dim(dim, "--dim") if dim is not None else (1 if values is None else len(values))
    if values is not None and len(values) != size:
        raise InputError(f"--dim is {size} but --spectrum has {len(values)} values")
    return law_head(
        standard_law(law, size, df=df),
        horizon=horizon,
        spectrum=values,
        tau=None if tau is None else numbers(tau, "--tau"),
    )
