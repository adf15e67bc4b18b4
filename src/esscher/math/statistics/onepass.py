"""A diagnostic of one pass: the tail of received attention, sinks set apart.

The column sums ``r_j`` of one attention matrix are the attention each token receives. Their upper
tail has the shape ``k = H^2/(1 + H^2)`` for Gaussian tokens, and asymptotically the error of the
mean output falls with the exponent ``min(1/2, 1 - k)``. On the sizes of a sweep other things matter
as well: k-hat says whether a few tokens receive too much, it does not predict a curve.

The tail are the ``3 sqrt(n)`` largest (a fifth of them below n = 225), the rule of Pareto smoothed
importance sampling. Measured on 120 Gaussian heads in dimension 1 at n = 4096, the bias of k-hat is
between -0.04 and 0.05 for H = 0.3 to 3, and its standard deviation 0.07 to 0.10. Before the burn-in
(dimension 8, H >= 0.7 at that n) the tail is not there yet, and k-hat is too small by up to 0.5:
pass ``burn_in`` if known.

Tokens are taken in the order of the text. The largest stand in clusters if neighbours depend on
each other; intervals are those of as many independent tokens as the clusters are worth (see
``clusters.py``), with Student's quantile for their number. The standard error of k-hat grows with
k itself, ``(1 + k)/sqrt(m)``, that of ``ln(1 + k)`` does not: intervals are symmetric for the
latter. Symmetric ones for k are too short above and too long below, and where k-hat happens to be
too small its error looks small as well.
"""

from __future__ import annotations

import html
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from esscher.core.codec import as_tree
from esscher.core.errors import InputError
from esscher.core.shown import about
from esscher.core.validation import Array, as_dim, as_nonnegative, as_numbers, as_positive
from esscher.math.statistics.clusters import Clusters, tail_clusters
from esscher.math.statistics.means import LEVEL
from esscher.math.statistics.records import ReceivedTail, finite
from esscher.math.statistics.sinks import find_sinks
from esscher.math.statistics.tail import FEWEST_VALUES, PRIOR, TailShape, tail_shape

#: How far k-hat's interval may reach to either side; beyond, it says little.
HALF_WIDTH = 0.25
#: No interval reaches further than e to this power.
FURTHEST = 100.0
#: Multiple of the burn-in from which the tail is that of the formula. At 1.4 times (d = 8, H = 1,
#: n = 4096) k-hat is 0.15 too small and 67% of the intervals cover; at 55 times (d = 4, H = 1,
#: n = 3000) 0.05, and 90%.
BEYOND = 10.0
#: A tail worth less than this share of its tokens is made of tokens that depend on each other;
#: independent ones that stand side by side by chance make it worth about 0.9.
DEPENDENT = 0.6


