"""From pages to one HTML file: template, data, scripts, and a policy that lets nothing else run."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from esscher import __version__
from esscher.core.errors import InputError
from esscher.show.content import Bars, Chart, Drawn, Explorer, Grid, Page, Part, Plot, Table
from esscher.show.embed import chart_data, chart_style, library, place, policy
from esscher.show.embed import script as chart_script

#: Marks our own files, so that nothing else is overwritten.
GENERATOR = "Esscher report"
#: Largest size of a report, in bytes.
LARGEST = 8_000_000
#: Significant digits of numbers in the page.
DIGITS = 6
#: Fields that the template shows, or that only matter before.
NOT_DATA = ("importance", "caption", "curve_caption", "description")
#: plotly.js, the part of it for plane charts: a third of the whole, and it starts faster.
PLOTLY = "vendor/plotly-cartesian.min.js"
SCRIPTS = (
    "numbers.js", "dom.js", "views.js", "charts.js", "tables.js", "explorer.js",
    "picked.js", "start.js",
)  # fmt: skip


def render(pages: list[Page], title: str) -> bytes:
    """One HTML file; if it would be too large, with curves of fewer heads.

    Raises
    ------
    InputError
        If it is too large without any curves.
    """
    kept = 1.0
    while True:
        data = _html([_thinned(page, kept) for page in pages], title)
        if len(data) <= LARGEST:
            return data
        if kept == 0:
            raise InputError(
                f"the report would have {len(data) / 1e6:.1f} MB, and at most "
                f"{LARGEST / 1e6:.0f} are allowed; report fewer runs at a time"
            )
        kept = 0.5 * kept if kept > 0.02 else 0.0


def as_data(value: Any) -> str:
    """JSON that can stand in a page: nothing in it can end the element or open another."""
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _html(pages: list[Page], title: str) -> bytes:
    shown: list[dict[str, Any]] = []
    data: dict[str, Any] = {}
    charts: dict[str, Any] = {}
    for number, page in enumerate(pages, start=1):
        parts = []
        for k, part in enumerate(page.parts, start=1):
            name = f"part-{number}-{k}"
            about = _about(page, part) | {"id": name}
            if isinstance(part, Drawn):
                charts[name] = part.chart
                about["place"] = place(name, part.chart, f"{part.title}. {part.caption}")
            elif part.part != "prose" and not about.get("of_explorer"):
                data[name] = part
            parts.append(about)
        whole = {field.name: getattr(page, field.name) for field in fields(page)}
        shown.append(whole | {"id": number, "parts": parts})
    older = any(isinstance(part, Chart | Explorer) for page in pages for part in page.parts)
    scripts = [_plotly()] if older else []
    scripts += [library(), chart_script()] if charts else []
    scripts.append(_script())
    # What is marked as markup are files of ours or of plotly, and data without any markup in it.
    text = _template().render(
        pages=shown,
        title=title,
        policy=policy(*scripts),
        generator=f"{GENERATOR} {__version__}",
        version=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        style=Markup(_asset("report.css") + (chart_style() if charts else "")),
        data=Markup(as_data(data)),
        charts=Markup(chart_data(charts)) if charts else "",
        scripts=[Markup(script) for script in scripts],
    )
    return text.encode("utf-8", "replace")


def _about(page: Page, part: Part) -> dict[str, Any]:
    """What the template needs to know about a part."""
    about: dict[str, Any] = {"title": part.title, "part": part.part}
    if isinstance(part, Chart):
        words = part.description or describe(part)
        return about | {"caption": part.caption, "height": part.height, "description": words}
    if isinstance(part, Drawn):
        return about | {"caption": part.caption}
    if isinstance(part, Table):
        return about | {"caption": part.caption, "of_explorer": _listed(page, part)}
    if isinstance(part, Explorer):
        return about | {
            "caption": part.caption, "unit": part.unit, "curve_caption": part.curve_caption,
        }  # fmt: skip
    return about | {"paragraphs": part.paragraphs}


def _listed(page: Page, table: Table) -> bool:
    """Whether a table is the one of the page's explorer: then both are one."""
    return any(isinstance(part, Explorer) and part.table is table for part in page.parts)


def _thinned(page: Page, share: float) -> Page:
    """A page with the curves of this share of its heads, the most important ones."""
    if share == 1:
        return page
    parts: list[Part] = []
    for part in page.parts:
        if isinstance(part, Explorer):
            order = list(part.importance) or list(range(len(part.curves)))
            kept = set(order[: math.ceil(share * len(order))])
            note = (
                f" This page has the curves of {len(kept):,} of {len(order):,}: with all of them "
                "it would be too large."
            )
            curves = [curve if i in kept else {} for i, curve in enumerate(part.curves)]
            parts.append(replace(part, curves=curves, caption=part.caption + note))
        else:
            parts.append(part)
    return replace(page, parts=parts)


def describe(chart: Chart) -> str:
    """A chart in words."""
    words = []
    for view in chart.views:
        if isinstance(view, Grid):
            words.append(
                f"Heatmap of {view.name}, {view.row_title} by {view.column_title}, "
                f"{len(view.rows)} by {len(view.columns)} cells."
            )
        elif isinstance(view, Bars):
            words.append(
                f"Bars of {view.y.title} for {_listing(view.categories)}; "
                f"{_listing([s.name for s in view.series])}."
            )
        elif isinstance(view, Plot):
            words.append(
                f"{view.name}: {view.y.title} against {view.x.title}; "
                f"{_listing([s.name for s in view.series])}."
            )
    return f"{chart.title}. {' '.join(words[:3])} The numbers are under Data of this chart."


def _listing(names: Any) -> str:
    some = [str(name) for name in names]
    return ", ".join(some[:8]) + (f" and {len(some) - 8} more" if len(some) > 8 else "")


def _plain(value: Any) -> Any:
    """Dataclasses as dictionaries, numbers with few digits, None for what JSON cannot hold."""
    if isinstance(value, float | np.floating):
        number = float(value)
        return float(f"{number:.{DIGITS}g}") if math.isfinite(number) else None
    if isinstance(value, np.integer | np.bool_):
        return value.item()
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        kept = (field.name for field in fields(value) if field.name not in NOT_DATA)
        return {name: _plain(getattr(value, name)) for name in kept}
    return value


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(_asset("report.html.jinja"))


@cache
def _asset(name: str) -> str:
    return (files("esscher.show") / "page" / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    body = "\n".join(_asset(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}\n}})();'


@cache
def _plotly() -> str:
    return _asset(PLOTLY).replace("</script", "<\\/script")
