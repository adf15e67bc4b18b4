"""Logits of attention multiplied by a factor that grows with the context, within a block.

A query that sees n keys attends with ``softmax(b(n) * logits)``. The factor of a head is
``b(n) = (1 + slope * ln(n / reference))^power`` beyond the reference length and 1 up to it. With
equal slopes this is Qwen's and scalable softmax's ``ln n / ln n_0`` (slope ``1/ln n_0``, power 1)
and YaRN's temperature, whose attention factor ``1 + 0.1 ln s`` multiplies queries and keys both
(slope 0.1, power 2).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_array, as_positive
from esscher.engine.models.capture import attention_override
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel

#: Slope and power of YaRN's temperature (Peng et al. 2023, arXiv:2309.00071).
YARN = (0.1, 2.0)


@dataclass(frozen=True, eq=False)
class LogitScale:
    """Factors of logits as functions of the number of keys.

    Attributes
    ----------
    slopes
        By layer and head; 0 leaves a head as it is.
    reference
        Number of keys up to which nothing changes.
    power
        Of the factor.
    """

    slopes: Array
    reference: float
    power: float = 1.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        as_positive(self.reference, "reference")
        as_positive(self.power, "power")
        if as_array(self.slopes, "slopes").ndim != 2:
            raise InputError("slopes must have a row per layer and a column per head")

    @classmethod
    def logarithmic(cls, layers: int, heads: int, reference: float) -> LogitScale:
        """``ln n / ln n_0`` for all heads."""
        slope = 1 / math.log(as_positive(reference, "reference"))
        return cls(torch.full((layers, heads), slope).double().numpy(), reference)

    @classmethod
    def yarn(cls, layers: int, heads: int, reference: float) -> LogitScale:
        """YaRN's temperature at the factor ``n / n_0`` for all heads."""
        slope, power = YARN
        return cls(torch.full((layers, heads), slope).double().numpy(), reference, power)

    def factors(self, layer: int, counts: Tensor) -> Tensor:
        """Factors [heads, queries] of queries that see so many keys."""
        growth = torch.log(counts.double() / self.reference).clamp(min=0.0)
        slopes = torch.as_tensor(self.slopes[layer], dtype=torch.float64, device=counts.device)
        return (1 + slopes[:, None] * growth).clamp(min=0.0) ** self.power


@contextlib.contextmanager
def scaled_attention(loaded: LoadedModel, scale: LogitScale) -> Iterator[None]:
    """Multiply the logits of a model's heads by factors that grow with the context.

    The rest of the model is untouched, and so is everything after the block. A cap on logits
    (Gemma 2) is applied after the factor; biases are not multiplied.

    Raises
    ------
    InputError
        If the factors are not those of the model's layers and heads.
    """
    shape = (loaded.shape.layers, loaded.shape.heads)
    if scale.slopes.shape != shape:
        raise InputError(
            f"slopes has shape {scale.slopes.shape}; {loaded.name!r} has {shape[0]} layers of "
            f"{shape[1]} heads"
        )

    def attend(inputs: LayerInputs) -> Tensor | None:
        first = inputs.offset
        counts = torch.arange(first + 1, first + inputs.q.shape[2] + 1, device=inputs.q.device)
        if not inputs.causal:
            counts = torch.full_like(counts, inputs.k.shape[2])
        factors = scale.factors(inputs.layer, counts)
        if bool((factors == 1).all()):
            return None
        q = inputs.q * factors.to(inputs.q.dtype)[None, :, :, None]
        if _is_plain(inputs):
            return functional.scaled_dot_product_attention(
                q, inputs.k, inputs.v, is_causal=True, scale=inputs.scaling,
                enable_gqa=inputs.group > 1,
            )  # fmt: skip
        return dataclasses.replace(inputs, q=q).attend(torch.float32)

    with attention_override(loaded, attend):
        yield


def _is_plain(inputs: LayerInputs) -> bool:
    """Whether attention is causal over these very tokens and nothing else."""
    special = (inputs.softcap, inputs.window, inputs.bias, inputs.valid, inputs.visible_mask)
    alone = inputs.offset == 0 and inputs.q.shape[2] == inputs.k.shape[2]
    return inputs.causal and alone and all(part is None for part in special)
