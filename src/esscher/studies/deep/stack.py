"""A random attention-only stack with residuals, with the same horizon in every layer.

Layer l is ``x -> c (residual x + output_scale O Gamma(x))``. Everything is set on the law
N(m, Sigma) that reaches the layer according to the exact recursion (``limits/mapping.py``):

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

from collections.abc import Iterator, Sequence

import numpy as np
import xarray as xr

from esscher.core.errors import UndefinedError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.attention.outputs import attention_outputs
from esscher.math.heads import law_head
from esscher.math.laws import Gaussian
from esscher.math.limits import AttentionLayer, StackLimit, gaussian_stack
from esscher.math.limits.mapping import AffineMap
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.study import Setup, Work
from esscher.studies.deep.study import STACK_CURVES, DeepStackSettings, Replicate

#: Condition number of a covariance beyond which a head can no longer be set on it: half of the
#: digits of float64 are left for ``Sigma^{-1/2}``.
COLLAPSED = 1e14


def random_stack(settings: DeepStackSettings) -> tuple[list[AttentionLayer], StackLimit]:
    """Draw a stack for tokens N(0, I), and push that law through it.

    Layer l does not depend on how many come after it.

    Raises
    ------
    UndefinedError
        When the tokens collapse onto fewer dimensions, naming the layer.
    """
    dim, tau = settings.dim, settings.tau
    law = Gaussian(dim=dim)
    layers: list[AttentionLayer] = []
    for number in range(settings.depth):
        spectrum = np.linalg.eigvalsh(law.covariance)
        if spectrum[0] * COLLAPSED <= spectrum[-1]:
            raise UndefinedError(
                f"the tokens that reach layer {number} have collapsed: their smallest variance is "
                f"{max(spectrum[0], 0.0):.2g} of {spectrum[-1]:.2g}; give a larger residual, or at "
                f"most {number} layers"
            )
        rng = random_stream(settings.seed, "deep stack", number)
        matrix, square = rng.standard_normal((2, dim, dim))
        direction = rng.standard_normal(dim)
        head = law_head(
            law,
            matrix=settings.horizon * matrix / np.linalg.norm(matrix, 2),
            tau=tau * direction / np.linalg.norm(direction),
        )
        q, r = np.linalg.qr(square)
        output = (
            settings.output_scale * q * np.sign(np.diag(r))
        )  # signs: uniform over the orthogonal group
        plain = AttentionLayer(head, output, settings.residual)
        mean, covariance = plain.limit_map(law).push(law.mean, law.covariance)
        factor = np.sqrt(dim / (mean @ mean + np.trace(covariance)))
        layer = AttentionLayer(head, factor * output, factor * settings.residual)
        mean, covariance = layer.limit_map(law).push(law.mean, law.covariance)
        law = Gaussian(mean, covariance)
        layers.append(layer)
    return layers, gaussian_stack(layers, Gaussian(dim=dim))


def depth_maps(limit: StackLimit) -> list[AffineMap]:
    """The first 1, 2, ... layers as one affine map each, of the tokens that enter the stack."""
    maps = [limit.maps[0]]
    for layer in limit.maps[1:]:
        last = maps[-1]
        maps.append(AffineMap(layer.slope @ last.slope, layer(last.offset)))
    return maps


#: Coordinates whose means and covariances are kept, to compare with the recursion.
COORDINATES = 16
#: Type of the arithmetic of attention, and the relative error it leaves in a token.
DTYPE, RESOLUTION = "float32", 1e-6


def push_tokens(
    stack: Sequence[AttentionLayer], tokens: Array, dtype: str = DTYPE
) -> Iterator[Array]:
    """Yield the tokens after every layer; no matrix of all pairs is ever formed."""
    x = tokens
    for layer in stack:
        tilts, keys, values = layer.head.tokens(x)
        outputs = attention_outputs(tilts, keys, values, dtype=dtype)[0]
        x = layer.residual * x + outputs.astype(np.float64) @ layer.output.T
        yield x


def layer_errors(
    stack: Sequence[AttentionLayer], limit: StackLimit, tokens: Array, dtype: str = DTYPE
) -> Iterator[tuple[dict[str, float], Array]]:
    """Yield errors after every layer, relative to the size of that layer's tokens, and moments.

    ``map``: root mean square of ``x_i - T(input of i)`` with T the affine limit of the layers
    so far. ``mean``: norm of the error of the mean. Both are divided by the root mean square norm
    of a token in the limit. ``cov``: Frobenius norm of the error of the covariance, divided by
    that of the covariance.
    """
    maps = depth_maps(limit)
    for i, x in enumerate(push_tokens(stack, tokens, dtype)):
        mean, covariance = limit.means[i + 1], limit.covariances[i + 1]
        size = np.sqrt(mean @ mean + np.trace(covariance))
        off = x - maps[i](tokens)
        sample_mean = x.mean(axis=0)
        centred = x - sample_mean
        # divided by n - 1: unbiased for independent tokens, so that only attention biases it
        sample_cov = centred.T @ centred / (len(x) - 1)
        errors = {
            "map": float(np.sqrt(np.mean(np.sum(off**2, axis=1))) / size),
            "mean": float(np.linalg.norm(sample_mean - mean) / size),
            "cov": float(np.linalg.norm(sample_cov - covariance) / np.linalg.norm(covariance)),
        }
        yield errors, moment_entries(sample_mean, sample_cov)


def moment_entries(mean: Array, covariance: Array) -> Array:
    """Means and covariances of the first coordinates, as one vector."""
    kept = min(COORDINATES, len(mean))
    upper = np.triu_indices(kept)
    return np.concatenate([mean[:kept], covariance[upper]])


def stack_work(settings: DeepStackSettings, executor: CellExecutor) -> Work:
    """Draw the stack; each replicate is a task."""
    source = executor.share(random_stack(settings))
    tasks = {
        f"replicate-{number}": Task(
            f"replicate-{number}",
            measure_replicate,
            (source, settings.sizes, number, settings.seed),
        )
        for number in range(settings.replicates)
    }
    return Setup(settings), lambda run: [tasks]


def measure_replicate(
    source: tuple[Sequence[AttentionLayer], StackLimit],
    sizes: Sequence[int],
    replicate: int,
    seed: int,
) -> xr.Dataset:
    """One replicate: the first n of the same tokens, for every size n.

    Moments of n tokens are biased by b/n plus higher orders; two sizes cancel the first.
    """
    stack, limit = source
    rng = random_stream(seed, "deep tokens", replicate)
    tokens = Gaussian(dim=limit.means.shape[1]).sample(sizes[-1], rng)
    errors = np.empty((len(STACK_CURVES), len(stack), len(sizes)))
    moments = []
    for j, n in enumerate(sizes):
        by_layer = list(layer_errors(stack, limit, tokens[:n]))
        errors[:, :, j] = [[layer[curve] for layer, _ in by_layer] for curve in STACK_CURVES]
        moments.append(np.array([entries for _, entries in by_layer]))
    data = Replicate.new(
        curve=STACK_CURVES,
        replicate=[replicate],
        layer=range(len(stack)),
        size=sizes,
        entry=range(moments[0].shape[1]),
    )
    data.error = errors[:, None]
    small, large = sizes[-2:]
    # Richardson's extrapolation to infinite n
    data.limit = [(large * moments[-1] - small * moments[-2]) / (large - small)]
    return data.dataset
