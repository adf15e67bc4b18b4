"""What law selection can see, and what k-hat is worth on tokens that depend on each other.

Parts of ``benchmarks/calibration.py``, which runs them and writes their numbers:

* synthetic curves with the law known exactly (power, power with a floor of 20% and 50% of the error
  at the largest size, 1/ln n): how often a bend is found, how often the verdict is "power" or
  undecided, whether the 95% limit of the floor covers the true one, and whether the power that the
  test states is the one it has. The same against the true power part as a predicted curve;
* which law is called what: curves of every law, of none (one that steepens), and of laws that can
  hardly be told apart (the power 3/4 and two powers), over noise levels and numbers of replicates,
  and whether the intervals of the exponent and of the tokens beyond the sizes hold the truth;
* the same on Gaussian heads, whose errors are no exact power laws, with and without a floor;
* coverage of k-hat's interval over autoregressive tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.signal import lfilter

import esscher
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.statistics import (
    LAWS,
    find_sinks,
    fit_rate,
    received_khat,
    resample,
    select_law,
)
from esscher.math.statistics.selection import against_prediction

SIZES = np.array([32.0, 64, 128, 256, 512, 1024])
NOISE: Mapping[str, Callable[[Array], Array]] = {
    "half-normal": lambda z: np.abs(z) * np.sqrt(np.pi / 2),
    "lognormal": lambda z: np.exp(1.2 * z - 0.72),
}
POWER = SIZES**-0.5
LAST = float(POWER[-1])
#: Expected errors, and the share that the floor has of the last one.
TRUTHS: Mapping[str, tuple[Array, float | None]] = {
    "power": (POWER, 0.0),
    "floor 20%": (POWER + LAST / 4, 0.2),
    "floor 50%": (POWER + LAST, 0.5),
    "1/ln n": (1 / np.log(SIZES), None),
}
REPLICATES = (16, 64, 200)
#: Expected errors by law, as functions of n. The two powers are equal at n = 64 or at 2,048, or the
#: second is an eighth of the first at 64; floors are shares of the error at 2,048.
CURVES: Mapping[str, Callable[[Array], Array]] = {
    "power 1/2": lambda n: n**-0.5,
    "power 3/4": lambda n: n**-0.75,
    "power 1": lambda n: 1 / n,
    "two powers, equal at 64": lambda n: n**-0.5 + 8 / n,
    "two powers, equal at 2,048": lambda n: n**-0.5 + 2048**0.5 / n,
    "two powers, second an eighth": lambda n: n**-0.5 + 1 / n,
    "floor 50%, power 1/2": lambda n: n**-0.5 + 2048**-0.5,
    "floor 20%, power 1": lambda n: 1 / n + 0.25 / 2048,
    "1/ln n": lambda n: 1 / np.log(n),
    "steepens": lambda n: (1 + n / 200) ** -0.5,
}
CALLED_SIZES = np.array([64.0, 128, 256, 512, 1024, 2048])
#: Relative scatter of a replicate (of its logarithm), and replicates of a curve.
SCATTER = ((0.05, 32), (0.3, 32), (0.3, 96), (0.8, 32))
#: Tokens are asked for the error at so many times the largest size.
FURTHER = 16
CORRELATIONS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
TOKENS = 3000

Row = dict[str, Any]


def law_cells(curves: int) -> list[Row]:
    rows = []
    for noise in NOISE:
        for count in REPLICATES:
            for truth, (expected, share) in TRUTHS.items():
                alone, against = [], []
                for seed in range(curves):
                    errors = expected * _noise(noise, count, seed)
                    resamples = resample(errors, SIZES, seed)
                    alone.append(select_law(resamples))
                    against.append(against_prediction(resamples, np.log(POWER)))
                limits = np.array([one.floor_share for one in alone])
                known = np.array([one.floor_share for one in against])
                rows.append(
                    {"noise": noise, "replicates": count, "truth": truth, "curves": curves}
                    | _verdicts([one.verdict for one in alone])
                    | {
                        "straight": _share(
                            one.law == "power" and not one.steepens for one in alone
                        ),
                        "bent": _share(one.law != "power" for one in alone),
                        "power_floor": float(np.mean([one.power["floor"] for one in alone])),
                        "power_logarithm": float(
                            np.mean([one.power["logarithmic"] for one in alone])
                        ),
                        "limit": float(np.median(limits)),
                        "limit_covers": None if share is None else _share(limits >= share),
                        "leaves_prediction": _share(one.leaves for one in against),
                        "predicted_power": float(np.mean([one.floor_power for one in against])),
                        "predicted_limit": float(np.median(known)),
                        "predicted_covers": None if share is None else _share(known >= share),
                    }
                )
    return rows


def called_cells(curves: int) -> list[Row]:
    """Which law is called what, and what the intervals are worth then."""
    rows = []
    x = np.log(CALLED_SIZES)
    root = np.linalg.cholesky(np.exp(-0.5 * np.abs(x[:, None] - x)))
    truth = FURTHER * CALLED_SIZES[-1]
    for scatter, count in SCATTER:
        for i, (name, law) in enumerate(CURVES.items()):
            expected, rates = law(CALLED_SIZES), []
            for seed in range(curves):
                rng = random_stream(seed, "called laws", i, count, int(100 * scatter))
                noise = rng.standard_normal((count, len(x))) @ root.T
                errors = expected * np.exp(scatter * noise - scatter**2 / 2)
                rates.append(fit_rate(errors, CALLED_SIZES, seed=seed))
            needed = [rate.tokens_for(float(law(np.array(truth)))) for rate in rates]
            decided = [one for one in needed if one.decided]
            slopes = [rate.slope_of(expected) for rate in rates]
            rows.append(
                {"truth": name, "scatter": scatter, "replicates": count, "curves": curves}
                | {
                    "called": {
                        verdict: _share(rate.verdict == verdict for rate in rates)
                        for verdict in (*LAWS, "undecided")
                    },
                    "best": {law: _share(rate.law == law for rate in rates) for law in LAWS},
                    "extrapolates": _share(rate.extrapolates for rate in rates),
                    "exponent_covers": _share(
                        rate.interval[0] <= slope <= rate.interval[1]
                        for rate, slope in zip(rates, slopes, strict=True)
                    ),
                    "tokens_cover": _share(
                        one.interval[0] <= truth <= one.interval[1] for one in needed
                    ),
                    "tokens_decided": _share(one.decided for one in needed),
                    "decided_and_wrong": sum(
                        not one.interval[0] <= truth <= one.interval[1] for one in decided
                    )
                    / curves,
                    "tokens_infinite": _share(np.isinf(one.interval[1]) for one in needed),
                }
            )
    return rows


def head_law_cells(curves: int) -> list[Row]:
    """Errors of Gaussian heads, as they are and with a floor of half the last error added.

    The prediction is the mean over all replicates of the head.
    """
    rows = []
    for dim, h in ((1, 0.5), (2, 1.0), (8, 0.5)):
        sizes = tuple(int(n) for n in SIZES)
        swept = esscher.sweep(
            esscher.gaussian_head(h, dim), sizes, 64 * curves, seed=5, progress=False
        )
        errors_of = swept["replicate_error"][:, 0]
        raw = {metric: errors_of.sel(metric=metric).values for metric in ("mean", "cov", "map")}
        known = {metric: errors.mean(axis=0) for metric, errors in raw.items()}
        for floor in (0.0, 1.0):
            row: Row = {"d": dim, "H": h, "floor": floor / 2, "replicates": 64, "curves": curves}
            parts = [
                {
                    metric: errors[64 * i : 64 * i + 64]
                    * (1 + floor * known[metric][-1] / known[metric])
                    for metric, errors in raw.items()
                }
                for i in range(curves)
            ]
            for metric, curve in known.items():
                results = [
                    select_law(resample(part[metric], SIZES, i), curve)
                    for i, part in enumerate(parts)
                ]
                # without the prediction a straight curve is a power law if both rivals are out
                alone = [
                    select_law(resample(part[metric], SIZES, i)).verdict
                    for i, part in enumerate(parts)
                ]
                row[metric] = {
                    "power_floor": float(np.mean([one.power["floor"] for one in results])),
                    "verdict_power": _share(verdict == "power" for verdict in alone),
                    "leaves_prediction": _share(
                        one.predicted is not None and one.predicted.leaves for one in results
                    ),
                    "with_prediction_power": _share(one.verdict == "power" for one in results),
                }
            rows.append(row)
    return rows


def dependent_cells(passes: int) -> list[Row]:
    rows = []
    for dim in (1, 4):
        for correlation in CORRELATIONS:
            for h in (0.5, 1.0, 2.0):
                received = [_received(dim, correlation, h, seed) for seed in range(passes)]
                khat, low, high = np.array([received_khat(r, find_sinks(r)) for r in received]).T
                k = h * h / (1 + h * h)
                rows.append(
                    {"d": dim, "correlation": correlation, "H": h, "k_formula": k}
                    | {
                        "passes": passes,
                        "k": float(np.mean(khat)),
                        "k_deviation": float(np.std(khat, ddof=1)),
                        "covered": float(np.mean((low <= k) & (k <= high))),
                        "half_width": float(np.median(high - low) / 2),
                    }
                )
    return rows


def _noise(name: str, replicates: int, seed: int) -> Array:
    """Errors of mean 1, axes [replicate, size], correlated along n as nested sizes are."""
    x = np.log(SIZES)
    root = np.linalg.cholesky(np.exp(-0.5 * np.abs(x[:, None] - x)))
    rng = random_stream(seed, "calibration of laws", replicates, 1, list(NOISE).index(name))
    return np.asarray(NOISE[name](rng.standard_normal((replicates, len(x))) @ root.T))


def _received(dim: int, correlation: float, h: float, seed: int) -> Array:
    """Attention received by autoregressive Gaussian tokens, in the order of the sequence."""
    noise = random_stream(seed, "dependent tokens", dim, int(100 * correlation))
    steps = noise.standard_normal((TOKENS, dim))
    steps[1:] *= np.sqrt(1 - correlation**2)  # the first is drawn from the stationary law
    x = lfilter([1.0], [1.0, -correlation], steps, axis=0).astype(np.float32)
    logits = (h * x) @ x.T
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    return np.asarray(logits.sum(axis=0, dtype=np.float64))


def _verdicts(verdicts: list[str]) -> Row:
    return {
        f"verdict_{name.replace(' ', '_')}": _share(verdict == name for verdict in verdicts)
        for name in ("power", "as predicted", "undecided")
    }


def _share(values: Any) -> float:
    return float(np.mean(list(values)))
