"""From pages to one HTML file: template, data, scripts, and a policy that lets nothing else run."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from esscher import __version__
from esscher.core.errors import InputError
from esscher.show.content import Drawn, Page
from esscher.show.embed import chart_data, chart_style, library, place, policy
from esscher.show.embed import script as chart_script

#: Marks our own files, so that nothing else is overwritten.
GENERATOR = "Esscher report"
#: Largest size of a report, in bytes.
LARGEST = 8_000_000
#: Significant digits of numbers in the page.
DIGITS = 6
SCRIPTS = ("numbers.js", "dom.js", "when.js", "tables.js", "picked.js", "start.js")


def render(pages: list[Page], title: str) -> bytes:
    """Return one HTML file.

    Raises
    ------
    InputError
        If it is too large.
    """
    data = _html(pages, title)
    if len(data) > LARGEST:
        raise InputError(
            f"the report would have {len(data) / 1e6:.1f} MB, and at most {LARGEST / 1e6:.0f} are "
            "allowed; report fewer runs at a time, or runs of fewer layers and heads"
        )
    return data


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
            about: dict[str, Any] = {"id": name, "title": part.title, "caption": part.caption,
                                     "place": None, "lead": (), "paragraphs": ()}  # fmt: skip
            if isinstance(part, Drawn):
                charts[name] = part.chart
                about["place"] = place(name, part.chart, f"{part.title}. {part.caption}")
                about |= {"lead": part.lead, "paragraphs": part.paragraphs}
            else:
                data[name] = part
            parts.append(about)
        whole = {field.name: getattr(page, field.name) for field in fields(page)}
        shown.append(whole | {"id": number, "parts": parts})
    scripts = [*([library(), chart_script()] if charts else []), _script()]
    # What is marked as markup are files of ours or of Vega, and data without any markup in it.
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
        kept = (field.name for field in fields(value) if field.name != "caption")
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
