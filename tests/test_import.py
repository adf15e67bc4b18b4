"""Starting: nobody waits for packages that what was asked for does not need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pkgutil import walk_packages

import esscher
from esscher.cli.program import SENTENCES

#: Each takes a good part of a second, and few commands need all of them.
LATER = (
    "torch",
    "transformers",
    "pandas",
    "scipy.stats",
    "scipy.optimize",
    "matplotlib",
    "xarray",
    "altair",
    "vl_convert",
)
#: Of these, help needs none.
NUMERICAL = ("numpy", "scipy", "torch", "transformers", "pandas", "xarray", "altair")


def brought(code: str, names: Sequence[str], **environment: str) -> list[str]:
    """Which of some packages are there after a piece of code has run in a new process."""
    script = (
        f"import json, sys\n{code}\nprint(json.dumps([n for n in {names!r} if n in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
    )
    result: list[str] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_heavy_packages_are_loaded_when_used():
    used = "esscher.gaussian_head(horizon=0.5), esscher.exponents(0.5), esscher.sweep"
    assert brought(f"import esscher.cli\n{used}", LATER) == []


def test_the_package_alone_brings_nothing_numerical():
    assert brought("import esscher", NUMERICAL) == []


#: The command line with the words that are put in.
COMMAND = "from esscher.cli import main\ntry: main({words}, 'esscher')\nexcept SystemExit: print()"
TAB = {"COMP_WORDS": "esscher\npr", "COMP_CWORD": "1", "_ESSCHER_COMPLETE": "bash_complete"}


def test_help_and_the_tab_key_bring_nothing_numerical():
    options = (["--help"], ["--version"], ["--no-such-option"])
    lines = [*options, *([name, "--help"] for name in SENTENCES)]
    code = "\n".join(COMMAND.format(words=words) for words in lines)
    assert brought(code, NUMERICAL) == []
    assert brought(COMMAND.format(words=[]), NUMERICAL, **TAB) == []


def test_dir_lists_every_public_name():
    assert dir(esscher) == sorted(esscher.__all__)
    assert all(hasattr(esscher, name) for name in esscher.__all__)


def test_no_function_hides_a_module():
    """``import esscher.a.b as c`` walks attributes, so each must lead to the module of its name."""
    names = [module.name for module in walk_packages(esscher.__path__, "esscher.")]
    hidden = []
    for name in names:
        if name.endswith("__main__"):
            continue
        module = import_module(name)
        parent, _, last = name.rpartition(".")
        if getattr(import_module(parent), last) is not module:
            hidden.append(name)
    assert hidden == []
