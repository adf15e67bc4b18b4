"""A random attention-only stack with residuals, with the same horizon in every layer.

Layer l is ``x -> c (residual x + output_scale O Gamma(x))``. Everything is set on the law
N(m, Sigma) that reaches the layer according to the exact recursion (``limits/stack.py``):

* the interaction ``M = Sigma^{1/2} A Sigma^{1/2}`` is a matrix of independent normal entries,
  scaled to ``||M||_2 = horizon``; the mean tilt has a random direction and the length ``tau``;
* O is a random orthogonal matrix, so that ``output_scale`` is the gain of the attention branch;
* c brings the mean square of a token back to the dimension d, as a normalisation would.

Horizons being set on the law that is there, c changes no relative error: without it the same
tokens would come out, only larger. It keeps the covariance from growing with depth.

Attention passes the mean of the tokens on in full, but what sets a token apart only through M: a
branch as large as the tokens themselves would need a gain of 1/H, and errors of the mean would grow
by that factor in every layer. Hence a fixed gain.
"""

from __future__ import annotations

import numpy as np

from esscher.core.errors import UndefinedError
from esscher.core.streams import random_stream
from esscher.math.heads import law_head
from esscher.math.laws import Gaussian
from esscher.math.limits import AttentionLayer, GaussianStack, StackLimit
from esscher.math.limits.mapping import AffineMap

#: Condition number of a covariance beyond which a head can no longer be set on it: half of the
#: digits of float64 are left for ``Sigma^{-1/2}``.
COLLAPSED = 1e14


def random_stack(
    depth: int,
    dim: int,
    horizon: float,
    *,
    residual: float = 1.0,
    output_scale: float = 0.5,
    tau: float = 0.0,
    seed: int = 0,
) -> tuple[GaussianStack, StackLimit]:
    """Draw a stack for tokens N(0, I), and push that law through it.

    Parameters
    ----------
    depth, dim
        Number of layers, and dimension of the tokens.
    horizon
        Horizon of every layer on the law that reaches it.
    residual
        Factor of the residual connection, before c; 0 for none.
    output_scale
        Gain of the attention branch, before c.
    tau
        Length of every layer's mean tilt, in whitened key coordinates. With 0 all means stay 0, by
        symmetry.
    seed
        Seed of the weights; layer l does not depend on how many come after it.

    Raises
    ------
    UndefinedError
        When the tokens collapse onto fewer dimensions, naming the layer.
    """
    law = Gaussian(dim=dim)
    layers: list[AttentionLayer] = []
    for number in range(depth):
        spectrum = np.linalg.eigvalsh(law.covariance)
        if spectrum[0] * COLLAPSED <= spectrum[-1]:
            raise UndefinedError(
                f"the tokens that reach layer {number} have collapsed: their smallest variance is "
                f"{max(spectrum[0], 0.0):.2g} of {spectrum[-1]:.2g}; give a larger residual, or at "
                f"most {number} layers"
            )
        layer = _layer(law, number, horizon, residual, output_scale, tau, seed)
        mean, covariance = layer.limit_map(law).push(law.mean, law.covariance)
        law = Gaussian(mean, covariance)
        layers.append(layer)
    stack = GaussianStack(layers)
    return stack, stack.propagate(Gaussian(dim=dim))


def _layer(
    law: Gaussian,
    number: int,
    horizon: float,
    residual: float,
    output_scale: float,
    tau: float,
    seed: int,
) -> AttentionLayer:
    """One layer, set on the law that reaches it."""
    rng, d = random_stream(seed, "deep stack", number), law.dim
    matrix, other = rng.standard_normal((2, d, d))
    direction = rng.standard_normal(d)
    head = law_head(
        law,
        matrix=horizon * matrix / np.linalg.norm(matrix, 2),
        tau=tau * direction / np.linalg.norm(direction),
    )
    q, r = np.linalg.qr(other)
    output = output_scale * q * np.sign(np.diag(r))  # signs: uniform over the orthogonal group
    plain = AttentionLayer((head,), (output,), residual=residual)
    mean, covariance = plain.limit_map(law).push(law.mean, law.covariance)
    factor = np.sqrt(d / (mean @ mean + np.trace(covariance)))
    return AttentionLayer((head,), (factor * output,), residual=factor * residual)


def depth_maps(limit: StackLimit) -> list[AffineMap]:
    """The first 1, 2, ... layers as one affine map each, of the tokens that enter the stack."""
    maps = [limit.maps[0]]
    for layer in limit.maps[1:]:
        last = maps[-1]
        maps.append(AffineMap(layer.slope @ last.slope, layer(last.offset)))
    return maps
