"""Version, changelog and citation agree; ``make dist`` builds a release and tries it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import esscher

ROOT = Path(__file__).parents[1]


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", text, re.M)[1] == esscher.__version__


def test_the_page_on_installing_names_this_version():
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"esscher-([\d.]+)-py3", text)) == {esscher.__version__}


def test_what_is_packed_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packed = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert [name for name in packed if not (ROOT / name.lstrip("/")).exists()] == []


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("build") is None, reason="build is not installed")
def test_the_wheels_install_and_work(tmp_path):
    """Minutes: three environments with PyTorch; needs an index of packages."""
    subprocess.run([sys.executable, "-m", "tests.dist", str(tmp_path)], cwd=ROOT, check=True)
