"""Starting: what every command waits for is what ``import esscher`` brings with it."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pkgutil import walk_packages

import esscher

#: Each takes a good part of a second, and few commands need all of them.
LATER = (
    "torch", "transformers", "pandas", "pyarrow", "scipy.stats", "matplotlib", "xarray", "altair",
    "vl_convert",
)  # fmt: skip


def test_heavy_packages_are_loaded_when_used():
    code = (
        "import sys, esscher.cli\n"
        "esscher.gaussian_head(horizon=0.5), esscher.exponents(0.5), esscher.sweep\n"
        f"print([name for name in {LATER!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_dir_lists_every_public_name():
    assert set(esscher.__all__) <= set(dir(esscher))
    assert all(hasattr(esscher, name) for name in esscher.__all__)


def test_dir_before_anything_is_used():
    code = "import esscher; print(sorted(set(esscher.__all__) - set(dir(esscher))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_function_hides_a_module():
    """``import esscher.a.b as c`` walks attributes, so each must lead to the module of its name."""
    names = [found.name for found in walk_packages(esscher.__path__, "esscher.")]
    hidden = []
    for name in names:
        if name.endswith("__main__"):
            continue
        module = import_module(name)
        parent, _, own = name.rpartition(".")
        if getattr(import_module(parent), own) is not module:
            hidden.append(name)
    assert hidden == []
