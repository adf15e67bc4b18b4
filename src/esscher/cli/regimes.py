"""``esscher theory --regimes`` and ``--probe``: in which regime heads are at today's lengths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from esscher.cli.printing import plain_console, plain_table
from esscher.core.errors import InputError
from esscher.core.untrusted import foreign
from esscher.math.theory.regimes import CONTEXT_WINDOWS, REGIMES, head_regime, typical_strength
from esscher.runs.registry import load

if TYPE_CHECKING:
    from esscher.math.heads import Head
    from esscher.studies.probe import Probe


def load_probes(runs: Sequence[Path]) -> dict[str, Probe]:
    """Stored probes by the name of their model; a second one of a model gets a number."""
    if not runs:
        return {}
    from esscher.studies.probe import Probe
    from esscher.studies.probe.regimes import regime_counts

    probes: dict[str, Probe] = {}
    for folder in runs:
        with foreign(folder):
            found = load(folder)
            if not isinstance(found, Probe):
                raise InputError(f"{folder} holds a run of kind {found.study.name!r}, not 'probe'")
            regime_counts(found)  # what is printed and drawn of it must be numbers
            name = model = found.study.model_record.name
        number = 2
        while name in probes:
            name, number = f"{model} ({number})", number + 1
        probes[name] = found
    return probes


def regimes_dict(probes: dict[str, Probe], head: Head | None) -> dict[str, Any]:
    """Counts of heads per model and window, and the regime of a single head."""
    from esscher.studies.probe.regimes import regime_counts

    out: dict[str, Any] = {"windows": CONTEXT_WINDOWS}
    out["models"] = {name: regime_counts(probe) for name, probe in probes.items()}
    if head is not None:
        out["head"] = {name: head_regime(head, n).to_dict() for name, n in CONTEXT_WINDOWS.items()}
    return out


def save_regimes(path: Path, probes: dict[str, Probe], head: Head | None) -> None:
    """Draw the regimes with the heads of probes, and a single head as a line."""
    from esscher.math.theory.regimes_chart import draw_regimes
    from esscher.studies.probe.regimes import head_strengths

    marked = None
    if head is not None:
        strength = typical_strength(head.frobenius, float(np.linalg.norm(head.tau)))
        marked = (head.horizon, strength)
    title = "Regimes of attention"
    if probes:
        title += "; points are heads, hollow where H > 1"
    heads = {name: head_strengths(probe) for name, probe in probes.items()}
    draw_regimes(heads, marked, title).save(path)


def print_regimes(probes: dict[str, Probe], head: Head | None) -> None:
    """Print how many heads are in which regime at each window."""
    from esscher.studies.probe.regimes import count_words, regime_counts

    table = plain_table("Regimes at today's context windows (Gaussian theory, second moments)")
    table.add_column("heads of")
    table.add_column("window", justify="right")
    for name in REGIMES:
        table.add_column(name, justify="right")
    for model, probe in probes.items():
        for row in regime_counts(probe):
            table.add_row(model, row["window"], *(count_words(row, name) for name in REGIMES))
    if head is not None:
        for window, n in CONTEXT_WINDOWS.items():
            found = head_regime(head, n)
            marks = [f"n^-{found.exponent:.3g}" if name == found.name else "" for name in REGIMES]
            table.add_row("this head", window, *marks)
    table.caption = (
        "Position x of a head: typical tilt over sqrt(2 ln n), at least H^2/(1+H^2) if H > 1. "
        "Parametric up to x = 1/2, frozen from x = 1."
    )
    if probes:
        table.caption += " In brackets: if every H and S were 5% smaller or larger."
    plain_console().print(table)
