"""Compile the kernel: by the installation, or ``python -m esscher.engine.attention.compiled``.

Nothing but a C compiler is needed (``$CC``, or ``cc``, ``gcc``, ``clang`` on the path), and nothing
is lost without one but speed. The libraries lie beside the source, one per instruction set; which
of them a machine can run is decided when it runs. This file uses the standard library only, because
the installation runs it before anything is installed.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "step.c"
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-ffp-contract=fast", "-fno-math-errno")
#: Compiler flags per instruction set, by its name.
TARGETS = {
    "AVX2": ("-mavx2", "-mfma", "-mf16c", "-DESSCHER_WIDTH=8"),
    "AVX512": ("-mavx512f", "-mfma", "-DESSCHER_WIDTH=16"),
}


def library(target: str) -> Path:
    """Where the library for an instruction set lies, if it has been compiled."""
    return FOLDER / f"step.{target.lower()}.so"  # the first dot: it is no module to be imported


def compiler() -> str | None:
    """The C compiler, or ``None``."""
    named = os.environ.get("CC")
    return named or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def build() -> list[Path]:
    """Compile for every instruction set of this kind of processor; the libraries made.

    Raises
    ------
    RuntimeError
        If there is no compiler, if it fails, or if the processor is not an x86-64 one.
    """
    if platform.machine().lower() not in ("x86_64", "amd64") or sys.platform == "win32":
        raise RuntimeError(f"no kernel for {sys.platform} on {platform.machine()}")
    command = compiler()
    if command is None:
        raise RuntimeError("no C compiler found (set CC, or install gcc or clang)")
    made = []
    for target, flags in TARGETS.items():
        final = library(target)
        partial = final.with_suffix(f".{os.getpid()}.tmp")
        arguments = [*command.split(), *FLAGS, *flags, str(SOURCE), "-o", str(partial), "-lm"]
        try:
            done = subprocess.run(arguments, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{command} failed on {SOURCE.name}:\n{done.stderr.strip()}")
            partial.replace(final)  # a library in use is replaced, never overwritten
        except OSError as error:
            raise RuntimeError(f"{command} cannot be run: {error}") from error
        finally:
            partial.unlink(missing_ok=True)
        made.append(final)
    return made
