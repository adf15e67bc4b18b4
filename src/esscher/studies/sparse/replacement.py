"""A sparse pattern in place of a model's own attention."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.models import LayerInputs
from esscher.engine.models.inputs import Replacement
from esscher.engine.patterns import Pattern, View

#: Logits that are held at a time.
ENTRIES = 2**24


def sparse_attention(
    pattern: Pattern, budget: int, *, seed: int = 0, entries: int = ENTRIES
) -> Replacement:
    """A replacement for :func:`esscher.engine.models.attention_override`: a pattern with a budget.

    The heads of a layer share their selection (top-k does not); layers have their own.

    Parameters
    ----------
    pattern
        The pattern.
    budget
        Number of keys r that a query attends.
    seed
        Seed of random choices.
    entries
        Logits that are held at a time.
    """
    pattern.check(budget)

    def attend(inputs: LayerInputs) -> Tensor:
        batch, heads, queries, _ = inputs.q.shape
        keys = inputs.k.shape[2]
        output = torch.empty(inputs.output_shape, dtype=torch.float32, device=inputs.q.device)
        step = max(1, entries // (heads * keys))
        for b in range(batch):
            values = inputs.v[b].to(torch.float32).repeat_interleave(inputs.group, 0)
            for start in range(0, queries, step):
                rows = slice(start, min(start + step, queries))
                logits = torch.stack(
                    [inputs.logits(b, h, rows, torch.float32) for h in range(heads)]
                )
                # the same stream for every block of queries: a query's choice must not depend on
                # which block it is in
                rng = random_stream(seed, "sparse attention", inputs.layer, b)
                output[b, :, rows] = _block(pattern, budget, inputs, b, rows, logits, values, rng)
        return output

    return attend


def _block(
    pattern: Pattern,
    budget: int,
    inputs: LayerInputs,
    batch: int,
    rows: slice,
    logits: Tensor,
    values: Tensor,
    rng: np.random.Generator,
) -> Tensor:
    seen = torch.isfinite(logits[0]).cpu().numpy()
    stop = np.where(seen.any(1), seen.shape[1] - np.argmax(seen[:, ::-1], axis=1), 0)
    first = np.where(seen.any(1), np.argmax(seen, axis=1), 0)
    if np.any(seen.sum(axis=1) != stop - first):
        raise InputError(
            f"layer {inputs.layer} hides keys in the middle of what a query sees; patterns need "
            "each query's keys in one piece"
        )
    output = torch.zeros(*logits.shape[:-1], values.shape[-1], device=logits.device)
    # a query that sees nothing (left padding) gets 0
    asking = np.flatnonzero(stop > first)
    if not len(asking):
        return output
    positions = np.arange(rows.start, rows.stop) + inputs.offset
    view = View(positions, first, stop, seen.shape[1], inputs.causal).take(asking)
    at = torch.from_numpy(asking).to(logits.device)
    chosen = logits[:, at]
    output[:, at] = pattern.select(view, budget, rng, chosen).attend(chosen, values)
    return output
