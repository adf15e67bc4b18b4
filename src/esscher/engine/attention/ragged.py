"""Attention over lists of kept keys, of a different length for every head, and a dense tail."""

from __future__ import annotations

import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.engine.attention import torch_ragged
from esscher.engine.attention.segments import Segments

__all__ = ["Segments", "ragged_attention"]

#: Up to so many queries at a time, PyTorch may do all lists at once.
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
    _check(q, segments, tail_keys, tail_values, visible)
    lists = segments.compiled
    if lists is not None and lists.take(q, tail_keys, tail_values):
        outputs = lists.attend(q, tail_keys, tail_values, scaling, softcap, visible)
    else:
        attend = torch_ragged.few_queries if _few(q, segments) else torch_ragged.many_queries
        outputs = attend(q, segments, tail_keys, tail_values, scaling, softcap, visible)
    return outputs.transpose(1, 2)


def _few(q: Tensor, segments: Segments) -> bool:
    """Whether PyTorch does all lists at once.

    A processor starts operations fast enough to do one list after the other, if there are few
    lists, or if they are so long that putting them side by side costs more.
    """
    lists = segments.sizes[0]
    short = lists >= 6 and len(segments.keys) < 512 * lists
    return q.shape[2] <= FEW and (short or not q.is_cpu)


def _check(
    q: Tensor, segments: Segments, tail_keys: Tensor, tail_values: Tensor, visible: Tensor | None
) -> None:
    """Shapes that belong together: the compiled kernel would read elsewhere."""
    batch, heads, n_q, d_k = q.shape
    texts, key_heads, tail, width = tail_keys.shape
    lists, width_k, width_v = segments.sizes
    sound = (
        texts == batch
        and heads % key_heads == 0
        and width == d_k == width_k
        and tail_values.shape == (batch, key_heads, tail, width_v)
        and lists == batch * key_heads
        and (visible is None or visible.shape in ((batch, n_q, tail), (1, n_q, tail)))
    )
    if not sound:
        shapes = {
            "q": q, "keys": segments.keys, "values": segments.values, "start": segments.start,
            "tail_keys": tail_keys, "tail_values": tail_values, "visible": visible,
        }  # fmt: skip
        found = ", ".join(f"{k} {list(x.shape)}" for k, x in shapes.items() if x is not None)
        raise InputError(f"these do not belong together: {found}")
    if visible is not None and visible.dtype != torch.bool:
        raise InputError(f"visible is of type {visible.dtype}; it must be of torch.bool")
