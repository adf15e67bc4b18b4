"""How long a context each head uses: where its output stops changing with more tokens.

A head is given the first few tokens of a passage (sinks) and the L most recent ones. Its output
changes when L is doubled; the relative change ``c(L) = |y_2L - y_L| / |y|`` (root mean square over
queries) is measured up to the longest context, without assuming that the longest one is the truth.
What is still to come beyond L is at most

    rest(L) = c(L) + c(2L) + ... + c(L_max/2) + tail,     tail = c(L_max/2) r/(1 - r),  r = 2^-b,

with b the exponent of c(L) ~ L^-b over the last doublings. A head is saturated at L if rest(L) is
within the tolerance. Where that takes more than the longest context, the length is extrapolated by
the same law, and marked; where changes do not fall, there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esscher.models import LayerInputs
from esscher.streams import random_stream
from esscher.validation import Array

#: First tokens that are always seen.
SINKS = 4
#: Doublings from which the exponent of the changes is fitted.
FITTED = 4
#: Resampled sets of passages behind an interval, and its level.
RESAMPLES, LEVEL = 400, 0.95
#: An extrapolation beyond this multiple of the longest context says nothing.
FARTHEST = 1e4


def doublings(longest: int, shortest: int = 32) -> NDArray[np.int64]:
    """Context lengths that end at the longest and halve down to the shortest."""
    count = int(np.floor(np.log2(longest / shortest))) + 1
    return np.array([longest >> k for k in range(count)][::-1], dtype=np.int64)


def layer_changes(
    inputs: LayerInputs, queries: int, lengths: NDArray[np.int64]
) -> tuple[Array, Array]:
    """Squared changes [heads, doublings] and squared norms [heads] of the last queries of a layer.

    Parameters
    ----------
    inputs
        A whole passage.
    queries
        The last this many are asked.
    lengths
        Context lengths, each twice the one before it.
    """
    count = inputs.q.shape[2]
    rows = slice(count - queries, count)
    at = torch.arange(count - queries, count)[:, None]
    keys = torch.arange(inputs.k.shape[2])[None, :]
    changes, norms = [], []
    for head in range(inputs.q.shape[1]):
        logits = inputs.logits(0, head, rows, torch.float32)
        value = inputs.v[0, head // inputs.group].to(torch.float32)
        outputs = []
        for length in lengths.tolist():
            seen = (keys < SINKS) | (keys > at - length)
            weights = torch.softmax(logits.masked_fill(~seen, -torch.inf), dim=-1)
            outputs.append(weights @ value)
        stacked = torch.stack(outputs).double()
        change = (stacked[1:] - stacked[:-1]).square().sum(-1).mean(-1)
        changes.append(change.numpy())
        norms.append(float(stacked[-1].square().sum(-1).mean()))
    return np.stack(changes), np.array(norms)


@dataclass(frozen=True, eq=False)
class Saturation:
    """Where a head stops gaining.

    Attributes
    ----------
    length, interval
        Context length at which what is still to come is within the tolerance; infinite if changes
        do not fall.
    extrapolated
        Whether it lies beyond the longest context.
    exponent
        b of c(L) ~ L^-b over the last doublings.
    rest
        What is still to come at every length, as far as it is measured and by the fitted tail.
    """

    length: float
    interval: tuple[float, float]
    extrapolated: bool
    exponent: float
    rest: Array

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers; None for infinity."""

        def plain(value: float) -> float | None:
            return float(value) if np.isfinite(value) else None

        return {
            "length": plain(self.length),
            "interval": [plain(end) for end in self.interval],
            "extrapolated": self.extrapolated,
            "exponent": self.exponent,
            "rest": [plain(value) for value in self.rest],
        }


def saturation(
    changes: Array, norms: Array, lengths: NDArray[np.int64], tolerance: float, seed: int
) -> Saturation:
    """Where one head stops gaining, with an interval from resampled passages.

    Parameters
    ----------
    changes
        Squared changes, [passages, doublings].
    norms
        Squared norms, [passages].
    lengths
        Context lengths, one more than doublings.
    tolerance
        Relative change that may still be to come.
    seed
        Seed of the resampling.
    """
    relative = np.sqrt(changes.mean(axis=0) / norms.mean())
    length, exponent, rest = _solve(relative, lengths, tolerance)
    count = len(changes)
    ends = (length, length)
    if count > 1:
        rng = random_stream(seed, "saturation")
        drawn = []
        for _ in range(RESAMPLES):
            rows = rng.integers(count, size=count)
            again = np.sqrt(changes[rows].mean(axis=0) / norms[rows].mean())
            drawn.append(_solve(again, lengths, tolerance)[0])
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
        ends = (min(float(low), length), max(float(high), length))
    return Saturation(length, ends, bool(length > lengths[-1]), exponent, rest)


def _solve(
    relative: Array, lengths: NDArray[np.int64], tolerance: float
) -> tuple[float, float, Array]:
    """Length, exponent, and what is still to come at every length."""
    tiny = np.maximum(relative, 1e-12)
    last = min(FITTED, len(tiny))
    x = np.log(lengths[:-1][-last:].astype(np.float64))
    x = x - x.mean()
    exponent = float(-(x @ np.log(tiny[-last:])) / (x @ x)) if last > 1 else 0.0
    ratio = 2.0**-exponent
    tail = tiny[-1] * ratio / (1 - ratio) if exponent > 0 else np.inf
    rest = np.append(np.cumsum(tiny[::-1])[::-1], 0.0) + tail
    if rest[0] <= tolerance:
        return float(lengths[0]), exponent, rest
    within = np.flatnonzero(rest <= tolerance)
    if within.size:
        i = int(within[0])
        share = np.log(rest[i - 1] / tolerance) / np.log(rest[i - 1] / rest[i])
        log = np.log(lengths[i - 1]) + share * np.log(lengths[i] / lengths[i - 1])
        return float(np.exp(log)), exponent, rest
    if exponent <= 0 or not np.isfinite(tail):
        return np.inf, exponent, rest
    # beyond the longest context rest(L) = tail (L/L_max)^-b
    log_factor = np.log(tail / tolerance) / exponent
    if log_factor > np.log(FARTHEST):
        return np.inf, exponent, rest
    return float(lengths[-1] * np.exp(log_factor)), exponent, rest
