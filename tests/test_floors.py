"""Layers of the package: a module imports from its own layer and those below."""

from __future__ import annotations

import ast
from pathlib import Path

import esscher

ROOT = Path(esscher.__file__).parent
#: From the lowest to the highest; modules outside of them hold the public names.
FLOORS = ("core", "show", "math", "engine", "runs", "studies", "cli")


def imports(path: Path) -> set[str]:
    """Floors that a module imports from, inside functions too; types alone do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("esscher.")}


def test_imports_go_down():
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT)
        floor = place.parts[0]
        if floor not in FLOORS:
            continue
        for other in imports(path) & set(FLOORS):
            if FLOORS.index(other) > FLOORS.index(floor):
                wrong.append(f"{place} imports {other}")
    # which studies there are is a list of names in studies/__init__.py, nothing that is run
    assert wrong == ["runs/registry.py imports studies"]


def test_every_package_is_on_a_floor():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == set(FLOORS)
