"""Where numbers come from: versions of what took part, and the revision of the source."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np


def versions() -> dict[str, str | None]:
    """Versions of what takes part in a measurement; None for what is not installed."""
    from esscher import __version__  # not at the top: the package may still be loading

    return {
        "esscher": __version__,
        "numpy": np.__version__,
        "torch": _installed("torch"),
        "kernel": _kernel(),
        "python": platform.python_version(),
    }


def _kernel() -> str | None:
    """Name what streams attention on processors: "compiled" if that is installed, else "torch".

    Found without loading either. Which instructions are used is no version: it depends on the
    machine, as with torch.
    """
    libraries = (Path(__file__).parents[1] / "engine" / "attention" / "compiled").glob("*.so")
    if any(libraries) and os.environ.get("ESSCHER_KERNEL", "").lower() != "torch":
        return "compiled"
    return None if _installed("torch") is None else "torch"


@cache
def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_revision() -> str | None:
    """Revision of the checkout this package runs from (with "-dirty" if changed), if it is one."""
    here = Path(__file__).parent
    # The second command alone would name the revision of whatever project an environment lies in.
    if _git(here, "ls-files", "--error-unmatch", "provenance.py") is None:
        return None
    return _git(here, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
