"""Charts as files, whole or not at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.core.errors import InputError
from esscher.show.theme import DOUBLE, SINGLE, layout, specification

if TYPE_CHECKING:
    from altair.typing import ChartType

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