@dataclass(frozen=True, eq=False, repr=False)
class TailIndex:
    """Tail of received attention, and the asymptotic exponent of the mean error that goes with it.

    Attributes
    ----------
    exponent, exponent_interval
        ``min(1/2, 1 - k)``, not below 0, and its interval.
    k, interval, standard_error
        k-hat of the tokens that are no sinks.
    k_with_sinks
        k-hat of all tokens.
    sinks
        Positions of the sinks, by decreasing received attention.
    sink_share
        Share of all attention that they receive.
    n
        Number of tokens that are no sinks.
    tail_count
        Number of them in the tail.
    clusters, effective_count
        Number of clusters in which they stand along the text, and of independent tokens that the
        tail is worth.
    minimum_size
        Number of tokens, as dependent as these, from which k-hat is known to +- 0.25 (at the level
        of the intervals).
    level
        Level of the intervals.
    trusted, reasons
        Whether the exponent can be taken at its word, and if not, why.
    """

    exponent: float
    exponent_interval: tuple[float, float]
    k: float
    interval: tuple[float, float]
    standard_error: float
    k_with_sinks: float
    sinks: tuple[int, ...]
    sink_share: float
    n: int
    tail_count: int
    minimum_size: int
    level: float
    trusted: bool
    reasons: tuple[str, ...]
    clusters: int
    effective_count: float

    @property
    def dependent(self) -> bool:
        """Whether neighbouring tokens depend on each other so much that it must be said."""
        return self.effective_count < DEPENDENT * self.tail_count

    def record(self) -> ReceivedTail:
        """Return what is stored of it."""
        fields = asdict(self)
        return ReceivedTail(**fields | {"k_with_sinks": finite(self.k_with_sinks)})

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, lists and strings (JSON-safe)."""
        return dict(as_tree(self.record()))

    def __repr__(self) -> str:
        return "\n".join([self._headline(), *(f"  {row}" for row in self._rows())])

    def _repr_html_(self) -> str:
        rows = "".join(f"<br>{html.escape(row)}" for row in self._rows())
        return f"<p><b>{html.escape(self._headline())}</b>{rows}</p>"

    def _headline(self) -> str:
        low, high = self.exponent_interval
        state = "trusted" if self.trusted else "not to be trusted"
        return (
            f"mean error ~ n^-{self.exponent:.3f} from one pass, {100 * self.level:g}% interval "
            f"{low:.3f} to {high:.3f} ({state})"
        )

    def _rows(self) -> list[str]:
        rows = [
            f"k-hat {self.k:.3f} +- {self.standard_error:.3f} from the {self.tail_count} largest "
            f"of {self.n:,} tokens"
        ]
        if self.sinks:
            listed = ", ".join(str(j) for j in self.sinks[:5])
            more = f" and {len(self.sinks) - 5} more" if len(self.sinks) > 5 else ""
            rows.append(
                f"{len(self.sinks)} sinks set apart (tokens {listed}{more}) with "
                f"{100 * self.sink_share:.3g}% of the attention; k-hat {self.k_with_sinks:.3f} "
                "with them"
            )
        if self.dependent:
            rows.append(
                f"Warning: the largest tokens stand in {self.clusters} clusters along the text, "
                f"since neighbours depend on each other: they are worth {self.effective_count:.0f} "
                "independent ones, and the interval is that of so many"
            )
        return rows + [f"Not trusted: {reason}." for reason in self.reasons]


def received_exponent(
    received: ArrayLike,
    *,
    sinks: str | ArrayLike | None = "auto",
    level: float = LEVEL,
    queries: int | None = None,
    burn_in: float | None = None,
) -> TailIndex:
    """Exponent of the error of the mean output, from the attention that tokens receive in one pass.

    Parameters
    ----------
    received
        Column sums of one attention matrix, ``attention_statistics(...).received`` of one head,
        scale and size. Entries that are ``nan`` (keys beyond the size) are left out.
    sinks
        ``"auto"``: found by the gap above the tail of the others (see ``sinks.py``). Or the
        positions of the sinks, or a mask that is True for them, such as delimiter tokens. ``None``:
        no token is a sink.
    level
        Level of the intervals, which are ``ln(1 + k) +- z/sqrt(m + 10)`` for m tokens in the tail.
    queries
        Number of queries that gave the attention, if known.
    burn_in
        Burn-in of the head: the tail is not there before ten times as many tokens. Nothing in
        ``received`` says so, and where the burn-in is not known the answer is not to be trusted.

    Raises
    ------
    InputError
        For arguments that cannot be used, and fewer than 25 tokens that are no sinks.
    """
    values, at = _as_received(received)
    if not 0 < as_positive(level, "level") < 1:
        raise InputError(f"level is {level!r}; it must lie between 0 and 1, such as 0.95")
    chosen = _as_sinks(sinks, values, at, len(np.atleast_1d(np.asarray(received))))
    others = np.delete(values, chosen)
    if len(others) < FEWEST_VALUES:
        raise InputError(
            f"received has {len(others)} tokens that are no sinks; k-hat takes at least "
            f"{FEWEST_VALUES}"
        )
    shape, clusters = tail_shape(others), tail_clusters(others)
    error = (1 + max(shape.k, 0.0)) / math.sqrt(clusters.effective + PRIOR)
    critical = float(scipy.special.stdtrit(max(clusters.count - 1, 1), (1 + level) / 2))
    low, high = _interval(shape.k, critical / math.sqrt(clusters.effective + PRIOR))
    needed = _minimum_size(shape, clusters, critical)
    why = _reasons(shape, clusters, len(others), high - shape.k, needed, queries, burn_in)
    return TailIndex(
        exponent=_exponent(shape.k),
        exponent_interval=(_exponent(high), _exponent(low)),
        k=shape.k,
        interval=(low, high),
        standard_error=error,
        k_with_sinks=tail_shape(values).k if len(chosen) else shape.k,
        sinks=tuple(int(at[j]) for j in chosen),
        sink_share=float(values[chosen].sum() / values.sum()),
        n=len(others),
        tail_count=shape.count,
        minimum_size=needed,
        level=float(level),
        trusted=not why,
        reasons=why,
        clusters=clusters.count,
        effective_count=clusters.effective,
    )


def _exponent(k: float) -> float:
    return float(np.clip(1 - k, 0.0, 0.5))


def _interval(k: float, half: float) -> tuple[float, float]:
    """Interval of k whose ends are at ``half`` to either side of ``ln(1 + k)``; as at 0 below 0."""
    scale = 1 + max(k, 0.0)
    return k + scale * math.expm1(-half), k + scale * math.expm1(min(half, FURTHEST))


def _minimum_size(shape: TailShape, clusters: Clusters, critical: float) -> int:
    """Tokens whose tail gives k-hat to within ``HALF_WIDTH``, if they depend as these do."""
    independent = (critical / math.log1p(HALF_WIDTH / (1 + max(shape.k, 0.0)))) ** 2 - PRIOR
    count = independent * shape.count / clusters.effective
    return math.ceil(max(FEWEST_VALUES, 5 * count if count <= 45 else (count / 3) ** 2))


def _as_received(received: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    """Received attention of the keys that exist, and their positions."""
    values = as_numbers(received, "received")
    if values.ndim != 1:
        raise InputError(
            f"received has shape {values.shape}; pass one head, scale and size: one dimension"
        )
    bad = np.flatnonzero(np.isinf(values) | (values < 0))
    if bad.size:
        raise InputError(
            f"received[{bad[0]}] is {values[bad[0]]}; attention must be finite and at least 0"
        )
    at = np.flatnonzero(~np.isnan(values))
    if not values[at].any():
        raise InputError("received is 0 for every token; pass column sums of an attention matrix")
    return values[at], at


def _as_sinks(
    sinks: str | ArrayLike | None, values: Array, at: NDArray[np.int64], total: int
) -> NDArray[np.int64]:
    """Sinks as indices into ``values``, by decreasing received attention."""
    if sinks is None:
        return np.array([], dtype=np.int64)
    if isinstance(sinks, str):
        if sinks != "auto":
            raise InputError(f"sinks is {sinks!r}; it must be 'auto', None, a mask or positions")
        return find_sinks(values)
    given = np.atleast_1d(np.asarray(sinks))
    if given.dtype == bool:
        if given.shape != (total,):
            raise InputError(f"sinks is a mask of shape {given.shape}; it must be ({total},)")
        given = np.flatnonzero(given)
    if given.size == 0:
        return np.array([], dtype=np.int64)
    if given.ndim != 1 or not np.issubdtype(given.dtype, np.integer):
        raise InputError(f"sinks is {sinks!r}; positions must be a list of whole numbers")
    if given.min() < 0 or given.max() >= total:
        raise InputError(
            f"sinks contains position {given.min() if given.min() < 0 else given.max()}; positions "
            f"run from 0 to {total - 1}"
        )
    inside = np.flatnonzero(np.isin(at, given))
    return np.asarray(inside[np.argsort(-values[inside], kind="stable")], dtype=np.int64)


def _reasons(
    shape: TailShape,
    clusters: Clusters,
    n: int,
    reach: float,
    needed: int,
    queries: int | None,
    burn_in: float | None,
) -> tuple[str, ...]:
    out = []
    if reach > HALF_WIDTH:
        depend = clusters.effective < DEPENDENT * shape.count
        such = " that depend on their neighbours as these do" if depend else ""
        out.append(
            f"{n:,} tokens give k-hat to +- {reach:.2g}; it takes about {needed:,}{such} to know "
            f"it to +- {HALF_WIDTH:g}"
        )
    if shape.k >= 1:
        out.append(
            f"k-hat {shape.k:.2f} is 1 or more: no useful limit, or sinks that are not set apart; "
            "name them in `sinks`"
        )
    if queries is not None and as_dim(queries, "queries") < n / 2:
        out.append(
            f"{queries:,} queries for {n:,} tokens: the tail is made by rare queries; use as many "
            "queries as tokens"
        )
    if burn_in is None:
        out.append(
            f"the burn-in is not known; before {BEYOND:g} times as many tokens the tail is not "
            "there yet, and k-hat is too small: pass `burn_in`"
        )
    elif n < BEYOND * as_nonnegative(burn_in, "burn_in"):
        out.append(
            f"{n:,} tokens are less than {BEYOND:g} times the burn-in of {about(burn_in)}: the "
            "tail is not there yet, and k-hat is too small"
        )
    return tuple(out)
