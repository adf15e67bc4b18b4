"""Deep stacks of attention layers on Gaussian tokens: an exact recursion on (mean, covariance).

In the infinite-token limit a head over N(m, Sigma) is the affine map
``Gamma(x) = V (m + Sigma (A x + a)) + b_v``. With a residual connection a layer is affine too,
``x -> L x + c``, so it turns N(m, Sigma) into N(L m + c, L Sigma L'): the law that the next layer
sees. L depends on Sigma; without normalisation the covariance can grow doubly exponentially in
depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esscher.core.errors import InputError, UndefinedError
from esscher.core.validation import Array
from esscher.math.heads import WeightHead
from esscher.math.laws import Gaussian
from esscher.math.limits.mapping import AffineMap, gaussian_limit_map


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """The layer ``x -> residual * x + O Gamma(x)``.

    Attributes
    ----------
    head
        A head from weights; its own law is replaced by the law that reaches the layer.
    output
        O, of shape (d, d_v). Several heads are one whose O and values are theirs side by side.
    residual
        Factor of the residual connection; 0 for none.
    """

    head: WeightHead
    output: Array
    residual: float = 1.0

    def __post_init__(self) -> None:
        wanted = (self.head.law.dim, len(self.head.value_weight))
        if np.shape(self.output) != wanted:
            raise InputError(f"output has shape {np.shape(self.output)}; it must be {wanted}")

    def limit_map(self, law: Gaussian) -> AffineMap:
        """``L = residual I + O V Sigma A`` and the matching offset."""
        head_map = gaussian_limit_map(self.head.with_law(law))
        slope = self.residual * np.eye(law.dim) + self.output @ head_map.slope
        return AffineMap(slope, self.output @ head_map.offset)


@dataclass(frozen=True, eq=False)
class StackLimit:
    """The law of the tokens before, between and after the layers of a stack.

    Attributes
    ----------
    means
        Of shape (layers + 1, d); entry 0 belongs to the tokens that enter.
    covariances
        Of shape (layers + 1, d, d).
    horizons
        Horizon of each layer's head on the law that reaches it.
    maps
        The affine map of each layer.
    """

    means: Array
    covariances: Array
    horizons: Array
    maps: tuple[AffineMap, ...]


def gaussian_stack(layers: Sequence[AttentionLayer], law: Gaussian) -> StackLimit:
    """Push Gaussian tokens N(m, Sigma) through a stack of layers.

    Raises
    ------
    UndefinedError
        When the covariance or a horizon grows beyond floating point, naming the layer.
    """
    if not isinstance(law, Gaussian):
        raise InputError(f"the recursion is exact for Gaussian tokens only; got {law!r}")
    for i, layer in enumerate(layers):
        if layer.head.law.dim != law.dim:
            raise InputError(
                f"the tokens live in R^{law.dim} but layer {i} acts on R^{layer.head.law.dim}"
            )
    means, covariances = [law.mean], [law.covariance]
    horizons, maps = [], []
    for i, layer in enumerate(layers):
        overflow = UndefinedError(
            f"layer {i} overflows: the tokens that reach it have covariances up to "
            f"{float(np.abs(law.covariance).max()):.3g}; scale the output matrices down, or stop "
            "the stack before this layer"
        )
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            try:
                horizons.append(layer.head.with_law(law).horizon)
            except np.linalg.LinAlgError as error:
                raise overflow from error
            maps.append(layer.limit_map(law))
            mean, covariance = maps[-1].push(law.mean, law.covariance)
        if not all(np.isfinite(x).all() for x in (horizons[-1], mean, covariance)):
            raise overflow
        law = Gaussian(mean, covariance)
        means.append(mean)
        covariances.append(covariance)
    return StackLimit(np.stack(means), np.stack(covariances), np.array(horizons), tuple(maps))
