"""Laws with independent, identically distributed, symmetric coordinates.

``K(t)`` is a sum over the coordinates, its gradient is taken coordinate by coordinate and its
Hessian is diagonal. A law of this kind says only what its one-dimensional marginal does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from esscher.core.validation import Array, as_dim, as_positive
from esscher.math.laws.law import Law, TiltDomain


class ProductLaw(Law):
    """Base of the laws whose coordinates are independent copies of ``scale`` times one variable."""

    #: Name of the law's scale.
    scale_name: ClassVar[str] = "scale"
    #: Cumulant generating function of one coordinate at scale 1, and its first two derivatives.
    cumulants: ClassVar[tuple[Callable[[Array], Array], ...]]

    def __init__(self, dim: int, scale: float) -> None:
        self.dim = as_dim(dim)
        self.scale = as_positive(scale, self.scale_name)
        self.parameters = {"dim": self.dim, self.scale_name: self.scale}

    def _log_mgf(self, t: Array) -> Array:
        return np.asarray(np.sum(self.cumulants[0](self.scale * t), axis=-1))

    def _tilted_mean(self, t: Array) -> Array:
        return self.scale * self.cumulants[1](self.scale * t)

    def _tilted_covariance(self, t: Array) -> Array:
        hessian = np.zeros((*t.shape, self.dim))
        axis = np.arange(self.dim)
        hessian[..., axis, axis] = self.scale**2 * self.cumulants[2](self.scale * t)
        return hessian


# Tokens in a cube: the tilted mean is Langevin's function ``coth x - 1/x`` per coordinate.

#: Below this the closed forms cancel and the expansions at 0 take over.
SMALL = 1.0
#: Orders of the continued fraction and terms of the series: beyond rounding at x = SMALL.
TERMS = 10


def _near_zero(x: Array) -> tuple[Array, Array]:
    """``(coth x - 1/x) / x`` and the derivative of ``coth x - 1/x``, for |x| <= SMALL.

    Langevin's function is the ratio of Bessel functions of order 1/2; this is its continued
    fraction ``x / (3 + x^2 / (5 + x^2 / (7 + ...)))``, evaluated from the inside.
    """
    square = x * x
    ratio = slope = np.full(x.shape, 1.0 / (2 * TERMS + 3))
    for odd in range(2 * TERMS + 1, 1, -2):
        ratio = 1.0 / (odd + square * ratio)
        slope = ratio * ratio * (odd - square * slope)
    return ratio, slope


def langevin(x: Array) -> Array:
    """``coth x - 1/x``, the mean of the uniform law on [-1, 1] tilted by x."""
    ratio, _ = _near_zero(np.clip(x, -SMALL, SMALL))
    large = np.where(np.abs(x) > SMALL, x, SMALL)
    return np.where(np.abs(x) > SMALL, 1.0 / np.tanh(large) - 1.0 / large, x * ratio)


def langevin_derivative(x: Array) -> Array:
    """``1/x^2 - 1/sinh^2 x``."""
    _, slope = _near_zero(np.clip(x, -SMALL, SMALL))
    large = np.maximum(np.abs(x), SMALL)
    # 1/sinh^2 through exp(-2x), which underflows quietly where sinh would overflow.
    inverse_sinh_squared = 4.0 * np.exp(-2.0 * large) / np.expm1(-2.0 * large) ** 2
    return np.where(np.abs(x) > SMALL, (1.0 / large) ** 2 - inverse_sinh_squared, slope)


def log_sinhc(x: Array) -> Array:
    """``log(sinh x / x)``."""
    square = np.clip(x, -SMALL, SMALL) ** 2
    # sinh x / x - 1 = x^2/6 (1 + x^2/20 (1 + x^2/42 (1 + ...))): positive terms only.
    excess = np.zeros(x.shape)
    for k in range(TERMS, 0, -1):
        excess = (1.0 + excess) * square / (2 * k * (2 * k + 1))
    large = np.maximum(np.abs(x), SMALL)
    closed = large + np.log(-np.expm1(-2.0 * large) / (2.0 * large))
    return np.where(np.abs(x) > SMALL, closed, np.log1p(excess))


class Cube(ProductLaw):
    """Uniform law on the cube ``[-half_width, half_width]^dim``."""

    name = "cube"
    scale_name = "half_width"
    cumulants = (log_sinhc, langevin, langevin_derivative)

    def __init__(self, dim: int, half_width: float = 1.0) -> None:
        super().__init__(dim, half_width)
        self.support_radius = self.scale * math.sqrt(self.dim)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens."""
        return rng.uniform(-self.scale, self.scale, (n, self.dim))


# Tokens of random signs: ``K = sum log cosh``, and the tilted mean is a hyperbolic tangent.


def log_cosh(x: Array) -> Array:
    """``log cosh x``, accurate near 0 and free of overflow."""
    size = np.abs(x)
    near = np.log1p(2.0 * np.sinh(0.5 * np.minimum(size, 1.0)) ** 2)
    far = size - math.log(2.0) + np.log1p(np.exp(-2.0 * size))
    return np.where(size > 1.0, far, near)


def sech_squared(x: Array) -> Array:
    """``1 / cosh^2 x`` through exp(-2|x|): ``1 - tanh^2`` has no correct digit beyond |x| = 19."""
    decay = np.exp(-2.0 * np.abs(x))
    return np.asarray(4.0 * decay / (1.0 + decay) ** 2)


class Signs(ProductLaw):
    """Independent coordinates equal to ``-scale`` or ``+scale`` with probability 1/2 each."""

    name = "signs"
    cumulants = (log_cosh, np.tanh, sech_squared)

    def __init__(self, dim: int, scale: float = 1.0) -> None:
        super().__init__(dim, scale)
        self.support_radius = self.scale * math.sqrt(self.dim)  # the norm of every token

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens."""
        heads = rng.integers(0, 2, (n, self.dim)).astype(np.float64)
        return self.scale * (2.0 * heads - 1.0)


# Laplace tokens: exponential tails, so the limit exists only for small tilts.


def laplace_log_mgf(x: Array) -> Array:
    """``-log(1 - x^2)`` for |x| < 1: near 1 exact only as a product, near 0 only as a log1p."""
    near = -np.log1p(-np.minimum(x * x, 0.25))
    return np.where(np.abs(x) > 0.5, -np.log((1.0 - x) * (1.0 + x)), near)


def laplace_mean(x: Array) -> Array:
    """``2x / (1 - x^2)``."""
    return np.asarray(2.0 * x / ((1.0 - x) * (1.0 + x)))


def laplace_variance(x: Array) -> Array:
    """``2 (1 + x^2) / (1 - x^2)^2``."""
    return np.asarray(2.0 * (1.0 + x * x) / ((1.0 - x) * (1.0 + x)) ** 2)


class Laplace(ProductLaw):
    """Independent coordinates of density ``exp(-|x| / scale) / (2 scale)``.

    ``E exp<t, X>`` is finite only if every ``|t_i| < 1 / scale``.
    """

    name = "laplace"
    cumulants = (laplace_log_mgf, laplace_mean, laplace_variance)

    def __init__(self, dim: int, scale: float = 1.0) -> None:
        super().__init__(dim, scale)
        # Inside the box scale * t rounds to less than 1, so that nothing is divided by 0.
        self.tilt_domain = TiltDomain("box", 1.0 / self.scale)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens."""
        return rng.laplace(0.0, self.scale, (n, self.dim))
