"""The site must work from disk without a network: a build that refers to anything else fails."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

#: Elements and attributes by which a page loads something; links that a reader follows are no part.
LOADING = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "link": ("href",),
    "iframe": ("src",),
    "video": ("src", "poster"),
    "audio": ("src",),
    "source": ("src", "srcset"),
    "object": ("data",),
    "embed": ("src",),
    "use": ("href", "xlink:href"),
}
#: Relations of <link> that name an address without loading it.
NAMING = {"canonical", "alternate", "author", "license"}
REMOTE = re.compile(r"^\s*(https?:)?//", re.IGNORECASE)
REMOTE_STYLE = re.compile(
    r"url\(\s*['\"]?(?:https?:)?//|@import\s+['\"](?:https?:)?//", re.IGNORECASE
)


class _Page(HTMLParser):
    """Collects what a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "link" and set((values.get("rel") or "").split()) & NAMING:
            return
        for name in LOADING.get(tag, ()):
            value = values.get(name) or ""
            if REMOTE.match(value):
                self.found.append(f"<{tag} {name}={value!r}>")
        if REMOTE_STYLE.search(values.get("style") or ""):
            self.found.append(f"<{tag} style=...>")


def remote_resources(folder: Path) -> list[str]:
    """What the pages and style sheets of a folder load from a network, with the file's name."""
    found = []
    for path in sorted(folder.rglob("*.html")):
        page = _Page()
        page.feed(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(folder)}: {what}" for what in page.found]
    for path in sorted(folder.rglob("*.css")):
        for match in REMOTE_STYLE.finditer(path.read_text(encoding="utf-8")):
            found.append(f"{path.relative_to(folder)}: {match[0]}")
    return found


def _check(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        found = remote_resources(Path(app.outdir))
        if found:
            raise ExtensionError("pages load from the network:\n  " + "\n  ".join(found))


def setup(app: Sphinx) -> dict[str, bool]:
    """Check the pages when they are all written."""
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
