"""In which regime every head of a probed model is, at given numbers of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy

from esscher.core.errors import InputError
from esscher.math.theory.regimes import (
    CONTEXT_WINDOWS,
    REGIMES,
    positions,
    regime_indices,
    typical_strength,
)

if TYPE_CHECKING:
    from esscher.studies.probe.result import Probe

#: Relative change of H and S that the range of the counts allows for.
SENSITIVITY = 0.05


def head_strengths(probe: Probe) -> pd.DataFrame:
    """Horizon H, typical strength S and measured effective keys of every head, one row per head.

    ``n`` is the number of tokens on which ``ess``, the median over queries of ``1/sum p^2``, was
    measured.
    """
    if not probe.heads:
        raise InputError("this probe has no measurements yet; run its command again")
    return pd.DataFrame(
        [
            {
                "layer": head.layer,
                "head": head.head,
                "H": head.horizon,
                "S": typical_strength(head.frobenius, head.tau),
                "ess": head.ess.median,
                "n": head.khat.n,
            }
            for head in probe.heads
        ]
    )


def regime_table(probe: Probe, windows: Mapping[str, float] = CONTEXT_WINDOWS) -> pd.DataFrame:
    """Regime of every head at every window, one row per head, one column per window."""
    table = head_strengths(probe)
    for name, n in windows.items():
        index = regime_indices(positions(table["H"], table["S"], n))
        table[name] = [REGIMES[i] for i in index]
    return table


def regime_counts(
    probe: Probe, windows: Mapping[str, float] = CONTEXT_WINDOWS
) -> list[dict[str, Any]]:
    """How many heads are in each regime, one row per window.

    ``ranges`` has the smallest and largest count if all H and S were ``SENSITIVITY`` smaller or
    larger: heads close to a boundary are not decided by second moments of a few thousand tokens.
    """
    table = head_strengths(probe)
    rows = []
    for name, n in windows.items():
        counts = []
        for scale in (1.0, 1 - SENSITIVITY, 1 + SENSITIVITY):
            index = regime_indices(positions(scale * table["H"], scale * table["S"], n))
            counts.append(np.bincount(index, minlength=len(REGIMES)))
        low, high = np.min(counts, axis=0), np.max(counts, axis=0)
        row: dict[str, Any] = {"window": name, "n": float(n)}
        row |= {kind: int(count) for kind, count in zip(REGIMES, counts[0], strict=True)}
        row["ranges"] = {
            kind: [int(a), int(b)] for kind, a, b in zip(REGIMES, low, high, strict=True)
        }
        rows.append(row)
    return rows


def count_words(row: Mapping[str, Any], kind: str) -> str:
    """A count with its range, such as ``41 (38 to 43)``."""
    low, high = row["ranges"][kind]
    return f"{row[kind]} ({low} to {high})" if low < high else str(row[kind])


def order_check(probe: Probe) -> dict[str, float]:
    """Whether the positions order the heads as their measured attention does.

    Spearman's rank correlation, over heads, of the typical query's position ``S/sqrt(2 ln n)`` with
    the effective number of keys ``1/sum p^2`` (median over queries) at the n where it was measured;
    -1 would be perfect. The 95% interval takes heads as independent.
    """
    table = head_strengths(probe)
    if len(table) < 4:
        raise InputError(f"a rank correlation needs at least 4 heads; there are {len(table)}")
    found = scipy.stats.spearmanr(table["S"] / np.sqrt(2 * np.log(table["n"])), table["ess"])
    # Fisher's transform, with the variance of Spearman's coefficient (Bonett and Wright)
    value = float(found.statistic)
    width = 1.96 * float(np.sqrt((1 + value**2 / 2) / (len(table) - 3)))
    middle = float(np.arctanh(np.clip(value, -1 + 1e-12, 1 - 1e-12)))
    low, high = (float(end) for end in np.tanh([middle - width, middle + width]))
    return {
        "correlation": value,
        "low": min(low, value),
        "high": max(high, value),
        "heads": len(table),
    }
