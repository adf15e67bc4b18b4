"""Attention over lists of kept keys, of a different length for every head, and a dense tail."""

from __future__ import annotations

from torch import Tensor

from esscher.engine.attention import torch_ragged
from esscher.engine.attention.segments import Segments

__all__ = ["Segments", "ragged_attention"]

#: Up to so many queries at a time, all lists are done at once.
FEW = 16


def ragged_attention(
    q: Tensor,
    segments: Segments,
    tail_keys: Tensor,
    tail_values: Tensor,
    *,
    scaling: float,
    softcap: float | None = None,
    visible: Tensor | None = None,
) -> Tensor:
    """Attention of queries over the list of their key head, and over the tail.

    The logit of a key is ``cap(scaling * <q, k>)``, with ``cap(x) = softcap * tanh(x / softcap)``,
    plus the key's log weight in a list. Every query sees its whole list. Sums are in float32
    whatever the type of the arrays. There are no gradients.

    Parameters
    ----------
    q
        [batch, heads, n_q, d_k], of any strides; as many heads as key heads, or a multiple.
    segments
        The lists, ``batch * key_heads`` of them. Their places are not checked here: this is called
        for every layer of every token.
    tail_keys, tail_values
        [batch, key_heads, tail, d_k] and [batch, key_heads, tail, d_v]: keys after those of the
        lists, the same number for all heads. Views of larger arrays will do, if the entries of a
        key lie side by side.
    scaling
        Factor of the logits.
    softcap
        Bound of the logits, if there is one.
    visible
        [batch or 1, n_q, tail]: which tail keys each query sees. By default the last query sees
        them all, and every query before it one less.

    Returns
    -------
    Tensor
        [batch, heads, n_q, d_v] in the type of q: a view of an array [batch, n_q, heads, d_v]. A
        query that sees no key at all gets 0.
    """
    few = q.shape[2] <= FEW
    attend = torch_ragged.few_queries if few else torch_ragged.many_queries
    outputs = attend(q, segments, tail_keys, tail_values, scaling, softcap, visible)
    return outputs.transpose(1, 2)
