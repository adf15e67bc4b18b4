"""Linformer: keys and values are mixed by a random matrix into r new ones.

Not a selection: every query sees every visible key, through r mixtures ``k~ = P k``, ``v~ = P v``.
The logits of the mixtures are the mixtures of the logits, so that P acts on them, and there are no
log-weights. "Seeing all keys" (r = N) does not mean dense attention here: softmax is applied to
mixtures, and only a P with a single 1 in every row and column (a permutation) commutes with it.
An orthonormal P of full size does not, a Gaussian one even less. Averages over groups of keys
(``Pooled``) are dense attention at r = N, where every group is one key.

In a decoder a query's mixtures contain only what it may see (the published model is an encoder).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from esscher.core.errors import InputError
from esscher.engine.patterns.pattern import Pattern, Selection, Sight, View

if TYPE_CHECKING:
    from torch import Tensor

#: Kinds of random matrices.
MATRICES = ("gaussian", "orthonormal")


@dataclass(frozen=True, eq=False)
class Mixing:
    """All keys seen through r mixtures, the rows of ``matrix`` [r, keys]."""

    matrix: Tensor

    def weights(self, logits: Tensor) -> Tensor:
        """``softmax(logits P') P``: the total weight of each key; need not be positive."""
        import torch

        matrix = self.matrix.to(logits)
        seen = torch.isfinite(logits)
        mixed = torch.softmax(logits.masked_fill(~seen, 0.0) @ matrix.T, dim=-1)
        return (mixed @ matrix).masked_fill(~seen, 0.0)

    def attend(self, logits: Tensor, values: Tensor) -> Tensor:
        """Outputs over the mixed values."""
        return self.weights(logits) @ values


@dataclass(frozen=True, eq=False)
class Groups:
    """All keys seen through averages over r groups; ``group`` [keys] says to which one belongs."""

    group: Tensor
    count: int

    def weights(self, logits: Tensor) -> Tensor:
        """The weight of a group, divided among those of its keys that are visible."""
        import torch

        group = self.group.to(logits.device)
        seen = torch.isfinite(logits)
        shape = (*logits.shape[:-1], self.count)
        members = logits.new_zeros(shape).index_add_(-1, group, seen.to(logits.dtype))
        sums = logits.new_zeros(shape).index_add_(-1, group, logits.masked_fill(~seen, 0.0))
        # a group without a visible key does not exist for this query
        means = torch.where(members > 0, sums / members.clamp(min=1), -torch.inf)
        shares = torch.softmax(means, dim=-1) / members.clamp(min=1)
        return torch.gather(shares, -1, group.expand(logits.shape)).masked_fill(~seen, 0.0)

    def attend(self, logits: Tensor, values: Tensor) -> Tensor:
        """Outputs over the averaged values."""
        return self.weights(logits) @ values


@dataclass(frozen=True)
class Linformer(Pattern):
    """Keys and values mixed by a random matrix P.

    Parameters
    ----------
    matrix
        ``"gaussian"``: independent entries N(0, 1/r), as in the published theorem (where keys and
        values carry further constant factors). ``"orthonormal"``: r orthonormal rows.
    """

    matrix: str = "gaussian"

    name = "linformer"
    title = "random projection of keys and values"
    is_random = True
    is_exact = False
    smallest = 1

    def __post_init__(self) -> None:
        if self.matrix not in MATRICES:
            raise InputError(f"matrix is {self.matrix!r}; choose from {', '.join(MATRICES)}")

    def select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None = None
    ) -> Sight:
        """The mixtures; at most as many as there are keys."""
        import torch

        r = min(self.check(budget), view.keys)
        entries = rng.standard_normal((r, view.keys), dtype=np.float32)
        if self.matrix == "orthonormal":
            rows = np.linalg.qr(entries.astype(np.float64).T)[0].T
            return Mixing(torch.from_numpy(np.ascontiguousarray(rows)))
        entries *= np.float32(r**-0.5)
        return Mixing(torch.from_numpy(entries))

    def _select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
    ) -> Selection:
        raise AssertionError("Linformer selects no keys")  # select is its own


class Pooled(Linformer):
    """Keys and values averaged over r random groups: the projection that keeps means.

    Its bias is that of Jensen's inequality: a group enters with the exponential of its mean logit,
    not with the mean of the exponentials.
    """

    name = "pooled"
    title = "Linformer with averages over random groups"
    is_exact = True

    def select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None = None
    ) -> Sight:
        """The groups, of sizes that differ by at most one."""
        import torch

        r = min(self.check(budget), view.keys)
        group = np.empty(view.keys, dtype=np.int64)
        group[rng.permutation(view.keys)] = np.arange(view.keys) % r
        return Groups(torch.from_numpy(group), r)
