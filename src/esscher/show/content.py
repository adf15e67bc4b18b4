"""The contents of a page, and the charts that a study offers by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from esscher.core.atomic import write_output
from esscher.core.errors import InputError
from esscher.show.theme import DOUBLE, SINGLE, layout, specification

if TYPE_CHECKING:
    from altair.typing import ChartType


@dataclass(frozen=True, eq=False)
class Part:
    """A section of a page: a chart or a table.

    Attributes
    ----------
    title, caption
        Above and below it.
    chart
        Altair's chart.
    table
        The table as ``page/tables.js`` takes it: see ``TableView.content``.
    lead, paragraphs
        Text above and below a chart: how a paragraph begins, and the rest of it.
    """

    title: str
    caption: str = ""
    chart: Any = None
    table: Mapping[str, Any] | None = None
    lead: Sequence[tuple[str, str]] = ()
    paragraphs: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Page:
    """The page of one run: what its study says about the result, and where it comes from.

    Attributes
    ----------
    name, subject
        The kind of study in words, and what was measured, in a line.
    answer
        The headline of the result.
    parts
        Charts and tables in their order.
    title
        Name of the run.
    complete
        Whether the run is.
    provenance
        Pairs (name, value).
    command, command_note
        Command that reproduces the run, None if there is none; and what is to be known about it.
    configuration
        The stored configuration as JSON.
    """

    name: str
    subject: str
    answer: str
    parts: Sequence[Part]
    title: str = ""
    complete: bool = True
    provenance: Sequence[tuple[str, str]] = ()
    command: str | None = None
    command_note: str = ""
    configuration: str = ""


# Charts as files, whole or not at all.


FORMATS = (".png", ".svg", ".pdf")
COLUMNS = {"single": SINGLE, "double": DOUBLE}
#: Narrowest and widest chart, in inches.
NARROW, WIDE = 2.0, 20.0
#: Dots per inch of a PNG unless others are asked for.
DPI = 200.0
#: A picture of more dots on a side than this is a mistake, and takes gigabytes.
LARGEST = 20_000
#: Points per inch.
INCH = 72.0
#: Most heads that one chart shows side by side.
MOST = 24


@dataclass(frozen=True)
class Drawing:
    """A chart that the results of a study offer.

    Attributes
    ----------
    name, about
        By which it is asked for, and what it shows in one line.
    draw
        Takes the result, and ``heads`` if they can be chosen; returns the chart.
    heading, caption
        Above and below it in the report; without a heading it is not in the report.
    heads
        Whether heads can be chosen.
    missing
        Takes the result, and says why there is nothing to draw; None if there is.
    """

    name: str
    about: str
    draw: Callable[..., ChartType]
    heading: str = ""
    caption: str = ""
    heads: bool = False
    missing: Callable[[Any], str | None] = lambda result: None


@dataclass(frozen=True, eq=False)
class Plot:
    """A chart of a result: notebooks show it, ``save`` writes it.

    Attributes
    ----------
    chart
        Altair's chart, of no particular width.
    """

    chart: ChartType

    def save(self, path: str | Path, *, width: float | str = "double", dpi: float = DPI) -> Path:
        """Write it in the format of the path's ending; directories are made if need be.

        Parameters
        ----------
        path
            The file: ``.png``, ``.svg`` or ``.pdf``.
        width
            ``"single"`` or ``"double"`` column of a paper (3.4 and 7 inches), or inches.
        dpi
            Dots per inch of a PNG.

        Raises
        ------
        InputError
            If the ending is no format, the width is out of range, or the file cannot be written;
            then nothing is written.
        """
        place = Path(path)
        write_output(place, chart_bytes(self.chart, check_ending(place), width=width, dpi=dpi))
        return place

    def to_dict(self) -> dict[str, Any]:
        """Return the Vega-Lite specification."""
        return specification(self.chart)

    def _repr_svg_(self) -> str:
        return chart_bytes(self.chart, ".svg").decode()


def offered(drawings: Sequence[Drawing], result: Any) -> list[Drawing]:
    """Return the charts that a result offers, the main one first."""
    return [drawing for drawing in drawings if drawing.missing(result) is None]


def draw(
    drawings: Sequence[Drawing],
    result: Any,
    name: str | None = None,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    title: str | None = None,
) -> Plot:
    """Draw one of a study's charts: the main one unless named; see ``Result.plot``."""
    known = {drawing.name: drawing for drawing in drawings}
    drawing = known.get(drawings[0].name if name is None else name)
    if drawing is None:
        names = ", ".join(known)
        raise InputError(f"there is no chart {name!r} of this result; choose from {names}")
    if heads is not None and not drawing.heads:
        names = ", ".join(other.name for other in drawings if other.heads)
        remedy = f"that is for {names}" if names else "leave them out"
        raise InputError(f"the chart {drawing.name!r} takes no heads; {remedy}")
    reason = drawing.missing(result)
    if reason is not None:
        raise InputError(f"there is no chart {drawing.name!r} of this result: {reason}")
    chart = drawing.draw(result) if heads is None else drawing.draw(result, heads=list(heads))
    if title is not None:  # an empty one is none; its note stays
        titled: Any = chart.copy()
        titled.title.text = title
        chart = cast("ChartType", titled)
    return Plot(chart)


