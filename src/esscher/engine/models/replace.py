"""Parts shared by the two ways of replacing attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeAlias

from torch import Tensor

from esscher.core.errors import InputError
from esscher.engine.models.inputs import LayerInputs

#: Computes a layer's attention output [batch, heads, n_q, d_v]; None keeps the model's own.
Replacement: TypeAlias = Callable[[LayerInputs], Tensor | None]


class Once:
    """The model's own attention, computed when it is first asked for and not again."""

    def __init__(self, compute: Callable[[], tuple[Tensor, Tensor | None]]) -> None:
        self._compute = compute

    @cached_property
    def result(self) -> tuple[Tensor, Tensor | None]:
        """Output in the model's own layout, [batch, n_q, heads, d_v], and weights if it has any."""
        return self._compute()


def checked(output: object, inputs: LayerInputs) -> Tensor | None:
    """Return a replacement's output in the model's type, or say what is wrong with it."""
    if output is None:
        return None
    if not isinstance(output, Tensor):
        raise InputError(
            f"the replacement of layer {inputs.layer} returned {type(output).__name__}; it must "
            "return a tensor, or None to keep the model's own attention"
        )
    if tuple(output.shape) != inputs.output_shape:
        raise InputError(
            f"the replacement of layer {inputs.layer} returned shape {tuple(output.shape)}; it "
            f"must be [batch, heads, queries, d_v] = {inputs.output_shape}"
        )
    return output.to(dtype=inputs.q.dtype, device=inputs.q.device)
