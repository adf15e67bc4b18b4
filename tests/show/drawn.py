"""Reading charts: their rows, and what is written in them."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from esscher.show.content import Plot, chart_bytes

#: The chart that was read last, and its specification: making that takes a third of a second.
_LAST: list[tuple[Plot, dict[str, Any]]] = []


def specification(chart: Plot) -> dict[str, Any]:
    """A chart's specification, made once while a test reads its panels; not to be changed."""
    if not _LAST or _LAST[0][0] is not chart:
        _LAST[:] = [(chart, chart.to_dict())]
    return _LAST[0][1]


def rows(chart: Plot, *fields: str) -> list[dict[str, Any]]:
    """Rows of a chart that have these fields."""
    datasets = specification(chart)["datasets"].values()
    return [row for data in datasets for row in unpacked(data) if all(f in row for f in fields)]


def unpacked(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a dataset; those of a cell that can be picked are lists in one row."""
    result = []
    for row in data:
        lists = {key: value for key, value in row.items() if isinstance(value, list)}
        for values in zip(*lists.values(), strict=True) if lists else [()]:
            result.append(row | dict(zip(lists, values, strict=True)))
    return result


def panel_rows(chart: Plot, number: int, *fields: str) -> list[dict[str, Any]]:
    """Rows of one panel that have these fields, those of several marks once."""
    spec = specification(chart)
    # data that all panels have in common stand above them
    names = dict.fromkeys(_names(spec["concat"][number]) or [spec["data"]["name"]])
    return [
        row
        for name in names
        for row in unpacked(spec["datasets"][name])
        if all(field in row for field in fields)
    ]


def texts(chart: Plot, width: str = "double") -> list[str]:
    """Everything that is written in a chart's file."""
    root = ElementTree.fromstring(chart_bytes(chart.chart, ".svg", width=width))
    return ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("}text")]


def _names(view: Any) -> list[str]:
    """Names of the data of a view."""
    if isinstance(view, list):
        return [name for part in view for name in _names(part)]
    if not isinstance(view, dict):
        return []
    own = [view["data"]["name"]] if "name" in view.get("data", {}) else []
    return own + [name for part in view.values() for name in _names(part)]
