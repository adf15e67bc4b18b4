"""Deep stacks of attention layers on Gaussian tokens: an exact recursion on (mean, covariance).

In the infinite-token limit a head over N(m, Sigma) is the affine map
``Gamma(x) = V (m + Sigma (A x + a)) + b_v``. With residual connections a layer is affine too,
``x -> L x + c``, so it turns N(m, Sigma) into N(L m + c, L Sigma L'): the law that the next layer
sees. L depends on Sigma; without normalisation the covariance can grow doubly exponentially in
depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from esscher.core.errors import InputError, UndefinedError
from esscher.core.validation import Array, as_array
from esscher.math.heads import WeightHead
from esscher.math.laws import Gaussian
from esscher.math.limits.mapping import AffineMap, gaussian_limit_map


@dataclass(frozen=True, eq=False, repr=False)
class AttentionLayer:
    """The layer ``x -> residual * x + sum_h O_h Gamma_h(x) + bias``.

    Attributes
    ----------
    heads
        One head from weights each; their own law is replaced by the law that reaches the layer.
    output
        O_h, of shape (d, d_v), one per head.
    residual
        Factor of the residual connection; 0 for none.
    bias
        Of shape (d,); zero if left out.
    """

    heads: tuple[WeightHead, ...]
    output: tuple[Array, ...]
    residual: float = 1.0
    # An empty array stands for zeros: the dimension is known only once the heads are.
    bias: Array = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        heads = tuple(self.heads)
        output = tuple(as_array(o, f"output {h}", 2) for h, o in enumerate(self.output))
        if not heads or len(heads) != len(output):
            raise InputError(f"a layer has {len(heads)} heads but {len(output)} output matrices")
        dim = heads[0].law.dim
        for h, (head, matrix) in enumerate(zip(heads, output, strict=True)):
            if head.law.dim != dim:
                raise InputError(f"head {h} acts on R^{head.law.dim} but head 0 on R^{dim}")
            wanted = (dim, len(head.value_weight))
            if matrix.shape != wanted:
                raise InputError(f"output {h} has shape {matrix.shape}; it must be {wanted}")
        bias = as_array(self.bias, "bias", 1)
        bias = bias if bias.size else np.zeros(dim)
        if len(bias) != dim:
            raise InputError(f"bias has length {len(bias)}; the layer acts on R^{dim}")
        if not np.isfinite(self.residual):
            raise InputError(f"residual is {self.residual!r}; it must be finite")
        for name, value in (("heads", heads), ("output", output), ("bias", bias)):
            object.__setattr__(self, name, value)

    @property
    def dim(self) -> int:
        """Dimension d of the tokens."""
        return self.heads[0].law.dim

    def over(self, law: Gaussian) -> tuple[WeightHead, ...]:
        """Return the layer's heads over another law."""
        return tuple(head.with_law(law) for head in self.heads)

    def limit_map(self, law: Gaussian) -> AffineMap:
        """``L = residual I + sum_h O_h V_h Sigma A_h`` and the matching offset."""
        slope, offset = self.residual * np.eye(self.dim), self.bias.copy()
        for head, matrix in zip(self.over(law), self.output, strict=True):
            head_map = gaussian_limit_map(head)
            slope += matrix @ head_map.slope
            offset += matrix @ head_map.offset
        return AffineMap(slope, offset)

    def __repr__(self) -> str:
        count = len(self.heads)
        heads = "1 head" if count == 1 else f"{count} heads"
        return f"AttentionLayer({heads} on R^{self.dim}, residual={self.residual:g})"


@dataclass(frozen=True, eq=False, repr=False)
class StackLimit:
    """The law of the tokens before, between and after the layers of a stack.

    Attributes
    ----------
    means
        Of shape (layers + 1, d); entry 0 belongs to the tokens that enter.
    covariances
        Of shape (layers + 1, d, d).
    horizons
        One array per layer, with the horizon of each of its heads on the law that reaches it.
    maps
        The affine map of each layer.
    """

    means: Array
    covariances: Array
    horizons: tuple[Array, ...]
    maps: tuple[AffineMap, ...]

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.maps)

    def __repr__(self) -> str:
        traces = np.trace(self.covariances, axis1=1, axis2=2)
        lines = [f"StackLimit of {self.depth} layers on R^{self.means.shape[1]} (closed form)"]
        lines += [
            f"  layer {i}: largest horizon {horizons.max():.4g}, "
            f"trace of the covariance {before:.4g} -> {after:.4g}"
            for i, (horizons, before, after) in enumerate(
                zip(self.horizons, traces[:-1], traces[1:], strict=True)
            )
        ]
        return "\n".join(lines)


class GaussianStack:
    """A stack of attention layers, applied to Gaussian tokens in the infinite-token limit."""

    def __init__(self, layers: Sequence[AttentionLayer]) -> None:
        self.layers = tuple(layers)
        if not self.layers:
            raise InputError("a stack needs at least one layer")
        dims = [layer.dim for layer in self.layers]
        if len(set(dims)) > 1:
            raise InputError(f"the layers act on different dimensions {dims}; they must agree")

    def propagate(self, law: Gaussian) -> StackLimit:
        """Push N(m, Sigma) through the layers.

        Raises
        ------
        UndefinedError
            When the covariance or a horizon grows beyond floating point, naming the layer.
        """
        if not isinstance(law, Gaussian):
            raise InputError(f"the recursion is exact for Gaussian tokens only; got {law!r}")
        dim = self.layers[0].dim
        if law.dim != dim:
            raise InputError(f"the tokens live in R^{law.dim} but the layers act on R^{dim}")
        means, covariances = [law.mean], [law.covariance]
        horizons, maps = [], []
        for i, layer in enumerate(self.layers):
            overflow = UndefinedError(
                f"layer {i} overflows: the tokens that reach it have covariances up to "
                f"{float(np.abs(law.covariance).max()):.3g}; scale the output matrices down, or "
                "stop the stack before this layer"
            )
            try:
                with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                    horizons.append(np.array([head.horizon for head in layer.over(law)]))
            except np.linalg.LinAlgError as error:
                raise overflow from error
            with np.errstate(over="ignore", invalid="ignore"):
                layer_map = layer.limit_map(law)
                mean, covariance = layer_map.push(law.mean, law.covariance)
            if not all(np.isfinite(x).all() for x in (horizons[-1], mean, covariance)):
                raise overflow
            law = Gaussian(mean, covariance)
            means.append(mean)
            covariances.append(covariance)
            maps.append(layer_map)
        return StackLimit(np.stack(means), np.stack(covariances), tuple(horizons), tuple(maps))

    def __repr__(self) -> str:
        return f"GaussianStack({len(self.layers)} layers on R^{self.layers[0].dim})"
