"""Logits of the keys that a query is not looking for, as values with shares: a law, or a cloud.

Weights of softmax attention need nothing of the keys but their logits. A cloud of logits is taken
as it is (keys are drawn from it with replacement); a law is put on Gauss-Legendre panels that
resolve its density and, at the largest scale b that will be asked for, ``exp(-l e^{b x})``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_array, as_nonnegative, as_positive
from esscher.math.laws import (
    Cube,
    FiniteTokens,
    Gaussian,
    GaussianMixture,
    Laplace,
    Law,
    Signs,
    Sphere,
    StudentT,
)
from esscher.math.theory.hardmax import panels

#: Nodes of a panel, its width in standard deviations, and in units of 1/b: weights of needles are
#: then good to 1e-7 of themselves.
NODES, WIDEST, STEEPEST = 8, 0.5, 1.0
#: Beyond the largest key that n draws are likely to have, weights matter for so many units of 1/b.
BEYOND = 45.0
#: Most values that a law is put on: a [lambda, value] table of them stays below 100 MB.
MOST = 40_000


@dataclass(frozen=True, eq=False)
class NoiseLogits:
    """Logits of other keys, with mean 0.

    Attributes
    ----------
    values, shares
        Increasing values, and their probabilities.
    name
        What they are the logits of.
    """

    values: Array
    shares: Array
    name: str

    @property
    def spread(self) -> float:
        """Standard deviation s."""
        return float(np.sqrt(self.shares @ self.values**2))

    def log_mgf(self, scale: float) -> float:
        """``K(b) = ln E e^{b X}``."""
        return float(scipy.special.logsumexp(scale * self.values, b=self.shares))

    def tilted_mean(self, scale: float) -> float:
        """``K'(b)``, where the keys are that carry the sum of the weights."""
        exponent = scale * self.values
        weight = self.shares * np.exp(exponent - exponent.max())
        return float(weight @ self.values / weight.sum())


def cloud_logits(logits: ArrayLike, name: str = "cloud") -> NoiseLogits:
    """Logits of a cloud of keys, less their mean; all are equally likely.

    Raises
    ------
    InputError
        If there are none.
    """
    values = np.sort(as_array(logits, "logits", ndim=1))
    if not len(values):
        raise InputError("logits is empty; give the logit of at least one other key")
    return NoiseLogits(values - values.mean(), np.full(len(values), 1 / len(values)), name)


@dataclass(frozen=True)
class _Marginal:
    """Symmetric law of one coordinate.

    ``density`` and ``tail`` (probability beyond x >= 0); ``breaks`` where the density is not
    smooth; ``end`` of the support; or ``atoms``, for values of equal shares.
    """

    density: Callable[[Array], Array] | None = None
    tail: Callable[[float], float] | None = None
    breaks: tuple[float, ...] = (0.0,)
    end: float = math.inf
    width: float = WIDEST
    atoms: tuple[float, ...] = ()


def _normal(x: Array, mean: float = 0.0, sd: float = 1.0) -> Array:
    return np.asarray(np.exp(-0.5 * ((x - mean) / sd) ** 2) / (sd * math.sqrt(2 * math.pi)))


def _gaussian(law: Gaussian) -> _Marginal:
    sd = math.sqrt(float(law.covariance[0, 0]))
    return _Marginal(
        lambda x: _normal(x, 0.0, sd),
        lambda x: float(scipy.special.ndtr(-x / sd)),
        width=WIDEST * sd,
    )


def _mixture(law: GaussianMixture) -> _Marginal:
    weights, means = law.weights, law.means[:, 0] - float(law.mean[0])
    spreads = np.sqrt(law.covariances[:, 0, 0])
    parts = [(float(w), float(m), float(s)) for w, m, s in zip(weights, means, spreads,
                                                               strict=True)]  # fmt: skip
    return _Marginal(
        lambda x: np.asarray(sum(w * _normal(x, m, s) for w, m, s in parts)),
        # both sides: a mixture need not be symmetric
        lambda x: float(sum(
            w * (scipy.special.ndtr((m - x) / s) + scipy.special.ndtr((-m - x) / s))
            for w, m, s in parts
        )),
        width=WIDEST * float(spreads.min()),
    )  # fmt: skip


def _cube(law: Cube) -> _Marginal:
    half = law.half_width
    return _Marginal(
        lambda x: np.full_like(x, 0.5 / half), lambda x: max(0.0, (half - x) / (2 * half)), end=half
    )


def _laplace(law: Laplace) -> _Marginal:
    b = law.scale
    return _Marginal(
        lambda x: np.asarray(np.exp(-np.abs(x) / b) / (2 * b)), lambda x: 0.5 * math.exp(-x / b),
        width=WIDEST * b,
    )  # fmt: skip


