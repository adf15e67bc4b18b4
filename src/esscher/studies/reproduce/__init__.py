"""The published synthetic study, redone and extended: ``reproduce("gaussian", scale="quick")``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from esscher.core.atomic import check_room_for
from esscher.core.errors import InputError
from esscher.core.options import LARGEST
from esscher.core.shown import shortened
from esscher.core.validation import as_seed
from esscher.runs.executors import CellExecutor, chosen_executor
from esscher.runs.folder import run_lock
from esscher.studies.reproduce import (
    ablation,
    ball,
    gaussian,
    hardmax,
    onepass,
    sphere,
    universality,
)
from esscher.studies.reproduce.finding import Finding
from esscher.studies.reproduce.study import Settings

#: Experiments by name, in the order in which ``all`` runs them.
EXPERIMENTS: dict[str, Callable[[Settings], Finding]] = {
    "gaussian": gaussian.run,
    "ablation": ablation.run,
    "sphere": sphere.run,
    "ball": ball.run,
    "hardmax": hardmax.run,
    "universality": universality.run,
    "onepass": onepass.run,
}
SCALES = ("quick", "standard", "paper")

__all__ = ["EXPERIMENTS", "SCALES", "Finding", "reproduce"]


def reproduce(
    name: str,
    scale: str = "quick",
    out: str | Path = "reproduced",
    *,
    seed: int = 0,
    workers: int = 1,
    executor: CellExecutor | None = None,
    progress: bool | None = None,
) -> Finding:
    """Run one experiment, or resume it, and write its table, figures and finding.

    Parameters
    ----------
    name
        One of ``EXPERIMENTS``.
    scale
        ``"quick"`` (under a minute), ``"standard"`` (minutes), ``"paper"`` (hours).
    out
        Directory; the experiment gets one of its own in it.
    seed, workers, executor, progress
        As for :func:`esscher.sweep`.

    Raises
    ------
    InputError
        For arguments that cannot be used, and while another process works on the same experiment.
    """
    if not isinstance(name, str) or name not in EXPERIMENTS:
        raise InputError(
            f"there is no experiment {shortened(name)}; choose from {', '.join(EXPERIMENTS)}"
        )
    if scale not in SCALES:
        raise InputError(f"scale is {scale!r}; it must be one of {', '.join(SCALES)}")
    seed = as_seed(seed, most=LARGEST)
    folder = Path(out) / f"{name}-{scale}"
    check_room_for(folder, str(folder))
    with chosen_executor(workers, executor) as chosen:
        folder.mkdir(parents=True, exist_ok=True)
        with run_lock(folder):
            finding = EXPERIMENTS[name](Settings(scale, folder, seed, chosen, progress))
            finding.write(folder)
    return finding
