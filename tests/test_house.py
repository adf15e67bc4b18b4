"""The layout of the tests: folders as in the source, and no imports from other test modules."""

from __future__ import annotations

import ast
from pathlib import Path

import esscher

TESTS = Path(__file__).parent
SOURCE = Path(esscher.__file__).parent
#: Folders without a counterpart in the source; CONTRIBUTING.md lists them.
AUXILIARY = {"benchmarks", "docs", "fuzz"}


def test_no_test_imports_another():
    """Shared code is in modules without tests, or in conftest.py."""
    wrong = []
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            if any(name.startswith("tests.") and ".test_" in name for name in names):
                wrong.append(f"{path.relative_to(TESTS)}: {', '.join(names)}")
    assert wrong == []


def test_folders_mirror_the_source():
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("*.py")}
    wrong = [
        f
        for f in sorted(folders)
        if f.parts[:1] and f.parts[0] not in AUXILIARY and not (SOURCE / f).is_dir()
    ]
    assert wrong == []
