"""Corpora of random words."""

from __future__ import annotations

import numpy as np

from tests.engine.models.folders import WORDS


def corpus(seed, words=WORDS, tokens=4000):
    """Random words, ten to a line."""
    rng = np.random.default_rng([seed, 7])
    rows = rng.choice(words, (tokens // 10, 10))
    return ["\n".join(" ".join(row) for row in rows)]
