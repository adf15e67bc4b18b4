"""Second moments of a captured head: horizons, spectrum, and how strongly its queries tilt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esscher.core.validation import Array
from esscher.math.coupling import symmetric_root
from esscher.studies.probe.layer import HeadNumbers

#: Singular values of M that are kept.
SHOWN = 16


@dataclass(frozen=True, eq=False)
class CoupledMoments:
    """``M = S_k^{1/2} S_q^{1/2}`` of a head, the mean tilt, and the strength of each tilt.

    Queries and keys need not be the same tokens: only their own covariances enter.
    """

    horizon: float
    frobenius: float
    tau: float
    spectrum: Array
    strengths: Array

    @classmethod
    def of(cls, numbers: HeadNumbers) -> CoupledMoments:
        """Of the rows that were kept of a head."""
        key_root = symmetric_root(_covariance(numbers.keys))
        tilt_root = symmetric_root(_covariance(numbers.tilts))
        spectrum = np.linalg.svd(key_root @ tilt_root, compute_uv=False)
        strengths = np.linalg.norm(numbers.tilts @ key_root, axis=1)
        return cls(
            horizon=float(spectrum[0]),
            frobenius=float(np.linalg.norm(spectrum)),
            tau=float(np.linalg.norm(key_root @ numbers.tilts.mean(axis=0))),
            spectrum=np.asarray(spectrum[:SHOWN], dtype=np.float64),
            strengths=strengths,
        )

    @property
    def log_burn_in(self) -> float:
        """``F^2 + |tau|^2``: before e to this power a typical query has less than one token."""
        return self.frobenius**2 + self.tau**2

    def frozen_share(self, n: int) -> float:
        """Share of queries past freezing at n tokens: ``s > sqrt(2 ln n)``."""
        return float(np.mean(self.strengths > np.sqrt(2 * np.log(n))))


def _covariance(rows: Array) -> Array:
    centred = rows - rows.mean(axis=0)
    return np.asarray(centred.T @ centred / len(rows))
