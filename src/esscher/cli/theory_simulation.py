"""``esscher theory --simulate``: what a simulation of the extremes says beside the prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from esscher.cli.printing import plain_table
from esscher.core.errors import InputError
from esscher.core.shown import plain_count, with_error
from esscher.math.simulation import SimulatedMap, SimulatedMean, simulate_map, simulate_mean
from esscher.math.theory import Prediction, head_regime
from esscher.show.tables import PlainTable


@dataclass(frozen=True)
class Simulation:
    """Simulated map error and, where it can be had, error of the mean output."""

    map: SimulatedMap
    mean: SimulatedMean | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, lists and strings."""
        return {
            "map": self.map.to_dict(),
            "mean": None if self.mean is None else self.mean.to_dict(),
            "notes": list(self.notes),
        }


def check_simulated(law: str, replicates: int) -> None:
    """Refuse what cannot be simulated before anything is computed."""
    if replicates < 2:
        raise InputError(f"--replicates is {replicates}; a standard error needs at least 2")
    if law != "gaussian":
        raise InputError(
            f"--simulate draws the extremes of Gaussian tokens, not of --law {law}; "
            "use --check or esscher sweep"
        )


def simulate(prediction: Prediction, replicates: int, seed: int) -> Simulation:
    """Simulate a Gaussian head at the sizes of its prediction."""
    head, n = prediction.head, prediction.sizes
    notes = []
    found = simulate_map(head, n, replicates, seed, prediction.queries)
    mean = None
    if len(head.coupling.variances) > 1:
        notes.append("the mean output is simulated in one dimension only")
    elif prediction.queries == "tokens":
        notes.append("the mean output is simulated for population queries only")
    elif head.horizon > 0:
        mean = simulate_mean(head, n, replicates, seed)
    for what, result in (("map", found), ("mean", mean)):
        if result is not None and not result.trusted.all():
            bad = ", ".join(plain_count(size) for size in n[~result.trusted])
            notes.append(
                f"rms of the {what} at n = {bad}: one replicate carries more than a fifth of the "
                "mean square; raise --replicates"
            )
    return Simulation(found, mean, tuple(notes))


def simulation_tables(prediction: Prediction, simulation: Simulation) -> list[PlainTable]:
    """Predicted and simulated errors side by side: of the map, and of the mean if there is one."""
    tables = [_map_table(prediction, simulation.map)]
    if simulation.mean is not None:
        tables.append(_mean_table(prediction, simulation.mean))
    return tables


def _map_table(prediction: Prediction, found: SimulatedMap) -> PlainTable:
    curve = prediction.curves["map"]
    table = plain_table(
        f"Map, simulated from the extremes ({found.replicates} replicates)",
        least=("drawn", "top key", "mean, simulated", "regime"),
    )
    for name in ("n", "regime", "rms", "simulated", "mean, simulated", "top key", "drawn"):
        table.add_column(name, justify="left" if name == "regime" else "right", no_wrap=True)
    for i, n in enumerate(prediction.sizes):
        table.add_row(
            plain_count(n),
            head_regime(prediction.head, float(n)).name,
            with_error(curve.error[i], curve.standard_error[i]),
            with_error(found.rms[i], found.rms_error[i]),
            with_error(found.mean[i], found.mean_error[i]),
            with_error(found.largest_weight[i], found.largest_weight_error[i]),
            f"{int(found.extremes[i])}",
        )
    table.caption = (
        "Top key: expected attention of the most attended key. "
        "Drawn: keys drawn per query; the others are summed, their sums "
        f"within {found.tolerance:g} of normal (Lyapunov ratio times share)."
    )
    return table


def _mean_table(prediction: Prediction, found: SimulatedMean) -> PlainTable:
    table = plain_table(f"Mean output, simulated likewise ({found.replicates} replicates)")
    for name in ("n", "mean", "simulated", "rms", "simulated", "drawn"):
        table.add_column(name, justify="right")
    for i, n in enumerate(prediction.sizes):
        row = [plain_count(n)]
        for name, value, error in (
            ("mean", found.mean[i], found.mean_error[i]),
            ("mean_rms", found.rms[i], found.rms_error[i]),
        ):
            curve = prediction.curves.get(name)
            row.append("" if curve is None else f"{curve.error[i]:.4g}")
            row.append(with_error(value, error))
        table.add_row(*row, f"{found.extremes[i]:.0f}")
    return table
