"""How much a squared error varies from sample to sample: what makes its expected root smaller.

To first order a squared error of n drawn tokens is ``Q = |b + (1/n) sum_i phi(z_i)|^2``, with the
bias b; for the map it is ``(1/n^2) sum_ij k(z_i, z_j)``, with k(z, z') the average over queries of
the product of what two tokens do to the output. Everything is known at the sampled tokens, so Q is
simulated: tokens are drawn again from them, with the chances that their weights stand for. What is
kept is ``E sqrt(Q) / sqrt(E Q)``: less than 1 where the error has few directions, or hangs on
tokens that are rare and do much.
"""

from __future__ import annotations

import numpy as np

from esscher.core.validation import Array
from esscher.math.theory.cloud_grid import Single

#: Samples that are drawn. The ratio is known to about 1/3 of the Q's relative spread over the root
#: of this number: to half a percent.
DRAWS = 400
#: The shape of larger samples is that of this size.
LARGEST = 10**9


class Redrawn:
    """Samples drawn again from tokens, or from queries, of given weights.

    Parameters
    ----------
    weights
        What each stands for.
    sizes
        Numbers n that are drawn.
    rng
        Of the draws.
    """

    def __init__(self, weights: Array, sizes: Array, rng: np.random.Generator) -> None:
        self._chances = weights / weights.sum()
        counts = [int(min(n, LARGEST)) for n in sizes]
        self._shares = [rng.multinomial(n, self._chances, size=DRAWS) / n for n in counts]
        self._moved = [drawn - self._chances for drawn in self._shares]

    def squares(self, phi: Array, bias: Array, share: Array) -> Array:
        """Drawn squares for influences [token, size, k] and a bias [size, k], [size, draw].

        Squares are summed with weights ``share``.
        """
        parts = np.broadcast_to(share, bias.shape)
        return np.array(
            [(moved @ phi[:, i] + bias[i]) ** 2 @ parts[i] for i, moved in enumerate(self._moved)]
        )

    def kernels(self, kernels: Single) -> Array:
        """Ratio for products [size, token, token]."""
        # single precision: a ratio of sums of many squares
        moved = [found.astype(np.float32) for found in self._moved]
        squares = [np.sum((x @ k) * x, axis=1) for x, k in zip(moved, kernels, strict=True)]
        return root_ratios(squares)

    def means(self, values: Array) -> Array:
        """Ratio for means of values [query, size]."""
        return root_ratios([drawn @ values[:, i] for i, drawn in enumerate(self._shares)])


def root_ratios(squares: Array | list[Array]) -> Array:
    """``E sqrt(Q) / sqrt(E Q)`` of drawn squares, for each size."""
    kept = np.maximum(squares, 0.0)
    level = np.sqrt(kept.mean(axis=1))
    roots = np.sqrt(kept).mean(axis=1)
    return np.asarray(np.divide(roots, level, out=np.ones_like(level), where=level > 0))