def _student(law: StudentT) -> _Marginal:
    df, c = law.df, law.scale
    log_constant = float(scipy.special.gammaln((df + 1) / 2) - scipy.special.gammaln(df / 2))
    constant = math.exp(log_constant) / (math.sqrt(df * math.pi) * c)
    return _Marginal(
        lambda x: np.asarray(constant * (1 + (x / c) ** 2 / df) ** (-(df + 1) / 2)),
        lambda x: float(scipy.special.stdtr(df, -x / c)),
        width=WIDEST * c,
    )


def _signs(law: Signs) -> _Marginal:
    return _Marginal(atoms=(-law.scale, law.scale))


def _sphere(law: Sphere) -> _Marginal:
    radius, d = law.radius, law.dim
    if d == 1:
        return _Marginal(atoms=(-radius, radius))
    if d == 2:
        raise InputError(
            "logits of tokens on a circle have a density that is infinite at its ends; give --dim "
            "3 or more"
        )
    power = (d - 3) / 2
    log_constant = scipy.special.gammaln(d / 2) - scipy.special.gammaln((d - 1) / 2)
    constant = math.exp(float(log_constant)) / (math.sqrt(math.pi) * radius)

    def density(x: Array) -> Array:
        return np.asarray(constant * np.maximum(1 - (x / radius) ** 2, 0.0) ** power)

    def tail(x: float) -> float:
        share = min(x / radius, 1.0) ** 2
        return float(0.5 * scipy.special.betaincc(0.5, (d - 1) / 2, share))

    return _Marginal(density, tail, end=radius, width=WIDEST * radius / math.sqrt(d))


_MARGINALS: dict[type[Law], Callable[..., _Marginal]] = {
    Gaussian: _gaussian,
    GaussianMixture: _mixture,
    Cube: _cube,
    Laplace: _laplace,
    StudentT: _student,
    Signs: _signs,
    Sphere: _sphere,
}


def law_logits(
    law: Law,
    spread: float = 1.0,
    *,
    scale: float = 1.0,
    most: float = 1e9,
    advantage: float = 0.0,
) -> NoiseLogits:
    """Logits ``spread * x`` of tokens of a law, x its first coordinate less its mean.

    Parameters
    ----------
    law
        Law of the tokens.
    spread
        Factor of the coordinate; the standard deviation of the logits, for a standard law.
    scale
        Largest scale b that will be asked for.
    most
        Largest number of keys that will be asked for.
    advantage
        Logit that weights are compared with; it becomes the end of a panel.

    Raises
    ------
    InputError
        If the law has no such form, or takes too many values at this scale.
    """
    s, b = as_nonnegative(spread, "spread"), as_positive(scale, "scale")
    if isinstance(law, FiniteTokens):
        order = np.argsort(law.tokens[:, 0])
        values = s * (law.tokens[order, 0] - law.mean[0])
        return NoiseLogits(values, law.weights[order], law.name)
    if type(law) not in _MARGINALS:
        raise InputError(f"logits of the law {law.name!r} are not known")
    found = _MARGINALS[type(law)](law)
    if s == 0:
        return NoiseLogits(np.zeros(1), np.ones(1), law.name)
    if found.atoms:
        atoms = s * np.array(found.atoms)
        return NoiseLogits(atoms, np.full(len(atoms), 1 / len(atoms)), law.name)
    assert found.density is not None
    assert found.tail is not None
    # in units of the coordinate
    b, wanted = s * b, advantage / s
    top = min(found.end, max(_quantile(found, 1 / max(most, 2.0)), wanted) + BEYOND / b)
    # no key beyond occurs among so many, up to a probability of e^-BEYOND
    top = min(top, _quantile(found, math.exp(-BEYOND) / max(most, 2.0)))
    width = min(found.width, STEEPEST / b)
    count = 2 * top / width * NODES
    if count > MOST:
        raise InputError(
            f"logits of the law {law.name!r} take {count:,.0f} values at the scale {scale:g}, and "
            f"at most {MOST:,} are held; give a smaller scale or fewer keys"
        )
    cuts = sorted({-top, top, *(x for x in (*found.breaks, wanted) if -top < x < top)})
    edges = [
        np.linspace(low, high, max(2, math.ceil((high - low) / width) + 1))
        for low, high in itertools.pairwise(cuts)
    ]
    x, w = panels(np.unique(np.concatenate(edges)), NODES)
    shares = w * found.density(x)
    # what lies beyond the ends stands there; rounding goes where weights are smallest
    shares[-1] += found.tail(top)
    shares[0] += max(0.0, 1 - float(shares.sum()))
    return NoiseLogits(s * x, shares / shares.sum(), law.name)


def _quantile(found: _Marginal, probability: float) -> float:
    """Where the tail has this probability, by bisection; the end of the support if it is there."""
    assert found.tail is not None
    low, high = 0.0, 1.0
    while found.tail(high) > probability and high < 1e9:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if found.tail(middle) > probability else (low, middle)
    return min(high, found.end)
