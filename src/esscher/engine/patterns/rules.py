"""The patterns: keys chosen by their places, at random or by their logits, and mixtures of keys.

A rule is a function of the view, the budget, a random stream and the logits. Its parts are
positions [queries, n], for queries that may see more keys than all parts together take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.patterns.pattern import (
    Mixing,
    Pattern,
    Positions,
    Selection,
    View,
    as_selection,
)

if TYPE_CHECKING:
    from torch import Tensor

#: Keys at the beginning that are kept: the number that StreamingLLM uses.
SINKS = 4
#: Share of Longformer's budget that is global.
GLOBAL = 1 / 8
#: Shares of BigBird's budget that are global and a window, as in the published models; the rest is
#: random. Random keys are the same for so many query positions.
BIGBIRD_GLOBAL, BIGBIRD_WINDOW, BIGBIRD_BLOCK = 2 / 8, 3 / 8, 64


def first_keys(view: View, count: int) -> Positions:
    """The first keys that each query may see."""
    return np.asarray(view.first[:, None] + np.arange(count))


def near_keys(view: View, count: int, *, after: int = 0, before: int = 0) -> Positions:
    """The nearest keys: around the query, or up to it where it sees nothing behind itself.

    Parameters
    ----------
    view
        The queries, and what they may see.
    count
        Number of keys.
    after, before
        Keys at the beginning and at the end of the view that are left to other parts.
    """
    low, high = view.first + after, view.stop - before - count
    start = np.clip(view.queries - count // 2, low, high)
    return np.asarray(start[:, None] + np.arange(count))


def random_keys(view: View, count: int, order: Positions, taken: Positions | None) -> Positions:
    """The first keys of a random order that each query may see and has not taken yet.

    Parameters
    ----------
    view
        The queries, and what they may see.
    count
        Number of keys.
    order
        Random order of all keys, or [queries, keys], one for each query.
    taken
        Keys of the other parts, [queries, n].
    """
    free = view.visible()
    if taken is not None:
        np.put_along_axis(free, taken, False, axis=1)
    orders = np.broadcast_to(order, free.shape)
    in_order = np.take_along_axis(free, orders, axis=1)
    chosen = in_order & (np.cumsum(in_order, axis=1) <= count)
    return np.asarray(orders[chosen].reshape(len(free), count))


def uniform_random(
    view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
) -> Selection:
    """Uniform random keys, without replacement: what all others are compared with.

    The queries share one random order of the keys, of which each takes the first ones that it may
    see, as with a cache that keeps a uniform sample of all keys so far. Every key has the same
    chance, so that no log-weights are needed.
    """
    import torch

    order = rng.permutation(view.keys)
    if np.ptp(view.first) == 0 and np.ptp(view.stop) == 0:
        visible = order[(order >= view.first[0]) & (order < view.stop[0])]
        return Selection(torch.from_numpy(visible[:budget].copy()))
    return as_selection([random_keys(view, budget, order, None)])


def corrected(
    view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
) -> Selection:
    """Sinks and recent keys for certain, n of the E others at random with log-weight ln(E/n).

    Each sampled key stands for E/n of its kind, so that sums over the keys are estimated without
    bias, and their ratio, the attention, consistently. Half of the budget without sinks is recent.
    """
    near = (budget - SINKS) // 2
    sampled = budget - SINKS - near
    certain = [first_keys(view, SINKS), near_keys(view, near, after=SINKS)]
    order = rng.permutation(view.keys)
    drawn = random_keys(view, sampled, order, np.concatenate(certain, axis=1))
    others = view.counts - SINKS - near
    log_weights = np.zeros((len(others), budget))
    log_weights[:, budget - sampled :] = np.log(others / sampled)[:, None]
    return as_selection([*certain, drawn], log_weights)


def top_k(view: View, budget: int, rng: np.random.Generator, logits: Tensor | None) -> Selection:
    """The r visible keys with the largest logits, by query and head.

    The best choice without correction, and not a cheap one: it looks at all logits. What it leaves
    out is the tail of the weights, not a random part of them.
    """
    if logits is None:
        raise InputError("the pattern 'topk' chooses by the logits; hand them to select")
    return Selection(logits.topk(budget, dim=-1, sorted=False).indices)


def streaming(
    view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
) -> Selection:
    """The first keys, which often act as sinks, and the nearest ones (StreamingLLM)."""
    return as_selection([first_keys(view, SINKS), near_keys(view, budget - SINKS, after=SINKS)])


def window(view: View, budget: int, rng: np.random.Generator, logits: Tensor | None) -> Selection:
    """The r nearest keys: around the query, or its own and the r - 1 before it in a decoder."""
    return as_selection([near_keys(view, budget)])


def longformer(
    view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
) -> Selection:
    """A window, and the first tokens as global ones, which everyone sees and which see everything.

    In a decoder global tokens see only what is before them, as all others do.
    """
    count = max(1, int(GLOBAL * budget))
    parts = [first_keys(view, count), near_keys(view, budget - count, after=count)]
    return as_selection(parts, complete=view.queries < view.first + count)


def bigbird(view: View, budget: int, rng: np.random.Generator, logits: Tensor | None) -> Selection:
    """Global : window : random keys = 2 : 3 : 3, the shares of the published models.

    Global tokens are the first ones, in an encoder half of them the last ones; they see everything
    they may. Random keys are drawn among the others for every block of 64 query positions, and
    enter the softmax uncorrected, as published.
    """
    count, near = int(BIGBIRD_GLOBAL * budget), int(BIGBIRD_WINDOW * budget)
    behind = 0 if view.causal else count // 2
    ahead = count - behind
    fixed = [
        first_keys(view, ahead),
        view.stop[:, None] - np.arange(1, behind + 1),
        near_keys(view, near, after=ahead, before=behind),
    ]
    # a random order of all keys for every block of query positions
    seed = int(rng.integers(2**62))
    numbers, block = np.unique(view.queries // BIGBIRD_BLOCK, return_inverse=True)
    orders = [random_stream(seed, "query block", int(b)).permutation(view.keys) for b in numbers]
    taken = np.concatenate(fixed, axis=1)
    drawn = random_keys(view, budget - count - near, np.stack(orders)[block], taken)
    is_global = (view.queries < view.first + ahead) | (view.queries >= view.stop - behind)
    return as_selection([*fixed, drawn], complete=is_global if not view.causal else None)


def strided(view: View, budget: int, rng: np.random.Generator, logits: Tensor | None) -> Selection:
    """Half of the budget is a window, the other half spread evenly over all other visible keys.

    As in the Sparse Transformer.
    """
    near = near_keys(view, budget // 2)
    count, rest = budget - budget // 2, view.counts - budget // 2
    # middles of equal pieces of the rest, then past the window
    even = ((np.arange(count) + 0.5) * rest[:, None] / count).astype(np.int64)
    spread = view.first[:, None] + even
    spread += np.where(spread >= near[:, :1], budget // 2, 0)
    return as_selection([near, spread])


def block(view: View, budget: int, rng: np.random.Generator, logits: Tensor | None) -> Selection:
    """The block of r keys that a query lies in.

    In a decoder blocks have r/2 keys, and a query sees its own block up to itself and the one
    before: between r/2 and r keys.
    """
    if not view.causal:
        start = np.clip(view.queries // budget * budget, view.first, view.stop - budget)
        return as_selection([start[:, None] + np.arange(budget)])
    half = budget // 2
    # a query beyond the keys (a cache) belongs to the last block
    last = np.minimum(view.queries, view.stop - 1) // half * half
    keys = (last - half)[:, None] + np.arange(2 * half)
    inside = (keys >= view.first[:, None]) & (keys < view.stop[:, None])
    missing = np.where(inside, 0.0, -np.inf)
    return as_selection([np.clip(keys, 0, view.keys - 1)], log_weights=missing)


# Linformer: keys and values are mixed by a random matrix into r new ones.
#
# Not a selection: every query sees every visible key, through r mixtures ``k~ = P k``, ``v~ = P
# v``. The logits of the mixtures are the mixtures of the logits, so that P acts on them, and there
# are no log-weights. "Seeing all keys" (r = N) does not mean dense attention here: softmax is
# applied to mixtures, and only a P with a single 1 in every row and column (a permutation) commutes
# with it. Averages over groups of keys (``pooled``) are dense attention at r = N, where every group
# is one key.
#
# In a decoder a query's mixtures contain only what it may see (the published model is an encoder).


def linformer(view: View, budget: int, rng: np.random.Generator, logits: Tensor | None) -> Mixing:
    """Keys and values mixed by a random matrix P of independent entries N(0, 1/r).

    As in the published theorem, where keys and values carry further constant factors. The weights
    are ``softmax(logits P') P``.
    """
    import torch

    entries = rng.standard_normal((budget, view.keys), dtype=np.float32)
    entries *= np.float32(budget**-0.5)
    projection = torch.from_numpy(entries)

    def weights(logits: Tensor) -> Tensor:
        matrix = projection.to(logits)
        seen = torch.isfinite(logits)
        mixed = torch.softmax(logits.masked_fill(~seen, 0.0) @ matrix.T, dim=-1)
        return (mixed @ matrix).masked_fill(~seen, 0.0)

    return Mixing(weights)


def pooled(view: View, budget: int, rng: np.random.Generator, logits: Tensor | None) -> Mixing:
    """Keys and values averaged over r random groups: the projection that keeps means.

    Group sizes differ by at most one. The weight of a group is divided among those of its keys that
    are visible. The bias is that of Jensen's inequality: a group enters with the exponential of its
    mean logit, not with the mean of the exponentials.
    """
    import torch

    order = np.empty(view.keys, dtype=np.int64)
    order[rng.permutation(view.keys)] = np.arange(view.keys) % budget
    groups = torch.from_numpy(order)

    def weights(logits: Tensor) -> Tensor:
        group = groups.to(logits.device)
        seen = torch.isfinite(logits)
        shape = (*logits.shape[:-1], budget)
        members = logits.new_zeros(shape).index_add_(-1, group, seen.to(logits.dtype))
        sums = logits.new_zeros(shape).index_add_(-1, group, logits.masked_fill(~seen, 0.0))
        # a group without a visible key does not exist for this query
        means = torch.where(members > 0, sums / members.clamp(min=1), -torch.inf)
        shares = torch.softmax(means, dim=-1) / members.clamp(min=1)
        return torch.gather(shares, -1, group.expand(logits.shape)).masked_fill(~seen, 0.0)

    return Mixing(weights)


#: Patterns by name, in the order of tables; the first is what the others are compared with.
PATTERNS: dict[str, Pattern] = {
    pattern.name: pattern
    for pattern in (
        Pattern("random", "uniform random keys", uniform_random, is_random=True),
        Pattern(
            "corrected",
            "sinks + recent + random, corrected",
            corrected,
            smallest=SINKS + 2,
            is_random=True,
        ),
        Pattern("topk", "largest logits", top_k),
        Pattern("streaming", "sinks + recent", streaming, smallest=SINKS + 1),
        Pattern("window", "sliding window", window),
        Pattern("longformer", "window + global", longformer, smallest=2),
        Pattern("bigbird", "window + random + global", bigbird, smallest=8, is_random=True),
        Pattern("strided", "window + strided", strided, smallest=2),
        Pattern("block", "local blocks", block, smallest=2),
        Pattern(
            "pooled",
            "Linformer with averages over random groups",
            pooled,
            is_random=True,
            mixes=True,
        ),
        Pattern(
            "linformer",
            "random projection of keys and values",
            linformer,
            is_random=True,
            is_exact=False,
            mixes=True,
        ),
    )
}
