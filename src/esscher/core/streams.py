"""Random streams, determined by the seed, a purpose and an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esscher.core.validation import as_seed

if TYPE_CHECKING:
    import numpy as np


def random_stream(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """Return the random stream of a purpose, such as replicate 3 of ``"direct"``.

    Not ``default_rng(seed)``, nor ``default_rng([seed, 0])``, which is the same stream: users draw
    weights from just that, and the first tokens would then BE the rows of the weights.
    """
    import numpy as np

    key = (int.from_bytes(purpose.encode(), "big"), *index)
    return np.random.default_rng(np.random.SeedSequence(as_seed(seed), spawn_key=key))
