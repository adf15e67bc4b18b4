"""The kernel: one block of queries streamed past all keys, outputs folded in at every size.

Logits of a block of keys are computed transposed (keys x queries), in powers of two. A query's
weights are ``2^(logit - shift)``. The shift is

* 0 when the logits are expected to stay within what the exponent of a float can hold, which is
  checked afterwards on the sums (nothing has overflowed or vanished), else
* a running one: the largest logit of the first keys, raised when a later one passes it by
  ``Range.headroom`` bits. This is right for logits of any size, and 10 to 30% slower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from esscher.attention._blocks import BlockPlan, Step
from esscher.attention._head import PassOptions, ReadyHead
from esscher.errors import InputError


class Range(NamedTuple):
    """Bits of exponent that a type can be trusted with, so that no sum overflows."""

    headroom: float  # a weight may exceed 1 by this much, its square still being summable
    floor: float  # smaller weights are raised to it: cheaper than subnormal numbers, and negligible
    plain: float  # logits expected within this need no shift
    plain_squares: float  # the same when squared weights are summed
    smallest: float  # a sum of unshifted weights below this many bits may have lost digits
    largest: float  # and above this many bits


RANGES = {
    torch.float32: Range(40.0, -60.0, 90.0, 42.0, -30.0, 115.0),
    torch.float64: Range(300.0, -400.0, 700.0, 400.0, -300.0, 900.0),
}
#: Standard deviations of a query's logits that are taken for their range.
SPREAD = 6.5


@dataclass(frozen=True, eq=False)
class Normaliser:
    """Minus the shift (queries) and sum of weights (scales, queries) when a size was passed."""

    lowered: Tensor
    total: Tensor
    shifted: bool


@dataclass(frozen=True, eq=False)
class BlockSums:
    """Sums over the queries of one block, axes [scale, size, ...], relative to the centre."""

    first: Tensor
    second: Tensor
    square: Tensor
    participation: Tensor | None
    largest: Tensor | None
    normalisers: dict[int, Normaliser]


def block_sums(head: ReadyHead, plan: BlockPlan, options: PassOptions) -> BlockSums:
    """Stream the keys past one block of queries."""
    tilts = block_tilts(head, plan.rows, options)
    if _stays_within(_plain_range(options), head, tilts):
        sums = _Stream(head, plan, options, tilts, shifted=False).run()
        if sums is not None:
            return sums
    shifted = _Stream(head, plan, options, tilts, shifted=True).run()
    assert shifted is not None  # only a stream without a shift gives up
    return shifted


def block_tilts(head: ReadyHead, rows: slice, options: PassOptions) -> Tensor:
    """Tilts of a block in bits, transposed, above a row of zeros that can hold minus the shift."""
    q = head.q[rows]
    tilts = torch.zeros(q.shape[1] + 1, len(q), dtype=options.dtype, device=q.device)
    wide = torch.promote_types(q.dtype, options.dtype)
    torch.mul(q.T.to(wide), options.bits, out=tilts[:-1])
    return tilts


def hidden_keys(head: ReadyHead, plan: BlockPlan, step: Step) -> Tensor:
    """Which keys come after which queries, (keys, queries)."""
    device = head.keys.device
    keys = torch.from_numpy(head.key_positions[step.start : step.stop]).to(device)
    queries = torch.from_numpy(head.query_positions[plan.rows]).to(device)
    return keys[:, None] > queries[None, :]


def step_size(relative: tuple[float, ...]) -> float | None:
    """The common difference of equally spaced scales, whose exponentials are running products."""
    if len(relative) < 3:
        return None
    gaps = np.diff(relative)
    return float(gaps[0]) if np.allclose(gaps, gaps[0], rtol=1e-9, atol=0.0) else None


def _plain_range(options: PassOptions) -> float:
    limits = RANGES[options.dtype]
    return limits.plain_squares if options.participation else limits.plain


def _stays_within(bits: float, head: ReadyHead, tilts: Tensor) -> bool:
    """Whether logits are so small, surely (Cauchy-Schwarz) or by the spread of the keys."""
    t = tilts[:-1]
    longest = math.sqrt(float(t.square().sum(0).max()))  # vector_norm along columns is 10x slower
    bound = longest * head.largest_key
    if bound <= bits:
        return True
    if not bound < torch.finfo(tilts.dtype).max / 1e4:
        raise InputError(
            f"logits may be as large as {bound:.3g} powers of two, too large for {tilts.dtype}; "
            "divide q by a constant or pass dtype=torch.float64"
        )
    variance = float(((head.key_covariance @ t) * t).sum(0).max())
    return SPREAD * math.sqrt(max(variance, 0.0)) <= bits


class _Stream:
    """The state of one block of queries on its way along the keys."""

    def __init__(
        self,
        head: ReadyHead,
        plan: BlockPlan,
        options: PassOptions,
        tilts: Tensor,
        *,
        shifted: bool,
    ) -> None:
        self.head, self.plan, self.options = head, plan, options
        self.tilts, self.shifted = tilts, shifted
        self.limits = RANGES[options.dtype]
        self.gap = None if shifted else step_size(options.relative)
        scales, sizes = len(options.relative), len(options.sizes)
        rows, queries, d = len(head.values), tilts.shape[1], len(head.centre)
        widest = max(step.stop - step.start for step in plan.steps)
        # one buffer for the logits; more only when several scales share them
        self.buffers = [
            tilts.new_empty(widest, queries)
            for _ in range(1 if scales == 1 else 2 if self.gap is None else 3)
        ]
        self.part = tilts.new_zeros(scales, rows, queries)
        self.total = tilts.new_zeros(scales, d + 1, queries, dtype=torch.float64)
        self.squares = tilts.new_zeros(scales, queries, dtype=torch.float64)
        self.peak = tilts.new_full((queries,), -torch.inf)
        self.relative = tilts.new_tensor(options.relative, dtype=torch.float64)
        self.fresh, self.started = True, False
        wide = torch.float64
        per_query = (scales, sizes, queries)
        self.sums = BlockSums(
            first=tilts.new_zeros(scales, sizes, d, dtype=wide),
            second=tilts.new_zeros(scales, sizes, d, d, dtype=wide),
            square=tilts.new_zeros(scales, sizes, dtype=wide),
            participation=(
                tilts.new_full(per_query, torch.nan, dtype=wide) if options.participation else None
            ),
            largest=tilts.new_full(per_query, torch.nan, dtype=wide) if options.largest else None,
            normalisers={},
        )

    def run(self) -> BlockSums | None:
        """All keys; ``None`` if a shift would have been needed."""
        for step in self.plan.steps:
            self._advance(step)
            for size in step.sizes:
                if not self._fold(size):
                    return None
        return self.sums

    def _advance(self, step: Step) -> None:
        logits = self.buffers[0][: step.stop - step.start]
        width = None if self.shifted else -1
        torch.mm(self.head.keys[step.start : step.stop, :width], self.tilts[:width], out=logits)
        hidden = hidden_keys(self.head, self.plan, step) if step.hidden else None
        if self.shifted or self.options.largest:
            seen = logits if hidden is None else logits.masked_fill(hidden, -torch.inf)
            top = seen.amax(0)
            if self.shifted:
                top = self._raise_shift(logits, top)
            torch.maximum(self.peak, top, out=self.peak)
        values = self.head.values[:, step.start : step.stop]
        if self.gap is None:
            self._weigh_each(logits, values, hidden)
        else:
            self._weigh_by_products(logits, values, hidden)
        self.fresh = False
        if step.flush:
            self.total += self.part[:, : self.total.shape[1]]
            self.fresh = True

    def _raise_shift(self, logits: Tensor, top: Tensor) -> Tensor:
        """Keep the logits below the headroom; the first keys set the shift."""
        if not self.started:
            rise = top  # every query may attend the first of these keys
            self.started = True
        elif bool((top > self.limits.headroom).any()):
            rise = top.clamp_min(0.0)
        else:
            return top
        old = self.tilts[-1].to(torch.float64)
        new = (old - rise.to(torch.float64)).to(self.tilts.dtype)
        rise = old - new.to(torch.float64)  # what the rounded shift really rises by
        self.tilts[-1] = new
        logits -= rise.to(logits.dtype)
        self.peak -= rise.to(logits.dtype)
        # the first keys may lower the shift below 0, but then there is nothing to rescale yet
        smaller = torch.exp2(-self.relative[:, None] * rise.clamp_min(0.0))
        self.part *= smaller[:, None].to(self.part.dtype)
        self.total *= smaller[:, None]
        self.squares *= smaller.square()
        return top - rise.to(top.dtype)

    def _weigh_each(self, logits: Tensor, values: Tensor, hidden: Tensor | None) -> None:
        for s, relative in enumerate(self.options.relative):
            # the largest scale is the last: it may overwrite the logits
            weights = logits
            if s + 1 < len(self.options.relative) or relative != 1.0:
                weights = self.buffers[-1][: len(logits)]
                torch.mul(logits, relative, out=weights)
            if self.shifted:
                weights.clamp_min_(self.limits.floor)
            weights.exp2_()
            if hidden is not None:
                weights.masked_fill_(hidden, 0.0)
            self._accumulate(s, weights, values)
            if self.options.participation:
                self.squares[s] += weights.square_().sum(0)

    def _weigh_by_products(self, logits: Tensor, values: Tensor, hidden: Tensor | None) -> None:
        weights, growth = (buffer[: len(logits)] for buffer in self.buffers[1:])
        torch.mul(logits, self.gap or 0.0, out=growth).exp2_()
        torch.mul(logits, self.options.relative[0], out=weights).exp2_()
        if hidden is not None:
            weights.masked_fill_(hidden, 0.0)
            growth.masked_fill_(hidden, 0.0)
        for s in range(len(self.options.relative)):
            if s:
                weights *= growth
            self._accumulate(s, weights, values)
            if self.options.participation:
                self.squares[s] += torch.mul(weights, weights, out=logits).sum(0)

    def _accumulate(self, s: int, weights: Tensor, values: Tensor) -> None:
        if self.fresh:
            torch.mm(values, weights, out=self.part[s])
        else:
            self.part[s].addmm_(values, weights)

    def _fold(self, size: int) -> bool:
        """Add the outputs at one size to its sums; whether they can be trusted."""
        count = self.plan.counts[size]
        total = self.total[:, -1, :count]
        outputs = self.total[:, :-1, :count] / total[:, None]
        squares = self.squares[:, :count]
        first = outputs.sum(-1)
        if not self.shifted:
            # an overflow anywhere shows here as a number that is not finite
            sound = torch.isfinite(first.sum() + squares.sum())
            sound &= total.min() > 2.0**self.limits.smallest
            sound &= total.sum() < 2.0**self.limits.largest
            if not bool(sound):
                return False
        sums = self.sums
        sums.first[:, size] = first
        sums.second[:, size] = outputs @ outputs.mT
        if self.head.limit is not None:
            limit = self.head.limit[:, self.plan.rows][:, :count].to(torch.float64)
            error = outputs - (limit - self.head.centre).mT
            sums.square[:, size] = error.square().sum((1, 2))
        if sums.participation is not None:
            sums.participation[:, size, :count] = total.square() / squares
        if sums.largest is not None:
            peak = torch.exp2(self.relative[:, None] * self.peak[:count].to(torch.float64))
            sums.largest[:, size, :count] = peak / total
        if size in self.options.received:
            sums.normalisers[size] = Normaliser(
                self.tilts[-1].clone(), self.total[:, -1].clone(), self.shifted
            )
        return True
