"""The last queries of a layer, by which tokens are judged again."""

from __future__ import annotations

import torch
from torch import Tensor

from esscher.engine.cache.observation import WINDOW


class RecentQueries:
    """The last queries of a layer, by which tokens are judged."""

    def __init__(self, like: Tensor, window: int = WINDOW) -> None:
        batch, heads, _, width = like.shape
        with torch.inference_mode(False):
            self.queries = like.new_zeros(batch, heads, window, width)
            self.places = torch.full((window,), -1)
        self._next = 0

    @torch.inference_mode(False)
    @torch.no_grad()
    def add(self, queries: Tensor, seen: int) -> None:
        """Note queries, [batch, heads, new, d], the last of them at place ``seen - 1``."""
        window, count = len(self.places), queries.shape[2]
        taken = min(window, count)
        slots = (self._next + torch.arange(taken)) % window
        self.queries[:, :, slots] = queries[:, :, count - taken :]
        self.places[slots] = torch.arange(seen - taken, seen)
        self._next = int((self._next + taken) % window)

    def restore(self, queries: Tensor, places: Tensor) -> None:
        """Hold these queries, at these places."""
        order = torch.argsort(places)  # the oldest, or an empty place, is the next to go
        self.queries[:], self.places[:] = queries[:, :, order], places[order]
        self._next = 0

    def forget_from(self, place: int) -> None:
        """Forget queries from a place on: their tokens were taken back."""
        self.places[self.places >= place] = -1

    @torch.inference_mode(False)
    @torch.no_grad()
    def select(self, texts: Tensor) -> None:
        """Become those of these texts of the batch."""
        self.queries = self.queries[texts]

    def observed(
        self, batch: int, g: int, key_heads: int, listed: int, there: Tensor, seen: int
    ) -> tuple[Tensor, Tensor]:
        """Queries of one key head and the keys that they see: a list, then the tail.

        Parameters
        ----------
        batch, g, key_heads
            The text, and the number of the key head among all of them.
        listed
            Length of the list; every query sees all of it.
        there
            False at padding of the tail, [tail].
        seen
            Tokens seen, those of the tail the last ones.
        """
        order = self._order(there, seen)
        places = self.places[order]
        first = seen - len(there)
        group = self.queries.shape[1] // key_heads
        query = self.queries[batch, g * group : (g + 1) * group, order]
        tail = (torch.arange(first, seen) <= places[:, None]) & there
        visible = torch.cat([torch.ones(len(places), listed, dtype=torch.bool), tail], dim=1)
        return query, visible.to(query.device)

    def own_places(self, there: Tensor, seen: int) -> Tensor:
        """Places of the queries of :meth:`observed`."""
        return self.places[self._order(there, seen)]

    def _order(self, there: Tensor, seen: int) -> Tensor:
        """Which queries are of a text, in their order: rounding does not depend on their slots."""
        first = seen - len(there)
        own = self.places >= 0
        # a query whose own token is padding is none of the text's
        behind = self.places >= first
        own[behind] &= there[(self.places[behind] - first)]
        order = torch.argsort(self.places)
        return order[own[order]]
