"""Inputs of one attention layer: the tensors that enter its softmax, and its mask.

Masks of transformers are read here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

#: Queries taken at a time by :meth:`LayerInputs.attend`; bounds its memory at a few hundred MB.
QUERY_BLOCK = 1024


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """The inputs of one layer's attention, exactly as they enter the softmax.

    The logit of key j for query i is ``cap(scaling * <q_i, k_j>) + bias_ij``, where ``cap`` is
    ``softcap * tanh(. / softcap)`` or nothing. Biases, rotary embeddings and query-key
    normalisation are already inside ``q`` and ``k``.

    Attributes
    ----------
    layer
        Number of the layer.
    q
        Queries, [batch, heads, n_q, d_k].
    k, v
        Keys and values, [batch, key_heads, n_k, d]; a key head serves ``group`` neighbouring query
        heads. With a key cache ``n_k`` is larger than ``n_q``.
    scaling
        Factor of the logits.
    softcap
        Bound of the logits (Gemma 2), or None.
    window
        A query sees only keys less than this many positions away; None without a window.
    bias
        Added to the logits: [heads or 1, n_q, n_k], with a leading batch axis if it differs
        between texts; or None.
    causal
        Whether a query sees only its own and earlier positions.
    valid
        [batch, n_k], False at keys that no query sees, such as padding; None without any.
    visible_mask
        [batch or 1, heads or 1, n_q, n_k] of bool, True where a query sees a key, when the model
        made such a mask; None when ``causal`` alone decides.
    offset
        Index among the keys of the first query's own key (0 without a cache).
    hidden
        What the projections of queries, keys and values are applied to, [batch, n_q, hidden].
    original
        Calls the model's own attention on these inputs; returns [batch, heads, n_q, d_v].
    """

    layer: int
    q: Tensor
    k: Tensor
    v: Tensor
    scaling: float
    softcap: float | None
    window: int | None
    bias: Tensor | None
    causal: bool
    valid: Tensor | None
    visible_mask: Tensor | None
    offset: int
    hidden: Tensor | None
    original: Callable[[], Tensor]

    @property
    def group(self) -> int:
        """Number of query heads that share a key head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """Shape of the attention output, [batch, heads, n_q, d_v]."""
        batch, heads, queries, _ = self.q.shape
        return batch, heads, queries, self.v.shape[-1]

    @cached_property
    def output(self) -> Tensor:
        """The model's own attention output before the output projection, [batch, heads, n_q, d_v].

        It is bit for bit that of the model.
        """
        return self.original().detach()

    def text_queries(self, batch: int = 0) -> Tensor:
        """Numbers of the queries of one text that are not padding, increasing."""
        queries = self.q.shape[2]
        if self.valid is None:
            return torch.arange(queries, device=self.q.device)
        return torch.nonzero(self.valid[batch, self.offset : self.offset + queries])[:, 0]

    def text_bias(self, batch: int = 0) -> Tensor | None:
        """Bias of the logits of one text, [heads or 1, n_q, n_k]; None without one."""
        if self.bias is None or self.bias.ndim == 3:
            return self.bias
        return self.bias[min(batch, len(self.bias) - 1)]

    def visible(self, queries: slice = slice(None)) -> Tensor:
        """Who sees whom, bool [batch or 1, heads or 1, queries, n_k], as the model decides it."""
        if self.visible_mask is not None:
            return self.visible_mask[:, :, queries]
        return self.pattern(queries)[None, None]

    def pattern(self, queries: slice = slice(None)) -> Tensor:
        """Visibility by position alone (causality and window, not padding), bool [queries, n_k]."""
        keys = torch.arange(self.k.shape[2], device=self.k.device)
        places = torch.arange(self.q.shape[2], device=self.k.device)[queries] + self.offset
        distance = places[:, None] - keys[None, :]
        seen = torch.ones_like(distance, dtype=torch.bool)
        if self.causal:
            seen &= distance >= 0
        if self.window is not None:
            seen &= distance.abs() < self.window
        return seen

    def logits(
        self,
        batch: int,
        head: int,
        queries: slice = slice(None),
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """Logits of one head, [queries, n_k], with ``-inf`` where a key is not seen."""
        q = self.q[batch, head, queries].to(dtype)
        logits = q @ self.k[batch, head // self.group].to(dtype).T * self.scaling
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        bias = self.text_bias(batch)
        if bias is not None:
            logits = logits + bias[min(head, len(bias) - 1), queries].to(dtype)
        seen = self.visible(queries)
        seen = seen[min(batch, len(seen) - 1)]
        return logits.masked_fill(~seen[min(head, len(seen) - 1)], -torch.inf)

    def attend(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Dense softmax attention on these inputs, [batch, heads, n_q, d_v]; memory is bounded.

        A query that sees no key (left padding) gets 0.
        """
        output = torch.empty(self.output_shape, dtype=dtype, device=self.q.device)
        batches, heads, count, _ = self.q.shape
        for batch, head, start in itertools.product(
            range(batches), range(heads), range(0, count, QUERY_BLOCK)
        ):
            queries = slice(start, start + QUERY_BLOCK)
            weights = torch.softmax(self.logits(batch, head, queries, dtype), dim=-1)
            value = self.v[batch, head // self.group].to(dtype)
            output[batch, head, queries] = torch.nan_to_num(weights, nan=0.0) @ value
        return output


def read_mask(mask: Tensor | None, keys: int) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Read a mask [batch, heads or 1, n_q, n_k] of bool (True: seen) or of numbers to be added.

    Returns who sees whom, which keys are no padding, and what is added to the logits; None where
    the mask says nothing of it.

    A key that no query sees is padding: in a mask by position every key is seen by its own query.
    """
    if mask is None:
        return None, None, None
    mask = mask[..., :keys]  # models that keep a cache of fixed size make larger masks
    bias = None
    if mask.dtype == torch.bool:
        visible = mask
    else:
        # transformers marks what is not seen by the smallest number of the type, or -inf.
        visible = mask > torch.finfo(mask.dtype).min / 2
        kept = torch.where(visible, mask, torch.zeros((), dtype=mask.dtype, device=mask.device))
        if bool(kept.any()):
            bias = kept
    valid = visible.any(dim=-2).any(dim=1)
    return visible, None if bool(valid.all()) else valid, bias


#: Computes a layer's attention output [batch, heads, n_q, d_v]; None keeps the model's own.
Replacement: TypeAlias = Callable[[LayerInputs], Tensor | None]
