"""The site builds without a warning, is complete, and needs no network."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, pages

pytest.importorskip("sphinx")
sys.path.insert(0, str(ROOT / "docs" / "_extensions"))

from navigation import chapters
from navigation import pages as navigation
from offline import remote_resources


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-c", "docs"]
    command += ["-d", str(folder / "doctrees"), ".", str(folder / "html")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.slow
def test_every_page_is_there_and_reachable(site: Path) -> None:
    start = (site / "docs" / "index.html").read_text(encoding="utf-8")
    for page in pages():
        name = page.relative_to(ROOT).with_suffix("").as_posix()
        if name == "README":
            continue
        built = site / f"{name}.html"
        assert built.exists(), name
        if name != "docs/index":
            assert f'href="{os.path.relpath(built, site / "docs")}"' in start, name
    assert "docs/index.html" in (site / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_formulas_are_mathml_and_nothing_is_loaded(site: Path) -> None:
    theory = [page.read_text(encoding="utf-8") for page in (site / "docs/theory").glob("*.html")]
    assert sum(page.count("<math") for page in theory) > 150
    for page in theory:
        assert "$" not in page.partition("<article")[2].partition("</article>")[0]
        assert "mathjax.js" not in page.lower()
    assert not remote_resources(site)


@pytest.mark.slow
def test_the_reference_is_complete(site: Path) -> None:
    import esscher
    from esscher.cli import main

    index = (site / "docs/reference/api/index.html").read_text(encoding="utf-8")
    for name in set(esscher.__all__) - {"__version__"}:
        # what the namespaces hold is listed by where it comes from
        if not inspect.ismodule(getattr(esscher, name)):
            assert f"#esscher.{name}" in index, name
    commands = (site / "docs/reference/commands.html").read_text(encoding="utf-8")
    for name in main.list_commands(None):
        assert f'id="esscher-{name}"' in commands, name


def test_every_page_is_in_the_navigation() -> None:
    sections = [section for _, section in navigation()]
    listed = {page for section in [*sections, *chapters().values()] for page in section}
    for page in pages():
        name = page.relative_to(ROOT).with_suffix("").as_posix()
        if name not in ("README", "docs/index"):
            assert name in listed
