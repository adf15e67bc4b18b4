"""What the queries with which a model repeats a text say about its keys.

The queries of the second copy of a text look for its first copy: what they attend to is what it
takes to give the text back, whatever will be asked (as in KVzip, arXiv 2505.23416, which takes the
largest weight of a token; here it is the mean of squared weights, as for all other queries).
"""

from __future__ import annotations

import torch
from torch import Tensor

from esscher.engine.cache.observation import Observation
from esscher.engine.cache.weighing import weighed


class Repetition:
    """Attention of one key head to tokens, summed over the queries that repeat them.

    Parameters
    ----------
    group
        Query heads that share the keys.
    tokens
        How many; the first keys.
    """

    def __init__(self, group: int, tokens: int) -> None:
        self._square, self._received = torch.zeros(2, group, tokens)
        self._count = 0

    def add(
        self,
        query: Tensor,
        keys: Tensor,
        ends: Tensor,
        softcap: float | None = None,
        bias: Tensor | None = None,
    ) -> None:
        """Add queries [group, w, d_k] in float32, scaled; the others as for ``weighed``."""
        tokens = self._square.shape[1]
        for h, own in enumerate(query):
            found = weighed(own, keys, softcap=softcap, bias=bias, ends=ends, columns=tokens)
            self._square[h] += found.square.cpu()
            self._received[h] += found.received.cpu()
        self._count += query.shape[1]

    def score(self, values: Tensor, log_weight: Tensor | None = None) -> Tensor:
        """Scores of the tokens, [n], given their values [n, d_v]; see :class:`Observation`."""
        count = max(1, self._count)
        received = self._received / count
        output = received @ values.to(device="cpu", dtype=torch.float32)
        found = Observation(self._square / count, received, output)
        return found.score(values[None], log_weight)[0]
