"""Results of simulations from the extremes, whatever error they simulate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from esscher.core.validation import Array

if TYPE_CHECKING:
    import pandas as pd

#: An estimate to which one replicate adds more than this share is not to be trusted.
DOMINATED = 0.2


@dataclass(frozen=True, eq=False, repr=False)
class SimulatedErrors:
    """Simulated errors at each size.

    Attributes
    ----------
    sizes, rms, mean
        Numbers of tokens, root mean square and expected norm of the error over queries and tokens.
    rms_error, mean_error
        Their standard errors.
    extremes
        Tokens drawn at each size, on average (all n where that is as cheap).
    non_normality
        What is left of the bulk's non-normality, see ``order_statistics.bulk_non_normality``.
    largest_share
        Share of the most influential replicate in the mean square. Above ``DOMINATED`` the standard
        error is not to be trusted.
    queries, replicates, tolerance, seed
        As they were asked for.
    """

    #: Names of the fields with one number per size, in the order in which they are printed.
    columns: ClassVar[tuple[str, ...]]

    sizes: Array
    rms: Array
    rms_error: Array
    mean: Array
    mean_error: Array
    extremes: Array
    non_normality: Array
    largest_share: Array
    queries: str
    replicates: int
    tolerance: float
    seed: int

    @property
    def trusted(self) -> NDArray[np.bool_]:
        """Whether no single replicate dominates the mean square, per size."""
        return np.asarray(self.largest_share <= DOMINATED)

    def table(self) -> pd.DataFrame:
        """Return the simulation as a data frame, one row per size."""
        import pandas as pd

        return pd.DataFrame({"n": self.sizes} | {x: getattr(self, x) for x in self.columns})

    def to_dict(self) -> dict[str, Any]:
        """Return the simulation as plain lists, numbers and strings."""
        return {
            "method": "extremes drawn, bulk summed",
            "queries": self.queries,
            "replicates": self.replicates,
            "tolerance": self.tolerance,
            "seed": self.seed,
            "n": self.sizes.tolist(),
            **{name: getattr(self, name).tolist() for name in self.columns},
            "trusted": self.trusted.tolist(),
        }
