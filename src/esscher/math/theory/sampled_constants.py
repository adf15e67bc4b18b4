"""Constants of the parametric regime for bounded tokens of any law, by sampling exact terms.

Bounded tokens have bounded weights: every error falls like 1/sqrt(n) in the end. With K the law's
cumulant generating function and t, t' the tilts of two independent queries:

* map: the pointwise error of ``pointwise``, averaged over queries;
* mean: the variance of the linear part ``Gamma(q_x) - E Gamma + psi(x)`` (psi alone for population
  queries), ``psi(x) = E_q[exp(<t,x> - K(t)) V (x - K'(t))]``. The integral over keys is closed:

      E|psi|^2 = E exp(K(t+t') - K(t) - K(t')) { tr V K''(t+t') V'
                 + <V (K'(t+t') - K'(t)), V (K'(t+t') - K'(t'))> }
      E<Gamma(q_x), psi(x)> = E <Gamma(q_x), V (x - K'(t))>,   x from the law tilted by t.

Pairs of queries that point the same way carry the first average. So the second query of a pair is
drawn from a mixture of the law and of the law tilted towards the first, which has bounded weights.
Where a few terms still carry an average, by the k-hat of its terms, it is not estimable, and the
answer is None with what was seen: a standard error taken from the terms would not mean anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.heads import WeightHead
from esscher.math.statistics.tail import tail_count, tail_shape
from esscher.math.theory.tilted_draws import can_tilt, tilted_draws

#: Pairs of queries; fixed, whatever they show.
PAIRS = 8192
#: Tilts of the second query's mixture, in units of the one that first order suggests.
TOWARDS = (0.0, 0.3, 0.6, 1.0, 1.5)
#: Numbers that are held at a time in d x d matrices.
BLOCK = 2_000_000
#: Shape of the tail from which an average says nothing, if that tail carries at least this share
#: of it (equal terms of a discrete law can look like a tail), and the largest share of one term.
LARGEST_SHAPE, CARRIED, LARGEST_SHARE = 0.7, 0.15, 0.05


@dataclass(frozen=True)
class SampledConstant:
    """Limit of ``n E|error|^2``, sampled.

    Attributes
    ----------
    value, standard_error
        None where the constant is not estimable.
    seen, seen_error
        Average of what was drawn and its naive standard error: too low as a rule where ``value``
        is None.
    shape
        k-hat of the terms; None where they have no tail (all of them nearly equal).
    """

    value: float | None
    standard_error: float | None
    seen: float
    seen_error: float
    shape: float | None

    @classmethod
    def of(cls, terms: Array) -> SampledConstant:
        """Average independent terms, if no few of them carry the average."""
        if not np.all(np.isfinite(terms)):
            return cls(None, None, float("inf"), float("inf"), None)
        mean, error = float(terms.mean()), float(terms.std(ddof=1) / np.sqrt(len(terms)))
        size = np.abs(terms)
        try:
            shape = tail_shape(size).k
        except InputError:  # too many equal values: no tail
            shape = None
        ordered = np.sort(size) / max(float(size.sum()), 1e-300)
        carried = float(ordered[-tail_count(len(size)) :].sum())
        heavy = shape is not None and shape > LARGEST_SHAPE and carried > CARRIED
        known = not heavy and ordered[-1] <= LARGEST_SHARE
        return cls(mean if known else None, error if known else None, mean, error, shape)

    def __str__(self) -> str:
        if self.value is not None:
            return f"{self.value:.4g} (standard error {self.standard_error:.2g})"
        return (
            f"not estimable, a few terms carry it ({self.seen:.3g} was seen, which may be far off)"
        )


@dataclass(frozen=True)
class SampledConstants:
    """Limits of ``n E|error|^2`` for mean and map, where they can be estimated.

    ``log_burn_in`` is the median over queries of ``K(2t) - 2 K(t)``: before its exponential a
    typical query has fewer than one effective token.
    """

    mean: SampledConstant
    map: SampledConstant
    log_burn_in: float


def sampled_constants(head: WeightHead, queries: str, seed: int = 0) -> SampledConstants:
    """Sample the constants of a head over a bounded law."""
    rng = random_stream(seed, "constants")
    tokens = head.law.sample(PAIRS, rng)
    tilts = _law_tilts(head, tokens)
    other, log_weights = _towards(head, tilts, rng)
    terms = _pair_terms(head, tilts, _law_tilts(head, other), log_weights)
    if queries == "tokens":
        terms = terms + _own_terms(head, tilts, rng)
    with np.errstate(over="ignore"):
        map_terms = _pair_terms(head, tilts, tilts, np.zeros(PAIRS))
    inflation = head.law.log_mgf(2 * tilts) - 2 * head.law.log_mgf(tilts)
    return SampledConstants(
        SampledConstant.of(terms), SampledConstant.of(map_terms), float(np.median(inflation))
    )


def _law_tilts(head: WeightHead, tokens: Array) -> Array:
    """Tilts of the token law at given query tokens."""
    return np.asarray(head.law_tilts(head.tokens(tokens).tilts))


def _towards(head: WeightHead, tilts: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Second queries of pairs, with log-weights: the law's density over the mixture's.

    To first order ``K(t + A x) - K(t)`` is ``<A' K'(t), x>``, which is the tilt to draw x with.
    """
    law = head.law
    if not can_tilt(law):
        return law.sample(len(tilts), rng), np.zeros(len(tilts))
    lean = law.tilted_mean(tilts) @ head.A
    scales = np.asarray(TOWARDS)
    chosen = scales[np.arange(len(tilts)) % len(scales)]
    drawn = tilted_draws(law, chosen[:, None] * lean, rng)
    along = np.sum(lean * drawn, axis=1)
    logs = [scale * along - law.log_mgf(scale * lean) for scale in scales]
    return drawn, np.asarray(np.log(len(scales)) - scipy.special.logsumexp(logs, axis=0))


def _pair_terms(head: WeightHead, first: Array, second: Array, log_weights: Array) -> Array:
    """Weighted terms of E|psi|^2, one for each pair of tilts."""
    law, value = head.law, head.value_weight
    gram = value.T @ value
    both = first + second
    logs = law.log_mgf(both) - law.log_mgf(first) - law.log_mgf(second) + log_weights
    mean = law.tilted_mean(both)
    left, right = ((mean - law.tilted_mean(t)) @ value.T for t in (first, second))
    inner = np.sum(left * right, axis=1)
    rows = max(1, BLOCK // law.dim**2)
    for start in range(0, len(both), rows):
        part = slice(start, start + rows)
        inner[part] += np.einsum("nij,ij->n", law.tilted_covariance(both[part]), gram)
    return np.asarray(np.exp(logs) * inner)


def _own_terms(head: WeightHead, tilts: Array, rng: np.random.Generator) -> Array:
    """Terms of a token as a query: ``|Gamma - E Gamma|^2 + 2 <Gamma, psi>``."""
    law, value = head.law, head.value_weight
    if can_tilt(law):
        keys, log_weights = tilted_draws(law, tilts, rng), np.zeros(len(tilts))
    else:
        keys = law.sample(len(tilts), rng)
        log_weights = np.sum(tilts * keys, axis=1) - law.log_mgf(tilts)
    limit = law.tilted_mean(tilts) @ value.T
    centre = limit.mean(axis=0)
    output = law.tilted_mean(_law_tilts(head, keys)) @ value.T - centre
    gap = keys @ value.T - limit
    square = np.sum((limit - centre) ** 2, axis=1) * len(tilts) / (len(tilts) - 1)
    return np.asarray(square + 2 * np.exp(log_weights) * np.sum(output * gap, axis=1))
