"""Fitted rates as variables of a dataset: what tables and charts of several studies show of them.

A result that has the errors of every replicate need not hold more: :func:`esscher.fit_rate` of them
says everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esscher.core.variables import Data, bounds, var

if TYPE_CHECKING:
    from esscher.math.statistics import Rate


class Fit(Data):
    """Power laws fitted to errors, error ~ C n^-beta."""

    exponent = var(
        "... bound",
        terminal="exponent",
        interval="digits",
        help="beta of error ~ C n^-beta, errors corrected for drawing without replacement if they "
        "are drawn so",
    )
    constant = var("... bound", page=False, help="the C of the fit")
    law = var("...", kind="U", page=False, help="law that describes the curve")
    trusted = var(
        "...",
        kind="b",
        terminal="trusted",
        help='whether the exponent can be taken at its word (result["reasons"] says why not)',
    )
    reasons = var("...", kind="U", page=False, help="why the exponent is not trusted")

    def put(self, rates: Any) -> None:
        """Set all variables: lists of rates, nested like the axes; None where there is no rate."""
        import numpy as np

        array = np.array(rates, dtype=object)
        flat: list[Rate | None] = array.ravel().tolist()
        columns: dict[str, list[Any]] = {
            "exponent": [r and bounds(r.exponent, r.interval) for r in flat],
            "constant": [r and bounds(r.constant, r.constant_interval) for r in flat],
            "law": [r.law if r else "" for r in flat],
            "trusted": [bool(r and r.trusted) for r in flat],
            "reasons": ["; ".join(r.reasons) if r else "" for r in flat],
        }
        for name, values in columns.items():
            known = np.array([bounds(None, None) if value is None else value for value in values])
            setattr(self, name, known.reshape(*array.shape, *known.shape[1:]))
