"""The tails of one layer: its hidden states, and the keys and logits of its heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.tails.cloud import CloudTails, cloud_tails, logit_shape, norm_shape
from esscher.math.tails.directions import QUICK
from esscher.studies.tails.collect import LayerTokens, Rows, TokenRows
from esscher.studies.tails.result import (
    CloudWithNorms,
    FurthestToken,
    HeadCloud,
    LayerTails,
    TokenCloud,
)

#: Tokens at the end of the tail that are named.
NAMED = 5


def measure_layer(
    layer: int,
    tokens: LayerTokens,
    rows: TokenRows,
    heads: Sequence[int],
    group: int,
    seed: int,
    label: Callable[[int], str],
) -> LayerTails:
    """Measure a layer.

    Parameters
    ----------
    layer, tokens, rows
        Which layer, what it sees, which tokens.
    heads, group
        Query heads, and how many of them share a key head.
    seed
        Of halves, starts and resampling.
    label
        A token's text.
    """
    text = np.flatnonzero(~rows.apart)
    by_key = {
        key_head: _cloud(tokens.keys[key_head], rows, text, seed, label)
        for key_head in sorted({head // group for head in heads})
    }
    listed = []
    for head in heads:
        keys = tokens.keys[head // group][text].astype(np.float64)
        logits = _capped(tokens.tilts[head].astype(np.float64) @ keys.T, tokens.softcap)
        listed.append(
            HeadCloud(
                layer=layer,
                head=head,
                key_head=head // group,
                logits=logit_shape(logits, rows.passage[text]),
                **structs.asdict(by_key[head // group]),
            )
        )
    hidden = None if tokens.hidden is None else _cloud(tokens.hidden, rows, text, seed, label)
    return LayerTails(layer=layer, heads=tuple(listed), hidden=hidden)


def _cloud(
    tokens: Rows, rows: TokenRows, text: NDArray[np.int64], seed: int, label: Callable[[int], str]
) -> TokenCloud:
    """Tails of one cloud: text tokens, then, with less effort, everything."""
    own = tokens[text].astype(np.float64)
    found = cloud_tails(own, rows.passage[text], seed=seed)
    with_all = None
    if rows.apart.any():
        everything = tokens.astype(np.float64)
        other = cloud_tails(everything, rows.passage, seed=seed, effort=QUICK).numbers
        with_all = CloudWithNorms(
            norms=norm_shape(everything, rows.passage), **structs.asdict(other)
        )
    return TokenCloud(
        norms=norm_shape(own, rows.passage[text]),
        tokens_in_tail=_named(found, rows.ids[text], label),
        with_delimiters=with_all,
        **structs.asdict(found.numbers),
    )


def _named(
    found: CloudTails, ids: NDArray[np.int64], label: Callable[[int], str]
) -> tuple[FurthestToken, ...]:
    """The tokens that reach furthest along the worst direction, each text once."""
    out: dict[int, float] = {}
    for row in np.argsort(-np.abs(found.projection)):
        out.setdefault(int(ids[row]), float(found.projection[row]))
        if len(out) == NAMED:
            break
    return tuple(FurthestToken(token=label(t), projection=value) for t, value in out.items())


def _capped(logits: Array, softcap: float | None) -> Array:
    return logits if softcap is None else np.asarray(softcap * np.tanh(logits / softcap))
