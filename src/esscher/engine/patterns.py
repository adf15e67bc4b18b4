"""Sparse attention patterns: which keys does a query see, with which log-weight correction.

``PATTERNS`` has them by name; a pattern is a rule with a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import as_dim

if TYPE_CHECKING:
    from torch import Tensor

#: The pattern that all others are compared with.
BASELINE = "random"

# Sparse attention patterns: which keys a query sees, with which log-weight.
#
# A pattern gets a View (who may see whom), a budget r and a random stream. It returns either
# a Selection of keys, or a Mixing of all keys into r new ones. Both turn the logits
# of a block of queries into attention.


Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class View:
    """Which keys a block of queries may see: query i those at ``first[i] <= position < stop[i]``.

    Attributes
    ----------
    queries
        Positions of the queries, counted as those of the keys; a query may stand beyond the keys.
    first, stop
        Ends of what each of them may see.
    keys
        Number of keys.
    causal
        Whether no query sees behind itself.
    """

    queries: Positions
    first: Positions
    stop: Positions
    keys: int
    causal: bool

    @classmethod
    def of(
        cls, queries: ArrayLike, keys: int, *, causal: bool = False, window: int | None = None
    ) -> View:
        """The view of a layer: everything, or what is not in the future, or not too far away.

        Parameters
        ----------
        queries
            Positions of the queries.
        keys
            Number of keys.
        causal
            Whether a query sees its own and earlier positions only.
        window
            The layer's own window: keys less than this many positions away; none if left out.
        """
        positions = np.atleast_1d(np.asarray(queries, dtype=np.int64))
        count = as_dim(keys, "keys")
        first, stop = np.zeros_like(positions), np.full_like(positions, count)
        if causal:
            stop = np.minimum(stop, positions + 1)
        if window is not None:
            first = np.maximum(first, positions - window + 1)
            stop = np.minimum(stop, positions + window)
        if np.any(stop <= first):
            blind = int(positions[np.argmax(stop <= first)])
            raise InputError(f"the query at position {blind} sees none of the {count} keys")
        return cls(positions, first, stop, count, causal)

    @property
    def counts(self) -> Positions:
        """Number of keys that each query may see."""
        return self.stop - self.first

    def take(self, rows: NDArray[np.intp]) -> View:
        """Some of the queries."""
        return View(self.queries[rows], self.first[rows], self.stop[rows], self.keys, self.causal)

    def visible(self) -> NDArray[np.bool_]:
        """Who sees whom, [queries, keys]."""
        at = np.arange(self.keys)
        return np.asarray((at >= self.first[:, None]) & (at < self.stop[:, None]))


@dataclass(frozen=True, eq=False)
class Selection:
    """Some keys for every query.

    Attributes
    ----------
    keys
        Positions: [r], the same for all queries, or [..., queries, r].
    log_weights
        What is added to the logits, of the shape of ``keys`` or one that broadcasts to it; -inf at
        a place that holds no key. None for all 0.
    complete
        [queries], True for queries that see everything they may; None if there are none.
    """

    keys: Tensor
    log_weights: Tensor | None = None
    complete: Tensor | None = None

    def weights(self, logits: Tensor) -> Tensor:
        """Softmax over the chosen keys, 0 elsewhere."""
        import torch

        if self.complete is not None and bool(self.complete.all()):
            return torch.softmax(logits, dim=-1)
        places = self.keys.to(logits.device).expand(*logits.shape[:-1], self.keys.shape[-1])
        # added, not set: a place without a key may point to one that is chosen elsewhere in the row
        spread = torch.zeros_like(logits).scatter_add_(-1, places, self._of_chosen(logits))
        if self.complete is not None:
            whole = self.complete.to(logits.device)
            spread[..., whole, :] = torch.softmax(logits[..., whole, :], dim=-1)
        return spread

    def attend(self, logits: Tensor, values: Tensor) -> Tensor:
        """Outputs over the chosen keys; takes memory for one more array of the logits' size."""
        if self.keys.ndim == 1 and self.complete is None:
            return self._of_chosen(logits) @ values[..., self.keys.to(values.device), :]
        return self.weights(logits) @ values

    def _of_chosen(self, logits: Tensor) -> Tensor:
        """Weights of the chosen keys, [..., queries, r]."""
        import torch

        keys = self.keys.to(logits.device)
        if keys.ndim == 1:
            taken = logits[..., keys]
        else:
            taken = torch.gather(logits, -1, keys.expand(*logits.shape[:-1], keys.shape[-1]))
        if self.log_weights is not None:
            taken = taken + self.log_weights.to(taken)
        return torch.softmax(taken, dim=-1)


def as_selection(
    parts: list[Positions],
    log_weights: NDArray[np.float64] | None = None,
    complete: NDArray[np.bool_] | None = None,
) -> Selection:
    """Parts side by side, [queries, n] each, as one selection."""
    import torch

    keys = np.concatenate(parts, axis=1)
    weights = None if log_weights is None else torch.from_numpy(log_weights)
    whole = None if complete is None or not complete.any() else torch.from_numpy(complete)
    return Selection(torch.from_numpy(np.ascontiguousarray(keys)), weights, whole)


