"""Everything that the library imports is declared, and what we test is pinned."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import esscher

SOURCE = Path(esscher.__file__).parent
ROOT = Path(__file__).parents[1]
#: Extras that an import may rely on; their messages say what to install.
EXTRAS = ("models", "cluster", "texts")


def normal(name: str) -> str:
    """Return the name of a distribution, or of a requirement, as the package index compares it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~\[;]", name, maxsplit=1)[0]).lower()


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][e] for e in EXTRAS)]
    return {normal(name) for names in lists for name in names}


def imported() -> dict[str, str]:
    """Return distribution -> one module that imports it."""
    homes = packages_distributions()
    users = {}
    for path in sorted(SOURCE.rglob("*.py")):
        names = []
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.append(node.module)
        for top in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"esscher"}:
            assert top in homes, f"{path.relative_to(SOURCE)} imports {top}, which is not installed"
            users[normal(homes[top][0])] = str(path.relative_to(SOURCE))
    return users


def test_every_import_is_declared():
    missing = {name: place for name, place in imported().items() if name not in declared()}
    assert missing == {}


def test_what_is_declared_is_pinned():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {normal(line) for line in lines if "==" in line}
    assert declared() - pinned == set()
