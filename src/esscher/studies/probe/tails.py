"""Whether a head's keys are sub-Gaussian: ``esscher tails`` at what a probe can afford."""

from __future__ import annotations

from typing import Any

import numpy as np

from esscher.core.codec import as_tree
from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.sampled.layer import HeadNumbers
from esscher.math.tails.cloud import cloud_tails
from esscher.math.tails.directions import QUICK

#: Keys that are looked at: whole passages as long as they fit.
MOST = 8_192


def key_tails(numbers: HeadNumbers, seed: int) -> dict[str, Any] | None:
    """Numbers of the keys' worst projection, see :func:`esscher.math.tails.cloud_tails`.

    None where there are too few keys or passages to search in one half and judge on the other.
    """
    keys, passages = numbers.keys, numbers.passages
    if len(keys) > MOST:
        rows = np.sort(
            random_stream(seed, "probe tails").choice(len(keys), size=MOST, replace=False)
        )
        keys, passages = keys[rows], None if passages is None else passages[rows]
    try:
        found = cloud_tails(keys, passages, seed=seed, effort=QUICK).numbers
    except InputError:
        return None
    return dict(as_tree(found))