@dataclass(frozen=True, eq=False)
class Mixing:
    """All keys seen through mixtures of them.

    Attributes
    ----------
    weights
        Gives the total weight of every key, [..., queries, keys], from the logits (-inf where a key
        is not visible); a weight need not be positive.
    """

    weights: Callable[[Tensor], Tensor]

    def attend(self, logits: Tensor, values: Tensor) -> Tensor:
        """Outputs [..., queries, d] of the queries over values [..., keys, d]."""
        return self.weights(logits) @ values


#: Chooses keys for the queries of a view within a budget. The same state of the random stream gives
#: the same choice for a query, whatever other queries are in the view. Logits, [..., queries,
#: keys], are -inf where a key is not visible.
Choice: TypeAlias = Callable[[View, int, np.random.Generator, "Tensor | None"], Selection | Mixing]


@dataclass(frozen=True)
class Pattern:
    """A sparse pattern: a rule that chooses the keys a query sees within a budget.

    The budget r counts every key that a query attends: global ones, sinks, recent and random ones.
    A query that may see no more than r keys sees all of them.

    Attributes
    ----------
    name
        Its name on the command line and in results.
    title
        The pattern in a few words.
    choose
        The rule. It returns a :class:`Selection`, for queries that may see more keys than r; or a
        :class:`Mixing` if the pattern ``mixes``.
    smallest
        Smallest budget that its parts fit in.
    is_random
        Whether the choice is random.
    is_exact
        Whether it is dense attention once the budget holds all keys.
    mixes
        Whether all keys are mixed into r new ones.
    """

    name: str
    title: str
    choose: Choice
    smallest: int = 1
    is_random: bool = False
    is_exact: bool = True
    mixes: bool = False

    def select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None = None
    ) -> Selection | Mixing:
        """Choose the keys that a block of queries sees.

        Parameters
        ----------
        view
            The queries, and what they may see.
        budget
            Number of keys r.
        rng
            Where random choices come from.
        logits
            [..., queries, keys], -inf where a key is not visible; only for patterns that look.
        """
        import torch

        r = self.check(budget)
        if self.mixes:
            return self.choose(view, min(r, view.keys), rng, logits)
        complete = view.counts <= r
        whole = torch.from_numpy(np.ascontiguousarray(complete))
        if complete.all():
            return Selection(torch.zeros(1, dtype=torch.int64), complete=whole)
        if not complete.any():
            return self.choose(view, r, rng, logits)
        rows = np.flatnonzero(~complete)
        places = torch.from_numpy(rows)
        some = None if logits is None else logits[..., places, :]
        choice = self.choose(view.take(rows), r, rng, some)
        assert isinstance(choice, Selection)
        # the choice for some rows as one for all rows, the others being complete
        chosen = choice.keys.expand(len(rows), -1) if choice.keys.ndim == 1 else choice.keys
        keys = torch.zeros(*chosen.shape[:-2], len(complete), chosen.shape[-1], dtype=torch.int64)
        keys[..., places, :] = chosen
        weights = choice.log_weights
        if weights is not None and weights.ndim > 1:
            wide = torch.zeros(
                *weights.shape[:-2], len(complete), weights.shape[-1], dtype=weights.dtype
            )
            wide[..., places, :] = weights
            weights = wide
        if choice.complete is not None:
            whole[places] = choice.complete
        return Selection(keys, weights, whole)

    def check(self, budget: int) -> int:
        """Return the budget, if the pattern's parts fit in it."""
        r = as_dim(budget, "budget")
        if r < self.smallest:
            raise InputError(
                f"the budget is {r}, but the pattern {self.name!r} needs at least {self.smallest}"
            )
        return r


# The patterns: keys chosen by their places, at random or by their logits, and mixtures of keys.
#
# A rule is a function of the view, the budget, a random stream and the logits. Its parts are
# positions [queries, n], for queries that may see more keys than all parts together take.

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


def as_patterns(names: str | Iterable[str]) -> tuple[str, ...]:
    """Names of patterns in the order of ``PATTERNS``; ``"all"`` for all, or a list with commas.

    Random selection is always among them: the others are compared with it.
    """
    wanted = {str(name).strip() for name in (names.split(",") if isinstance(names, str) else names)}
    if wanted == {"all"}:
        return tuple(PATTERNS)
    unknown = sorted(wanted - set(PATTERNS))
    if unknown or not wanted:
        problem = f"there is no pattern {unknown[0]!r}" if unknown else "no patterns are given"
        raise InputError(f"{problem}; choose from all, {', '.join(PATTERNS)}")
    return tuple(name for name in PATTERNS if name in wanted or name == BASELINE)
