"""Laws of tokens: how to draw them, and the exact infinite-token limit of attention to them."""

from __future__ import annotations

import inspect
from difflib import get_close_matches

from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.math.laws.cube import Cube
from esscher.math.laws.finite import FiniteTokens
from esscher.math.laws.gaussian import Gaussian
from esscher.math.laws.laplace import Laplace
from esscher.math.laws.law import Law, TiltDomain, as_law
from esscher.math.laws.mixture import GaussianMixture
from esscher.math.laws.product import ProductLaw
from esscher.math.laws.signs import Signs
from esscher.math.laws.sphere import Sphere
from esscher.math.laws.standard import STANDARD_LAWS, standard_law
from esscher.math.laws.student import StudentT

__all__ = [
    "LAWS",
    "STANDARD_LAWS",
    "Cube",
    "FiniteTokens",
    "Gaussian",
    "GaussianMixture",
    "Laplace",
    "Law",
    "ProductLaw",
    "Signs",
    "Sphere",
    "StudentT",
    "TiltDomain",
    "as_law",
    "make_law",
    "standard_law",
]

#: The laws by the names that configurations and the command line use.
LAWS: dict[str, type[Law]] = {
    law.name: law
    for law in (Gaussian, GaussianMixture, Sphere, Cube, Signs, Laplace, StudentT, FiniteTokens)
}


def make_law(name: str, **parameters: object) -> Law:
    """Return the law called ``name`` with the given constructor parameters.

    Raises
    ------
    InputError
        For a name that is not in ``LAWS``, or parameters that the law does not take or misses.
    """
    if not isinstance(name, str) or name not in LAWS:
        close = get_close_matches(name, LAWS, n=1) if isinstance(name, str) else []
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise InputError(
            f"there is no law called {shortened(name)}{hint}; known laws: {', '.join(LAWS)}"
        )
    signature = inspect.signature(LAWS[name])
    try:
        signature.bind(**parameters)
    except TypeError as error:
        raise InputError(
            f"the law {name!r} does not fit: {error}; it takes ({', '.join(signature.parameters)})"
        ) from error
    return LAWS[name](**parameters)
