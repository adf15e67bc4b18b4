"""The navigation of the site, appended to the landing page when it is read.

The landing page stays plain Markdown that a forge shows as well. A page that is not named here
still appears, under "More", so that a new page is never lost.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
LANDING, FINDINGS = "docs/index", "docs/findings/index"
#: Caption and pages, in order; a name with a star stands for all files that match it. Pages that do
#: not exist are passed over.
SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Start",
        (
            "docs/install",
            "docs/tour",
            "docs/first-steps",
            "examples/first-steps",
            "examples/probe-to-plan",
            "examples/*",
            "docs/faq",
        ),
    ),
    (
        "How to",
        (
            "docs/guides/my-model",
            "docs/guides/plan-a-cache",
            "docs/guides/probe-a-model",
            "docs/guides/long-contexts",
            "docs/guides/cluster",
            "docs/guides/faults",
            "docs/guides/security",
            "docs/guides/add-a-study",
            "docs/guides/add-a-law",
            "docs/guides/add-a-model-family",
            "docs/guides/*",
        ),
    ),
    (
        "What it measures",
        (
            "docs/probe",
            "docs/plan",
            "docs/cache",
            "docs/sparse",
            "docs/deep",
            "docs/tails",
            "docs/domains",
            "docs/reach",
            "docs/rates",
            "docs/report",
            "docs/figures",
            "docs/reproduce",
        ),
    ),
    ("Why it is so", ("docs/theory", "docs/extreme-lengths", "docs/accuracy", "docs/related")),
    ("What came out", (FINDINGS,)),
    (
        "Reference",
        (
            "docs/reference/commands",
            "docs/command-line",
            "docs/reference/api/index",
            "docs/glossary",
        ),
    ),
    ("Project", ("docs/architecture", "CONTRIBUTING", "SECURITY", "CHANGELOG")),
)
#: The API reference exists in the site only, so the landing page names it without a link.
API_REFERENCE = (
    "API reference (in the built site: `make docs`)",
    "[API reference](reference/api/index.rst)",
)
SUFFIXES = (".md", ".rst", ".ipynb")


def pages() -> list[tuple[str, list[str]]]:
    """Caption and existing pages of every section."""
    seen = {LANDING}
    found = []
    for caption, names in SECTIONS:
        section: list[str] = []
        for name in names:
            section += [page for page in _matching(name) if page not in seen]
            seen |= set(section)
        found.append((caption, section))
    found.append(("More", [page for page in _matching("docs/*") if page not in seen]))
    return [(caption, section) for caption, section in found if section]


def _matching(name: str) -> list[str]:
    """Pages that a name stands for, without their suffix."""
    files = {path for suffix in SUFFIXES for path in ROOT.glob(name + suffix)}
    return sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in files)


def _tree(caption: str, entries: list[str]) -> str:
    listed = "\n".join(f"/{entry}" for entry in entries)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def _append(app: Sphinx, name: str, source: list[str]) -> None:
    if name == LANDING:
        source[0] = source[0].replace(*API_REFERENCE)
        source[0] += "".join(_tree(caption, section) for caption, section in pages())
    elif name == FINDINGS:
        folders = [page for page in _matching("docs/findings/*/*") if page != name]
        source[0] += _tree("Findings", folders)


def _always_read(app: Sphinx, env: object, *changes: set[str]) -> list[str]:
    """Pages made of more than their own file are read anew in every build."""
    return [LANDING, FINDINGS, "docs/reference/commands"]


def setup(app: Sphinx) -> dict[str, bool]:
    """Append the navigation to the pages that carry it."""
    app.connect("source-read", _append)
    app.connect("env-get-outdated", _always_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
