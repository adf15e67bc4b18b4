"""Where numbers come from: versions of what took part, and the revision of the source."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@cache
def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Versions of what takes part in a measurement; None for what is not installed.

    ``kernel`` streams attention on processors: "compiled" if that is installed, else "torch"; which
    it is is seen without loading either. Which instructions it uses is no version: that depends on
    the machine, as with torch.
    """
    from esscher import __version__  # not at the top: the package may still be loading

    torch = _installed("torch")
    libraries = (Path(__file__).parents[1] / "engine" / "attention" / "compiled").glob("*.so")
    kernel = None if torch is None else "torch"
    if any(libraries) and os.environ.get("ESSCHER_KERNEL", "").lower() != "torch":
        kernel = "compiled"
    return {
        "esscher": __version__,
        "numpy": _installed("numpy"),
        "torch": torch,
        "kernel": kernel,
        "python": platform.python_version(),
    }


def git_revision() -> str | None:
    """Revision of the checkout this package runs from (with "-dirty" if changed), if it is one."""
    revision = None
    # The second command alone would name the revision of whatever project an environment lies in.
    for arguments in (
        ["ls-files", "--error-unmatch", "provenance.py"],
        ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
    ):
        command = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode != 0:
            return None
        revision = done.stdout.strip()
    return revision
