"""``esscher theory --needle``: how much attention a planted key gets among n others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from esscher.cli.printing import plain_console, plain_table
from esscher.core.errors import InputError
from esscher.core.shown import about, plain_count, with_error
from esscher.core.validation import Array, as_finite, as_positive
from esscher.math.heads import WeightHead
from esscher.math.theory import NeedlePrediction, SimulatedNeedle, predict_needle, simulate_needle
from esscher.math.theory.regimes import typical_strength
from esscher.show.tables import PlainTable

#: Draws of the keys that ``--check`` simulates.
REPLICATES = 1000


@dataclass(frozen=True)
class AskedNeedle:
    """What ``--needle`` asks for: an advantage and a scale, checked."""

    advantage: float
    scale: float


def asked_needle(
    needle: float | None, scale: float | None, sizes: str | None
) -> AskedNeedle | None:
    """Check the options before anything is computed."""
    if needle is None:
        if scale is not None:
            raise InputError("--scale needs --needle; give both, such as --needle 6 --scale 2")
        return None
    advantage = as_finite(needle, "--needle")
    if sizes is None:
        raise InputError("--needle needs --sizes, the numbers of other keys, such as 1e3:1e9")
    return AskedNeedle(advantage, as_positive(1.0 if scale is None else scale, "--scale"))


@dataclass(frozen=True)
class FoundNeedle:
    """A prediction, and what was simulated beside it."""

    head: WeightHead
    prediction: NeedlePrediction
    simulated: SimulatedNeedle | None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, lists and strings."""
        out = self.prediction.to_dict()
        if self.simulated is not None:
            out["check"] = self.simulated.to_dict()
        return out

    def save(self, path: Path) -> None:
        """Draw phases and weights."""
        from esscher.math.theory.reach_chart import draw_needle

        draw_needle(self.prediction, self.head.law, self.simulated).save(path)


def find_needle(
    asked: AskedNeedle, head: WeightHead, sizes: Array, check: Array, seed: int
) -> FoundNeedle:
    """Predict the weight of a needle, for a query of the head's typical strength.

    Parameters
    ----------
    asked
        What is asked for.
    head
        Its typical strength is the spread of the logits.
    sizes, check
        Numbers of other keys: those that are predicted, and those that are simulated.
    seed
        Seed of the simulation.
    """
    spread = typical_strength(head.frobenius, float(np.linalg.norm(head.tau)))
    if spread == 0:
        raise InputError("--needle needs logits that vary; give a head with --horizon above 0")
    options = {"spread": spread, "scale": asked.scale}
    prediction = predict_needle(head.law, asked.advantage, sizes, **options)
    simulated = None
    if len(check):
        simulated = simulate_needle(
            head.law, asked.advantage, check, replicates=REPLICATES, seed=seed, **options
        )
    return FoundNeedle(head, prediction, simulated)


def print_needle(found: FoundNeedle) -> None:
    """Print the rules, then weights, errors and phases at every n."""
    prediction, console = found.prediction, plain_console()
    console.print()
    console.say(_headline(prediction))
    console.print(_weights(prediction, found.simulated))
    console.print(_rest(prediction))


def _weights(prediction: NeedlePrediction, simulated: SimulatedNeedle | None) -> PlainTable:
    """Phase and weight at every n, with what was simulated."""
    table = plain_table(
        f"A needle of advantage {prediction.advantage:g} among n keys, logits of spread "
        f"{prediction.spread:.4g}, scale {prediction.scale:g}"
    )
    for name in ("n", "phase", "weight", "5%", "95%"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    checked: dict[float, tuple[float, float]] = {}
    if simulated is not None:
        table.add_column("simulated", justify="right")
        pairs = zip(simulated.weight, simulated.standard_error, strict=True)
        checked = dict(zip(simulated.sizes, pairs, strict=True))
    for i, n in enumerate(prediction.sizes):
        low, _, high = prediction.quantiles[i]
        row = [f"{value:.3g}" for value in (prediction.weight[i], low, high)]
        if simulated is not None:
            row.append(with_error(*checked[n]) if n in checked else "")
        table.add_row(plain_count(n), prediction.phases[i], *row)
    table.caption = (
        "Weight: expected, exactly, with quantiles of its law. Retrieving: a weight of at least a "
        "half; averaging: less, but a larger scale finds the needle; lost: no scale does; frozen: "
        "the largest of the other keys outweigh the rest (to leading order in ln n)."
    )
    return table


def _rest(prediction: NeedlePrediction) -> PlainTable:
    """What else is known at every n."""
    table = plain_table("All keys, and the best scale")
    for name in ("n", "error", "largest", "effective", "entropy", "best scale", "its weight"):
        table.add_column(name, justify="right")
    for i, n in enumerate(prediction.sizes):
        best = float(prediction.best_scale[i])
        table.add_row(
            plain_count(n),
            f"{prediction.error[i]:.3f}",
            f"{prediction.largest[i]:.3g}",
            about(float(prediction.effective[i])),
            f"{prediction.entropy[i]:.2f}",
            f"{best:.3g}" if math.isfinite(best) else "hardmax",
            f"{prediction.best_weight[i]:.3g}",
        )
    table.caption = (
        "Error: of the output less the needle's value, in spreads of the values. Effective: number "
        "of keys, 1/E sum p^2. Entropy in nats."
    )
    return table


def _headline(prediction: NeedlePrediction) -> str:
    rule = prediction.leading
    half = prediction.half_length
    said = (
        "The needle never has half of the attention"
        if half == 0
        else f"The needle has half of the attention up to n = {_length(half)}"
    )
    said += (
        f" at scale {prediction.scale:g} (rule exp(bz - K(b)): {_length(_exp(rule.half_length))})"
    )
    if math.isinf(rule.limit):
        return f"{said}; no other key can be larger, so that a large scale finds it at any n."
    return (
        f"{said}, and with hardmax up to {_length(prediction.limit_length)}. Rule: best scale "
        f"{rule.best_scale:.3g}, no scale beyond n = {_length(_exp(rule.limit))}."
    )


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _length(value: float) -> str:
    return about(value) if value < 1e15 else "10^15 and more"
