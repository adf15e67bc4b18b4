"""Charts in a page: the same specifications as in files, drawn by Vega in the reader's browser.

A page holds Vega, Vega-Lite and Vega's interpreter of expressions (``page/vendor``), so that it
loads nothing and a policy without ``unsafe-eval`` holds. Colours of ``theme`` become variables of
the style sheet: light, dark and print are a matter of the sheet alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from esscher.show.layout import LEGENDS, specification
from esscher.show.theme import PICK, SHADES, VARIABLES, config

if TYPE_CHECKING:
    from altair.typing import ChartType

LIBRARIES = ("vega.min.js", "vega-lite.min.js")
SCRIPTS = ("when.js", "charts/layout.js", "charts/draw.js")
#: Colours on a dark ground, by the name of their variable.
DARK = {
    "blue": "#4AA8E0", "orange": "#F2853A", "green": "#2FC79B", "purple": "#DD8FBD",
    "gold": "#F0B429", "sky": "#8ED0F7", "olive": "#D6C52E", "ink": "#E7E5E1", "grey": "#9AA1AC",
    "pale": "#8A919C", "grid": "#2F343D", "panel": "#1A1D23",
    **dict(zip(
        (f"shade-{i}" for i in range(len(SHADES))),
        ("#355F8D", "#2D708E", "#25838E", "#1E978A", "#25AB82", "#44BF70", "#70CF57", "#9BD93C",
         "#CAE11F", "#FDE725"),
        strict=True,
    )),
}  # fmt: skip
_IMPORT = re.compile(r"^import \{(.*?)\} from 'vega-util';$", re.MULTILINE)
_EXPORT = re.compile(r"^export \{ (\w+) as (\w+) \};$", re.MULTILINE)
_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)


def place(name: str, chart: ChartType, description: str) -> Markup:
    """Return the element in which a chart is drawn, with its note, and its numbers as a table.

    Parameters
    ----------
    name
        Of the chart, among those of :func:`chart_data`.
    chart
        The chart.
    description
        The chart in words, for those who do not see it.
    """
    about: Any = chart
    # who picks a cell by the arrow keys must reach the chart
    picks = any(param.name == PICK for param in _given(about.params) or ())
    role = 'tabindex="0" role="application"' if picks else 'role="img"'
    note = _given(about.title.subtitle)
    said = f'<p class="chart-note">{escape(note)}</p>' if note else ""
    # about the room that it will take, so that charts further down are drawn when they are seen
    figures = about.vconcat if hasattr(about, "vconcat") else [about]
    rows = [one for part in figures for one in part.concat[:: part.columns]]
    height = 1.5 * sum(float(one.height) + 40 for one in rows)
    return Markup(
        f'<div class="chart" data-chart="{escape(name)}" {role} '
        f'style="min-height: {height:.0f}px" aria-label="{escape(description)}"></div>{said}'
        f'<details data-chart="{escape(name)}"><summary>Data of this chart</summary>'
        '<div class="chart-data" tabindex="0"></div></details>'
    )


def chart_data(charts: Mapping[str, ChartType]) -> str:
    """Return the charts of a page and their style as JSON that can stand in a script element."""
    specs = {}
    for name, chart in charts.items():
        spec = specification(chart)
        # the page has a heading and one style for all
        del spec["config"], spec["title"]
        spec["datasets"] = {key: _columns(rows) for key, rows in spec["datasets"].items()}
        specs[name] = spec
    style = config()
    style["legend"]["layout"] = LEGENDS
    data = _themed({"config": style | {"background": None}, "charts": specs})
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def chart_style() -> str:
    """Return the style sheet of charts: values of the variables, light and dark."""

    def values(colours: Mapping[str, str]) -> str:
        return " ".join(f"--chart-{name}: {colour};" for name, colour in colours.items())

    light = values({name: colour for colour, name in VARIABLES.items()})
    dark = values(DARK)
    return (
        f":root {{ {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) "
        f"{{ :root:not([data-theme=light]) {{ {dark} }} }}\n"
        f"@media screen {{ :root[data-theme=dark] {{ {dark} }} }}\n"
        f"{_asset('charts/charts.css')}"
    )


@cache
def library() -> str:
    """Return Vega, Vega-Lite and the interpreter as one script."""
    parts = [_asset(f"vendor/{name}") for name in LIBRARIES]
    # the interpreter comes as a module, which a script in a page cannot import
    interpreter = _asset("vendor/vega-interpreter.js")
    interpreter, imports = _IMPORT.subn(r"const {\1} = vega;", interpreter)
    interpreter, exports = _EXPORT.subn(r"globalThis.\2 = \1;", interpreter)
    assert (imports, exports) == (1, 1)
    parts.append(f"(() => {{\n{interpreter}\n}})();")
    return _MAP.sub("", "\n".join(parts)).replace("</script", "<\\/script")


@cache
def script() -> str:
    """Return the script that draws the charts of a page; it needs the library before it."""
    body = "\n".join(_asset(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}\n}})();'


def policy(*scripts: str) -> str:
    """Return the content security policy of a page that runs these scripts and loads nothing."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'"
        for s in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns, which name every field once: a third of the size."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _given(value: Any) -> Any:
    """A property of a chart; None if it was not given."""
    return None if type(value).__name__ == "UndefinedType" else value


def _themed(value: Any) -> Any:
    """Put variables in the place of the theme's colours; rows of data stay as they are."""
    if isinstance(value, dict):
        return {k: v if k == "datasets" else _themed(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_themed(v) for v in value]
    if isinstance(value, str) and value in VARIABLES:
        return f"var(--chart-{VARIABLES[value]})"
    return value


@cache
def _asset(name: str) -> str:
    return (files("esscher.show") / "page" / name).read_text(encoding="utf-8")
