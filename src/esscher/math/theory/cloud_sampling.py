"""Samples of a finite population with chances near each member's share, and their sums.

Members whose share is large are taken for certain, the others by systematic sampling. Sums weigh a
member by the inverse of its chance (Horvitz and Thompson); their variance is Hajek's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esscher.core.validation import Array

#: Share of the chances that is uniform: no member weighs more than its inverse times the average.
UNIFORM = 0.3


@dataclass(frozen=True, eq=False)
class Chosen:
    """Members of a population that were chosen, and the chance that each had."""

    members: NDArray[np.int64]
    chances: Array

    def total(self, values: Array) -> Array:
        """Estimate of the population's sum of values, whose first axis is the chosen members."""
        return np.asarray(np.tensordot(1 / self.chances, values, axes=1))

    def covariance(self, values: Array) -> Array:
        """Covariance of such estimates, for values [member, k]; 0 if all members were chosen."""
        doubt = (1 - self.chances)[:, None]
        count = int(np.sum(self.chances < 1))
        if count < 2:
            return np.zeros((values.shape[1], values.shape[1]))
        weighed = values / self.chances[:, None]
        centred = weighed - np.sum(doubt * weighed, axis=0) / doubt.sum()
        return np.asarray(count / (count - 1) * (doubt * centred).T @ centred)


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Chosen members whose sums are scaled so that the sums of a guess come out right.

    Where values go with the guess, their sums are known far better (the ratio estimator).

    Attributes
    ----------
    chosen
        The members.
    guess
        What was guessed of them, [member, k].
    factor
        Sums of the guess over the population, over their estimates by the members, [k].
    """

    chosen: Chosen
    guess: Array
    factor: Array

    @classmethod
    def of(cls, chosen: Chosen, guess: Array) -> Calibrated:
        """Of chosen members, and the guess of all members of the population."""
        mine = guess[chosen.members]
        return cls(chosen, mine, _ratio(guess.sum(axis=0), chosen.total(mine)))

    @property
    def weights(self) -> Array:
        """What a member counts for in a sum, [k, member]."""
        return np.asarray(self.factor[:, None] / self.chosen.chances)

    def covariance(self, values: Array) -> Array:
        """Covariance of sums of values [member, k]: of what does not go with the guess."""
        ratio = _ratio(self.chosen.total(values), self.chosen.total(self.guess), 0.0)
        apart = self.chosen.covariance(values - self.guess * ratio)
        return np.asarray(apart * np.outer(self.factor, self.factor))


def _ratio(above: Array, below: Array, otherwise: float = 1.0) -> Array:
    return np.divide(above, below, out=np.full_like(below, otherwise), where=below > 0)


def choose(
    shares: Array, count: int, rng: np.random.Generator, order: NDArray[np.int64] | None = None
) -> Chosen:
    """Choose about ``count`` members with chances near their shares (not negative, any scale).

    Members that are neighbours in ``order`` are rarely chosen together; a random order unless one
    is given.
    """
    size = len(shares)
    if count >= size:
        return Chosen(np.arange(size), np.ones(size))
    total = float(shares.sum())
    known = shares / total if total > 0 else np.full(size, 1 / size)
    part = UNIFORM / size + (1 - UNIFORM) * known
    certain = np.zeros(size, dtype=bool)
    while True:
        left = count - int(certain.sum())
        chances = np.where(certain, 1.0, left * part / part[~certain].sum())
        more = (chances >= 1) & ~certain
        if not more.any():
            break
        certain |= more
    order = rng.permutation(size) if order is None else order
    steps = np.floor(np.cumsum(chances[order]) + rng.random())
    taken = np.diff(steps, prepend=0.0) >= 1
    members = np.sort(order[taken])
    return Chosen(members.astype(np.int64), chances[members])


def near_order(points: Array, bits: int = 4, axes: int = 6) -> NDArray[np.int64]:
    """Order in which neighbours in space stand near each other: Morton's, of ranks along axes.

    ``points`` has its coordinates in columns, of which the last ``axes`` are looked at, the last
    one first.
    """
    ranks = [np.argsort(np.argsort(points[:, -1 - a])) for a in range(min(axes, points.shape[1]))]
    levels = [rank * 2**bits // len(points) for rank in ranks]
    code = np.zeros(len(points), dtype=np.int64)
    for bit in range(bits - 1, -1, -1):
        for level in levels:
            code = 2 * code + (level >> bit & 1)
    return np.argsort(code, kind="stable")
