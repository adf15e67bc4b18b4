"""Numbers and rows for charts and pages; None for what is missing or not finite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def rounded(value: Any) -> Any:
    """Return a value as JSON has it, numbers to six digits."""
    if hasattr(value, "item"):  # of numpy
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return None if type(value).__name__ == "NAType" else value  # of pandas


def records(frame: pd.DataFrame, interval: str = "") -> list[dict[str, Any]]:
    """Return the rows of a table; the ends of the interval of a column are ``low`` and ``high``."""
    names = {f"{interval}_{end}": end for end in ("low", "high")} if interval else {}
    return [
        {names.get(str(k), str(k)): rounded(v) for k, v in row.items()}
        for row in frame.to_dict("records")
    ]


def finite(value: Any, log: bool = False) -> float | None:
    """Return a number that can be drawn, on a logarithmic axis if need be; None if it cannot."""
    if value is None or not math.isfinite(value) or (log and value <= 0):
        return None
    return float(value)
