"""What theory says about a needle among n keys of a law: weights, errors, phases, rules."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_positive, as_seed, as_sizes
from esscher.math.laws import Law, as_law
from esscher.math.theory.reach import needle_table
from esscher.math.theory.reach_phases import LeadingReach, Planted

#: Probabilities of the quantiles of a weight.
PROBABILITIES = (0.05, 0.5, 0.95)
#: Keys drawn at a time by the simulation.
DRAWN = 4_000_000


@dataclass(frozen=True, eq=False)
class NeedlePrediction:
    """A needle among n other keys, exactly, at one scale.

    Attributes
    ----------
    law, advantage, spread, scale
        Law of the tokens, z and s (logits at scale 1), and b.
    sizes
        Numbers n of other keys.
    weight, deviation
        Mean and standard deviation of the needle's weight over draws of the keys.
    quantiles
        Of the weight, [size, probability], at ``PROBABILITIES``.
    error
        Root mean square of the output less the needle's value, in spreads of the values.
    entropy, largest, effective
        Expected entropy in nats, largest weight, and effective number of keys, all keys counted.
    phases
        Averaging, retrieving, frozen or lost.
    best_scale, best_weight
        Scale of the largest weight (infinite: hardmax), and that weight.
    leading
        Rules to leading order in ln n.
    half_length, limit_length
        The n at which the needle has half of the attention: at this scale, and with hardmax.
    """

    law: str
    advantage: float
    spread: float
    scale: float
    sizes: Array
    weight: Array
    deviation: Array
    quantiles: Array
    error: Array
    entropy: Array
    largest: Array
    effective: Array
    phases: tuple[str, ...]
    best_scale: Array
    best_weight: Array
    leading: LeadingReach
    half_length: float
    limit_length: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, lists and strings; null for what is infinite."""
        lists = (
            "weight", "deviation", "error", "entropy", "largest", "effective", "best_scale",
            "best_weight",
        )  # fmt: skip
        return {
            "law": self.law,
            "advantage": self.advantage,
            "spread": self.spread,
            "scale": self.scale,
            "n": self.sizes.tolist(),
            **{name: [_plain(x) for x in getattr(self, name)] for name in lists},
            "quantiles": {f"{p:g}": self.quantiles[:, i].tolist()
                          for i, p in enumerate(PROBABILITIES)},
            "phase": list(self.phases),
            "half_length": _plain(self.half_length),
            "limit_length": _plain(self.limit_length),
            "leading": {f"log_{name}" if name != "best_scale" else name: _plain(value)
                        for name, value in asdict(self.leading).items()},
        }  # fmt: skip


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def predict_needle(
    law: Law, advantage: float, sizes: ArrayLike, *, spread: float = 1.0, scale: float = 1.0
) -> NeedlePrediction:
    """Say what becomes of a needle among n keys.

    Parameters
    ----------
    law
        Law of the tokens; logits are ``spread`` times its first coordinate.
    advantage
        z, by which the needle's logit exceeds the mean of the others, at scale 1.
    sizes
        Numbers of other keys.
    spread
        Standard deviation s of the logits at scale 1, for a standard law.
    scale
        b, which multiplies all logits.

    Raises
    ------
    InputError
        For a scale or spread that is not positive, and for sizes that are no numbers of keys.
    """
    n, b = as_sizes(sizes, smallest=1), as_positive(scale, "scale")
    reach = Planted(as_law(law), spread, advantage)
    noise = reach.noise(b, float(n[-1]))
    table = needle_table(noise, reach.advantage, b, most=float(n[-1]))
    weight = table.weight(n)
    best = [reach.best_scale(float(size)) for size in n]
    return NeedlePrediction(
        law=law.name,
        advantage=reach.advantage,
        spread=reach.spread,
        scale=b,
        sizes=n,
        weight=weight,
        deviation=np.sqrt(np.maximum(table.square(n) - weight**2, 0.0)),
        quantiles=np.array([table.quantiles(float(size), PROBABILITIES) for size in n]),
        error=table.error(n),
        entropy=table.entropy(n),
        largest=table.largest(n),
        effective=table.effective(n),
        phases=tuple(
            reach.phase(float(size), b, most) for size, (_, most) in zip(n, best, strict=True)
        ),
        best_scale=np.array([at for at, _ in best]),
        best_weight=np.array([most for _, most in best]),
        leading=reach.leading(b, float(n[-1])),
        half_length=reach.half_length(b),
        limit_length=reach.limit_length(),
    )


@dataclass(frozen=True, eq=False)
class SimulatedNeedle:
    """Mean weight of a needle over drawn keys, with its standard error."""

    sizes: Array
    weight: Array
    standard_error: Array
    replicates: int

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and lists."""
        return {
            "n": self.sizes.tolist(),
            "weight": self.weight.tolist(),
            "standard_error": self.standard_error.tolist(),
            "replicates": self.replicates,
        }


def simulate_needle(
    law: Law, advantage: float, sizes: ArrayLike, *, spread: float = 1.0, scale: float = 1.0,
    replicates: int = 1000, seed: int = 0,
) -> SimulatedNeedle:  # fmt: skip
    """Draw all keys and take the softmax, which shares no formula with the prediction."""
    n, seed = as_sizes(sizes, smallest=1), as_seed(seed)
    b, s = as_positive(scale, "scale"), as_positive(spread, "spread")
    means, errors = [], []
    for size in n.astype(int):
        rng = random_stream(seed, "needle", int(size))
        rows = max(1, DRAWN // int(size))
        found: list[Array] = []
        while sum(map(len, found)) < replicates:
            count = min(rows, replicates - sum(map(len, found)))
            keys = law.sample(count * int(size), rng)[:, 0].reshape(count, int(size))
            logits = b * s * (keys - float(law.mean[0])) - b * advantage
            top = np.maximum(logits.max(axis=1), 0.0)
            own = np.exp(-top)
            found.append(own / (own + np.exp(logits - top[:, None]).sum(axis=1)))
        weights = np.concatenate(found)
        means.append(float(weights.mean()))
        errors.append(float(weights.std(ddof=1) / np.sqrt(len(weights))))
    return SimulatedNeedle(n, np.array(means), np.array(errors), replicates)
