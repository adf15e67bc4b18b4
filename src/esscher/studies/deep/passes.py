"""A passage whose keys are sampled: which are kept for certain, and who asks.

In a decoder the first three quarters of a passage are the prefix, whose keys are sampled; the
queries are the last quarter. In an encoder all tokens are queries and keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from esscher.engine.models import LoadedModel
from esscher.engine.reading import PassageReader
from esscher.engine.sampled.sizes import PREFIX
from esscher.engine.text import Passage


class SampledPassage(PassageReader):
    """A passage ready to be read many times, with different samples of its keys.

    Attributes
    ----------
    certain
        True at keys that are kept for certain: position 0, delimiters, and in a decoder the last
        quarter, which attends to itself as usual.
    """

    def __init__(self, loaded: LoadedModel, passage: Passage) -> None:
        super().__init__(loaded, passage, prefix_length(loaded, passage))
        self.certain = certain_keys(loaded, passage)

    @property
    def eligible(self) -> int:
        """Number E of keys of which some are drawn."""
        return int(np.count_nonzero(~self.certain))


def prefix_length(loaded: LoadedModel, passage: Passage) -> int:
    """Tokens of a passage that a decoder has in its cache when the queries come."""
    return int(PREFIX * len(passage.ids)) if loaded.causal else 0


def certain_keys(loaded: LoadedModel, passage: Passage) -> NDArray[np.bool_]:
    """True at keys that are kept for certain, [length]."""
    certain = passage.is_delimiter.copy()
    certain[0] = True
    if loaded.causal:
        certain[prefix_length(loaded, passage) :] = True
    return certain
