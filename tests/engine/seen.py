"""What queries see."""

from __future__ import annotations

import numpy as np
import torch

from esscher.engine.patterns import Selection


def seen_keys(sight: Selection, row: int) -> np.ndarray:
    """Positions that a query really sees, in a selection that heads share."""
    keys = sight.keys if sight.keys.ndim == 1 else sight.keys[..., row, :].reshape(-1)
    if sight.log_weights is None:
        return keys.numpy()
    inside = torch.isfinite(sight.log_weights[row])
    return keys[inside].numpy()
