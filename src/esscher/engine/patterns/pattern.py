"""The protocol of sparse patterns: which keys does a query see, with which log-weight.

A pattern is asked with a :class:`View` (who may see whom), a budget r and a random stream, and
answers with a :class:`Sight`: either a :class:`Selection` of keys, or a :class:`Mixing` of all keys
into r new ones (Linformer). Both turn the logits of a block of queries into attention weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

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


class Sight(Protocol):
    """The keys that a pattern lets a block of queries see, with their weights."""

    def weights(self, logits: Tensor) -> Tensor:
        """Weights of all keys, [..., queries, keys], from their logits (-inf where not visible)."""
        ...

    def attend(self, logits: Tensor, values: Tensor) -> Tensor:
        """Outputs [..., queries, d] of the queries over values [..., keys, d]."""
        ...


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
        spread = torch.zeros_like(logits).scatter_add_(-1, places, self._chosen(logits))
        if self.complete is not None:
            whole = self.complete.to(logits.device)
            spread[..., whole, :] = torch.softmax(logits[..., whole, :], dim=-1)
        return spread

    def attend(self, logits: Tensor, values: Tensor) -> Tensor:
        """Outputs over the chosen keys; takes memory for one more array of the logits' size."""
        if self.keys.ndim == 1 and self.complete is None:
            return self._chosen(logits) @ values[..., self.keys.to(values.device), :]
        return self.weights(logits) @ values

    def _chosen(self, logits: Tensor) -> Tensor:
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


class Pattern(ABC):
    """A sparse pattern: a rule that chooses the keys a query sees within a budget.

    The budget r counts every key that a query attends: global ones, sinks, recent and random ones.
    A query that may see no more than r keys sees all of them.
    """

    #: Name on the command line and in results.
    name: ClassVar[str]
    #: The pattern in a few words.
    title: ClassVar[str]
    #: Whether the choice is random.
    is_random: ClassVar[bool] = False
    #: Whether it is dense attention once the budget holds all keys.
    is_exact: ClassVar[bool] = True
    #: Smallest budget that its parts fit in.
    smallest: ClassVar[int] = 2

    def select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None = None
    ) -> Sight:
        """Choose the keys that a block of queries sees.

        Parameters
        ----------
        view
            The queries, and what they may see.
        budget
            Number of keys r.
        rng
            Where random choices come from. The same state gives the same choice for a query,
            whatever other queries are in the block.
        logits
            [..., queries, keys], -inf where a key is not visible; only for patterns that look.
        """
        import torch

        r = self.check(budget)
        complete = view.counts <= r
        if complete.all():
            return Selection(torch.zeros(1, dtype=torch.int64), complete=_flags(complete))
        if not complete.any():
            return self._select(view, r, rng, logits)
        rows = np.flatnonzero(~complete)
        some = None if logits is None else logits[..., torch.from_numpy(rows), :]
        return _widened(self._select(view.take(rows), r, rng, some), rows, complete)

    def check(self, budget: int) -> int:
        """Return the budget, if the pattern's parts fit in it."""
        r = as_dim(budget, "budget")
        if r < self.smallest:
            raise InputError(
                f"the budget is {r}, but the pattern {self.name!r} needs at least {self.smallest}"
            )
        return r

    @abstractmethod
    def _select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
    ) -> Selection:
        """The choice for queries that may see more keys than the budget."""


def _flags(values: NDArray[np.bool_]) -> Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(values))


def _widened(found: Selection, rows: NDArray[np.intp], complete: NDArray[np.bool_]) -> Selection:
    """A selection for some rows as one for all rows, the others being complete."""
    import torch

    at, count = torch.from_numpy(rows), len(complete)
    r = found.keys.shape[-1]
    own = found.keys.expand(len(rows), r) if found.keys.ndim == 1 else found.keys
    keys = torch.zeros(*own.shape[:-2], count, r, dtype=torch.int64)
    keys[..., at, :] = own
    weights = found.log_weights
    if weights is not None and weights.ndim > 1:
        wide = torch.zeros(*weights.shape[:-2], count, weights.shape[-1], dtype=weights.dtype)
        wide[..., at, :] = weights
        weights = wide
    whole = _flags(complete)
    if found.complete is not None:
        whole = whole.clone()
        whole[at] = found.complete
    return Selection(keys, weights, whole)
