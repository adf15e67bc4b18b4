"""The navigation of the site, appended to the landing page when it is read.

The landing page stays plain Markdown that a forge shows as well. A page that is not named here
still appears, under "More", so that a new page is never lost.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
LANDING = "docs/index"
#: Pages that carry a list of further pages, and those pages: names as below.
CHAPTERS: dict[str, tuple[str, ...]] = {
    "docs/theory": (
        "docs/theory/heads",
        "docs/theory/limit",
        "docs/theory/one-query",
        "docs/theory/map-error",
        "docs/theory/mean-and-covariance",
        "docs/theory/constants",
        "docs/theory/exponents",
        "docs/theory/uniform-bounds",
        "docs/theory/hardmax",
        "docs/theory/one-pass",
        "docs/theory/budgets",
        "docs/theory/since-the-paper",
        "docs/theory/*",
    ),
}
#: Caption and pages, in order; a name with a star stands for all files that match it. Pages that do
#: not exist are passed over.
SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Start",
        (
            "docs/install",
            "docs/tour",
            "examples/first-steps",
            "examples/probe-to-plan",
            "examples/paper-figures",
            "examples/*",
        ),
    ),
    (
        "How to",
        (
            "docs/guides/my-model",
            "docs/guides/long-contexts",
            "docs/guides/cluster",
            "docs/guides/security",
        ),
    ),
    (
        "What it measures",
        (
            "docs/plan",
            "docs/cache",
            "docs/probe",
            "docs/predictions",
            "docs/sparse",
            "docs/deep",
            "docs/domains",
            "docs/tails",
            "docs/rates",
            "docs/results",
            "docs/report",
            "docs/paper",
            "docs/conventions",
        ),
    ),
    ("Theory", ("docs/theory", "docs/extreme-lengths", "docs/accuracy", "docs/related")),
    ("Findings", ("docs/findings",)),
    (
        "Reference",
        (
            "docs/reference/commands",
            "docs/command-line",
            "docs/reference/api/index",
            "docs/glossary",
        ),
    ),
    (
        "Extend it",
        (
            "docs/architecture",
            "docs/guides/add-a-study",
            "docs/guides/add-a-law",
            "docs/guides/add-a-pattern",
            "docs/guides/add-a-model-family",
            "docs/guides/*",
        ),
    ),
    ("Project", ("CONTRIBUTING", "SECURITY", "CHANGELOG")),
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
    found = [(caption, _listed(names, seen)) for caption, names in SECTIONS]
    found.append(("More", _listed(("docs/*",), seen)))
    return [(caption, section) for caption, section in found if section]


def chapters() -> dict[str, list[str]]:
    """The pages that are listed on other pages, by these."""
    return {page: _listed(names, {page}) for page, names in CHAPTERS.items()}


def _listed(names: tuple[str, ...], seen: set[str]) -> list[str]:
    """Existing pages of these names that have not been seen, in order."""
    section: list[str] = []
    for name in names:
        section += [page for page in _matching(name) if page not in seen]
        seen |= set(section)
    return section


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
    elif name in CHAPTERS:
        source[0] += _tree("Pages", chapters()[name])


def _always_read(app: Sphinx, env: object, *changes: set[str]) -> list[str]:
    """Pages made of more than their own file are read anew in every build."""
    return [LANDING, *CHAPTERS, "docs/reference/commands"]


def setup(app: Sphinx) -> dict[str, bool]:
    """Append the navigation to the pages that carry it."""
    app.connect("source-read", _append)
    app.connect("env-get-outdated", _always_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