def check_heads(wanted: Sequence[tuple[int, int]], there: Sequence[tuple[int, int]]) -> None:
    """Refuse heads that a run does not have."""
    if len(wanted) > MOST or not wanted:
        raise InputError(f"{len(wanted)} heads are asked for; draw 1 to {MOST} of them")
    for layer, head in wanted:
        if (layer, head) not in there:
            ranges = []
            for numbers in (sorted({pair[i] for pair in there}) for i in (0, 1)):
                first, last = numbers[0], numbers[-1]
                whole = len(numbers) == last - first + 1 > 2
                ranges.append(f"{first} to {last}" if whole else ", ".join(map(str, numbers)))
            raise InputError(
                f"there is no head {layer}.{head} in this run: it has layers {ranges[0]} and "
                f"heads {ranges[1]}; write LAYER.HEAD, such as {there[0][0]}.{there[0][1]}"
            )


def check_ending(path: Path, option: str = "figure") -> str:
    """Return the ending of a chart's file in small letters; one that is no format is refused."""
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise InputError(f"{option} {path}: the name must end in {', '.join(FORMATS)}")
    return ending


def chart_bytes(
    chart: ChartType, ending: str, *, width: float | str = "double", dpi: float = DPI
) -> bytes:
    """Return the contents of a chart's file; see :meth:`esscher.show.content.Plot.save`."""
    import vl_convert

    points = as_points(width)
    spec = layout(_printable(specification(chart)), points)
    svg = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
    size: Any = _SIZE.search(svg)
    # axes and legends made it a little wider or narrower than asked for
    height = float(size[2]) * points / float(size[1])
    if ending == ".svg":
        return _sized(svg, points, height, "pt").encode()
    drawn = _sized(svg, points, height)
    if ending == ".pdf":
        return bytes(vl_convert.svg_to_pdf(drawn))
    longest = max(points, height) / INCH
    if longest * dpi > LARGEST:
        raise InputError(
            f"a picture of {longest:.3g} inches at {dpi:g} dots per inch has more than "
            f"{LARGEST:,} dots on a side; take fewer (--dpi), or .svg or .pdf"
        )
    return bytes(vl_convert.svg_to_png(drawn, scale=dpi / INCH, ppi=INCH))


def as_points(width: float | str) -> float:
    """Return the points of ``"single"``, ``"double"``, or of a number of inches."""
    if isinstance(width, str) and width in COLUMNS:
        return COLUMNS[width]
    try:
        inches = float(width)
    except (TypeError, ValueError):
        inches = float("nan")
    if not NARROW <= inches <= WIDE:
        raise InputError(
            f"width is {width!r}; it must be single, double, or inches from {NARROW:g} to {WIDE:g}"
        )
    return INCH * inches


def _printable(value: Any) -> Any:
    """Somebody's text without characters that no SVG can hold."""
    if isinstance(value, dict):
        return {_printable(k): _printable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(v) for v in value]
    if not isinstance(value, str) or value.isprintable():
        return value
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in value)


_SIZE = re.compile(r' width="([0-9.]+)" height="([0-9.]+)"')
_NUMBERED = re.compile(r"\b(clip|gradient_)[0-9]+\b")


def _sized(svg: str, width: float, height: float, unit: str = "") -> str:
    """Return a drawing of another size; its parts are numbered from 1, not from the last one's."""
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return numbers.setdefault(match[0], f"{match[1]}{len(numbers) + 1}")

    size = f' width="{width:.2f}{unit}" height="{height:.2f}{unit}"'
    return _NUMBERED.sub(number, _SIZE.sub(size, svg, count=1))
