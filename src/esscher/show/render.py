"""Pages as one HTML file: template, data, charts, scripts, and a policy that lets nothing else run.

A page holds Vega, Vega-Lite and Vega's interpreter of expressions (``page/vendor``), so that it
loads nothing and a policy without ``unsafe-eval`` holds. Charts have the same specifications as in
files; colours of ``theme`` become variables of the style sheet, for light, dark and print.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from esscher import __version__
from esscher.core.errors import InputError
from esscher.show.content import Page
from esscher.show.theme import LEGENDS, PICK, SHADES, VARIABLES, config, specification

if TYPE_CHECKING:
    from altair.typing import ChartType


LIBRARIES = ("vega.min.js", "vega-lite.min.js")
CHART_SCRIPTS = ("when.js", "charts/layout.js", "charts/draw.js")
#: Colours on a dark ground, by the name of their variable.
DARK = {
    "blue": "#4AA8E0",
    "orange": "#F2853A",
    "green": "#2FC79B",
    "purple": "#DD8FBD",
    "gold": "#F0B429",
    "sky": "#8ED0F7",
    "olive": "#D6C52E",
    "ink": "#E7E5E1",
    "grey": "#9AA1AC",
    "pale": "#8A919C",
    "grid": "#2F343D",
    "panel": "#1A1D23",
    **dict(
        zip(
            (f"shade-{i}" for i in range(len(SHADES))),
            (
                "#355F8D",
                "#2D708E",
                "#25838E",
                "#1E978A",
                "#25AB82",
                "#44BF70",
                "#70CF57",
                "#9BD93C",
                "#CAE11F",
                "#FDE725",
            ),
            strict=True,
        )
    ),
}
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
    spec: Any = chart
    # who picks a cell by the arrow keys must reach the chart
    picks = any(param.name == PICK for param in _given(spec.params) or ())
    role = 'tabindex="0" role="application"' if picks else 'role="img"'
    note = _given(spec.title.subtitle)
    caption = f'<p class="chart-note">{escape(note)}</p>' if note else ""
    # nearly the room that it will take, so that charts further down are drawn when they are seen
    figures = spec.vconcat if hasattr(spec, "vconcat") else [spec]
    rows = [panel for part in figures for panel in part.concat[:: part.columns]]
    height = 1.5 * sum(float(panel.height) + 40 for panel in rows)
    return Markup(
        f'<div class="chart" data-chart="{escape(name)}" {role} '
        f'style="min-height: {height:.0f}px" aria-label="{escape(description)}"></div>{caption}'
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
        # columns name every field once: a third of the size of rows
        for key, rows in spec["datasets"].items():
            fields_of = dict.fromkeys(field for row in rows for field in row)
            columns = {field: [row.get(field) for row in rows] for field in fields_of}
            spec["datasets"][key] = columns
        specs[name] = spec
    style = config()
    style["legend"]["layout"] = LEGENDS
    return as_data(_themed({"config": style | {"background": None}, "charts": specs}))


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
def script(*names: str) -> str:
    """Return parts of the page's script as one that can stand in a page."""
    body = "\n".join(_asset(name) for name in names)
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


#: Marks our own files, so that nothing else is overwritten.
GENERATOR = "Esscher report"
#: Largest size of a report, in bytes.
LARGEST = 8_000_000
SCRIPTS = ("numbers.js", "dom.js", "when.js", "tables.js", "picked.js", "start.js")


def render(pages: Sequence[Page], title: str) -> bytes:
    """Return one HTML file.

    Raises
    ------
    InputError
        If it is too large.
    """
    shown, data, charts = [], {}, {}
    for number, page in enumerate(pages, start=1):
        parts = []
        for k, part in enumerate(page.parts, start=1):
            name, drawn = f"part-{number}-{k}", None
            if part.table is not None:
                data[name] = part.table
            else:
                charts[name] = part.chart
                drawn = place(name, part.chart, f"{part.title}. {part.caption}")
            parts.append(vars(part) | {"id": name, "place": drawn})
        shown.append(vars(page) | {"id": number, "parts": parts})
    scripts = [*([library(), script(*CHART_SCRIPTS)] if charts else []), script(*SCRIPTS)]
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    # What is marked as markup are files of ours or of Vega, and data without any markup in it.
    text = environment.from_string(_asset("report.html.jinja")).render(
        pages=shown,
        title=title,
        policy=policy(*scripts),
        generator=f"{GENERATOR} {__version__}",
        version=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        style=Markup(_asset("report.css") + (chart_style() if charts else "")),
        data=Markup(as_data(data)),
        charts=Markup(chart_data(charts)) if charts else "",
        scripts=[Markup(body) for body in scripts],
    )
    html = text.encode("utf-8", "replace")
    if len(html) > LARGEST:
        raise InputError(
            f"the report would have {len(html) / 1e6:.1f} MB, and at most {LARGEST / 1e6:.0f} are "
            "allowed; report fewer runs at a time, or runs of fewer layers and heads"
        )
    return html


def as_data(value: Any) -> str:
    """JSON that can stand in a page: nothing in it can end the element or open another."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text
