"""The protocol of a token law, which the other files implement.

A law ``mu`` on R^d gives tokens (``sample``), their first two moments, and the cumulant generating
function ``K(t) = log E exp<t, X>`` with gradient and Hessian. The gradient is the Esscher
transform's mean: the infinite-token limit of softmax attention with tilt ``t``. The Hessian is the
covariance of the tilted law.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esscher.core.errors import InputError
from esscher.core.validation import ROUNDING, Array, as_array, as_kind, as_points

#: Number of entries up to which the repr of a law prints an array in full.
LONGEST_SHOWN = 16


@dataclass(frozen=True)
class TiltDomain:
    """The tilts for which ``E exp<t, X>`` is finite, hence for which the limit exists.

    ``kind`` is ``"all"`` (every tilt), ``"box"`` (every ``|t_i| < half_width``) or ``"zero"``
    (only ``t = 0``: the law has no exponential moments).
    """

    kind: str
    half_width: float = float("inf")

    def contains(self, tilts: Array) -> NDArray[np.bool_]:
        """Tell for each tilt (last axis: coordinates) whether it lies in the domain."""
        if self.kind == "all":
            return np.ones(tilts.shape[:-1], dtype=bool)
        if self.kind == "zero":
            return np.asarray(np.all(tilts == 0, axis=-1))
        return np.asarray(np.all(np.abs(tilts) < self.half_width, axis=-1))

    def __str__(self) -> str:
        if self.kind == "all":
            return "every tilt"
        if self.kind == "zero":
            return "t = 0"
        return f"|t_i| < {self.half_width:g} in every coordinate"


def frozen(array: Array) -> Array:
    """Return a read-only copy, so that a law does not change with the array it was made from."""
    copy = np.array(array)
    copy.flags.writeable = False
    return copy


class Law(ABC):
    """A law of tokens on R^d. Instances do not change; randomness is always an argument.

    Attributes
    ----------
    name
        As configurations and the command line write it.
    dim
        Dimension d of the tokens.
    parameters
        Arguments of the constructor, which the repr prints.
    tilt_domain
        Tilts at which the infinite-token limit exists.
    support_radius
        Smallest r with ``|X| <= r`` almost surely; infinite for unbounded laws.
    """

    name: ClassVar[str]
    dim: int
    parameters: dict[str, object]
    tilt_domain = TiltDomain("all")
    support_radius = float("inf")

    @cached_property
    def mean(self) -> Array:
        """Mean, of shape (d,): the gradient of ``K`` at 0."""
        return frozen(self._tilted_mean(np.zeros(self.dim)))

    @cached_property
    def covariance(self) -> Array:
        """Covariance, of shape (d, d): the Hessian of ``K`` at 0."""
        return frozen(self._tilted_covariance(np.zeros(self.dim)))

    @abstractmethod
    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` independent tokens, of shape (n, d)."""

    def log_mgf(self, tilts: ArrayLike) -> Array:
        """``K(t) = log E exp<t, X>`` for tilts of shape (..., d); ``+inf`` outside the domain."""
        t = as_points(tilts, self.dim, "tilts")
        inside = self.tilt_domain.contains(t)
        if inside.all():
            return self._log_mgf(t)
        return np.where(inside, self._log_mgf(np.where(inside[..., None], t, 0.0)), np.inf)

    def tilted_mean(self, tilts: ArrayLike) -> Array:
        """``grad K(t)``, of shape (..., d); ``nan`` where there is no limit."""
        t = as_points(tilts, self.dim, "tilts")
        inside = self.tilt_domain.contains(t)[..., None]
        if inside.all():
            return self._tilted_mean(t)
        return np.where(inside, self._tilted_mean(np.where(inside, t, 0.0)), np.nan)

    def tilted_covariance(self, tilts: ArrayLike) -> Array:
        """Hessian of ``K`` at ``t``, of shape (..., d, d); ``nan`` where there is no limit."""
        t = as_points(tilts, self.dim, "tilts")
        inside = self.tilt_domain.contains(t)[..., None]
        # No masked copy when there is nothing to mask: a Hessian at d = 4096 takes 128 MB.
        if inside.all():
            return self._tilted_covariance(t)
        value = self._tilted_covariance(np.where(inside, t, 0.0))
        return np.where(inside[..., None], value, np.nan)

    @abstractmethod
    def _log_mgf(self, t: Array) -> Array:
        """``K`` at tilts inside the domain."""

    @abstractmethod
    def _tilted_mean(self, t: Array) -> Array:
        """``grad K`` at tilts inside the domain."""

    @abstractmethod
    def _tilted_covariance(self, t: Array) -> Array:
        """Hessian of ``K`` at tilts inside the domain."""

    def __repr__(self) -> str:
        shown = []
        for name, value in self.parameters.items():
            text = repr(value)
            if isinstance(value, np.ndarray):
                short = value.size <= LONGEST_SHOWN
                text = repr(value.tolist()) if short else f"<array of shape {value.shape}>"
            shown.append(f"{name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"


def as_law(value: object, name: str = "law") -> Law:
    """Return ``value`` if it is a law; else say how to make one."""
    remedy = "a law of tokens, such as esscher.laws.Gaussian(dim=8)"
    return as_kind(value, Law, name, remedy)  # type: ignore[type-abstract]


def as_probabilities(value: ArrayLike, name: str = "weights") -> Array:
    """Return positive weights that sum to 1, with the rounding error of their sum removed."""
    weights = as_array(value, name, ndim=1)
    if weights.size == 0:
        raise InputError(f"{name} is empty; give at least one weight")
    if weights.min() <= 0:
        place = int(weights.argmin())
        raise InputError(
            f"{name} must be positive: entry {place} is {weights[place]:g}; "
            "leave out what has no weight"
        )
    total = float(weights.sum())
    if abs(total - 1.0) > ROUNDING:
        raise InputError(
            f"{name} sum to {total:.10g}; they must sum to 1: divide them by their sum"
        )
    return frozen(weights / total)


# A finite set of tokens: its limit is softmax attention over the whole set.
#
# Logits are streamed over blocks of tilts and tokens with a running maximum (online softmax), so
# memory is bounded by one block however many tilts and tokens there are.


class FiniteTokens(Law):
    """The law that picks one of the rows of ``tokens``, of shape (N, d), each equally likely."""

    name = "finite"
    #: Tilts and tokens whose logits are held at a time.
    tilt_block, token_block = 512, 2048

    def __init__(self, tokens: ArrayLike) -> None:
        self.tokens = frozen(as_array(tokens, "tokens", ndim=2))
        count, self.dim = self.tokens.shape
        if count == 0 or self.dim == 0:
            raise InputError(f"tokens has shape {self.tokens.shape}; it must not be empty")
        self.support_radius = float(np.max(np.linalg.norm(self.tokens, axis=1)))
        self.parameters = {"tokens": self.tokens}
        self.weights = frozen(np.full(count, 1.0 / count))

    @cached_property
    def mean(self) -> Array:
        """Mean of the tokens."""
        return frozen(self.weights @ self.tokens)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens with replacement."""
        return np.asarray(self.tokens[rng.integers(0, len(self.tokens), n)])

    def _log_mgf(self, t: Array) -> Array:
        value = [self._attend(block)[0] + block @ self.mean for block in self._tilt_blocks(t)]
        return np.concatenate(value).reshape(t.shape[:-1])

    def _tilted_mean(self, t: Array) -> Array:
        value = [self.mean + self._attend(block)[1] for block in self._tilt_blocks(t)]
        return np.concatenate(value).reshape(t.shape)

    def _tilted_covariance(self, t: Array) -> Array:
        value = []
        for block in self._tilt_blocks(t):
            # A second pass around the means of the first: E XX' - E X E X' in one would cancel.
            log_mass, means = self._attend(block)
            part = np.zeros((*block.shape, self.dim))
            for tokens, log_weights in self._centred_blocks():
                attention = np.exp(block @ tokens.T + log_weights - log_mass[:, None])
                for i, (mean, probability) in enumerate(zip(means, attention, strict=True)):
                    gap = tokens - mean
                    part[i] += (gap * probability[:, None]).T @ gap
            value.append(part)
        return np.concatenate(value).reshape((*t.shape, self.dim))

    def _tilt_blocks(self, t: Array) -> list[Array]:
        """Tilts as rows, in blocks; at least one block, which may be empty."""
        flat = t.reshape(-1, self.dim)
        starts = range(0, max(len(flat), 1), self.tilt_block)
        return [flat[start : start + self.tilt_block] for start in starts]

    def _centred_blocks(self) -> Iterator[tuple[Array, Array]]:
        """Blocks of tokens minus their mean, with the logarithms of their weights.

        An offset that all tokens share cancels in the softmax but would cost digits in the logits.
        """
        for start in range(0, len(self.tokens), self.token_block):
            columns = slice(start, start + self.token_block)
            yield self.tokens[columns] - self.mean, np.log(self.weights[columns])

    def _attend(self, t: Array) -> tuple[Array, Array]:
        """``log E exp<t, X - E X>`` and attention to the centred tokens, for a block of tilts."""
        top = np.full(len(t), -np.inf)
        mass = np.zeros(len(t))
        total = np.zeros(t.shape)
        for tokens, log_weights in self._centred_blocks():
            logits = t @ tokens.T + log_weights
            new_top = np.maximum(top, logits.max(axis=1))
            kept = np.exp(top - new_top)
            attention = np.exp(logits - new_top[:, None])
            mass = mass * kept + attention.sum(axis=1)
            total = total * kept[:, None] + attention @ tokens
            top = new_top
        return top + np.log(mass), np.asarray(total / mass[:, None])
