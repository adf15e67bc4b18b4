"""Sparse attention patterns: which keys a query sees, with which log-weight.

A pattern gets a :class:`View` (who may see whom), a budget r and a random stream. It returns either
a :class:`Selection` of keys, or a :class:`Mixing` of all keys into r new ones. Both turn the logits
of a block of queries into attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esscher.core.errors import InputError
from esscher.core.validation import as_dim

if TYPE_CHECKING:
    from torch import Tensor

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
