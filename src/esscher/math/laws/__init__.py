"""Laws of tokens: how to draw them, and the exact infinite-token limit of attention to them.

The standard form of a law has mean zero and unit covariance, so that horizons compare.
"""

from __future__ import annotations

import numpy as np

from esscher.core.errors import InputError
from esscher.core.validation import STANDARD_LAWS, as_dim, as_positive, check_memory
from esscher.math.laws.gaussian import Gaussian, GaussianMixture, StudentT
from esscher.math.laws.law import FiniteTokens, Law, TiltDomain, as_law
from esscher.math.laws.product import Cube, Laplace, ProductLaw, Signs
from esscher.math.laws.sphere import Sphere

__all__ = [
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
    "standard_law",
]

#: Distance of the two components of the standard mixture from 0 (of at most 1).
MIXTURE_OFFSET = 0.8


def standard_law(name: str, dim: int, df: float = 5.0) -> Law:
    """Return a law with mean zero and identity covariance in dimension ``dim``.

    The mixture has two equal components at ``-0.8 e_1`` and ``+0.8 e_1``; ``df`` is for Student's
    t, which has a covariance only for more than 2 degrees of freedom.
    """
    d = as_dim(dim)
    if name == "gaussian":
        return Gaussian(dim=d)
    if name == "mixture":
        check_memory(8 * 4 * d * d, f"dim is {d}; a mixture of that dimension")
        offset = np.zeros(d)
        offset[0] = MIXTURE_OFFSET
        covariance = np.eye(d) - np.outer(offset, offset)
        return GaussianMixture([0.5, 0.5], np.stack([-offset, offset]), covariance)
    if name == "sphere":
        return Sphere(d, radius=float(np.sqrt(d)))
    if name == "cube":
        return Cube(d, half_width=float(np.sqrt(3.0)))
    if name == "signs":
        return Signs(d)
    if name == "laplace":
        return Laplace(d, scale=float(np.sqrt(0.5)))
    if name == "student":
        freedom = as_positive(df, "df")
        if freedom <= 2:
            raise InputError(f"df is {df:g}; Student's t has a covariance only for df above 2")
        return StudentT(d, df=freedom, scale=float(np.sqrt((freedom - 2) / freedom)))
    raise InputError(
        f"there is no standard law called {name!r}; choose from {', '.join(STANDARD_LAWS)}"
    )
