"""Figures as files: whole or not at all, and the same bytes for the same numbers."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

from matplotlib.figure import Figure

from esscher.core.atomic import write_atomically
from esscher.core.errors import InputError
from esscher.show.style import DPI, context

FORMATS = (".png", ".svg", ".pdf")
#: A picture of more dots on a side than this is a mistake, and takes gigabytes.
LARGEST = 20_000
#: Dots per inch of colour bars, which are pictures in vectors too.
VECTOR = 300
#: What would make two files of the same figure differ.
_DATES = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def check_format(path: Path, option: str = "figure") -> str:
    """The ending of a figure's file, in small letters; one that is no format is refused."""
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise InputError(f"{option} {path}: the name must end in {', '.join(FORMATS)}")
    return ending


def figure_bytes(figure: Figure, ending: str, dpi: float = DPI) -> bytes:
    """Contents of a figure's file.

    Parameters
    ----------
    figure
        Any figure that ``esscher.show`` draws.
    ending
        ``".png"``, ``".svg"`` or ``".pdf"``.
    dpi
        Dots per inch of a PNG; vectors have none.
    """
    longest = float(max(figure.get_size_inches()))
    if ending == ".png" and longest * dpi > LARGEST:
        raise InputError(
            f"a picture of {longest:.3g} inches at {dpi:g} dots per inch has more than "
            f"{LARGEST:,} dots on a side; take fewer (--dpi), or .svg or .pdf"
        )
    picture = io.BytesIO()
    dots = dpi if ending == ".png" else VECTOR
    with context(), warnings.catch_warnings():
        # a name in a script that the font does not have: boxes in its place, and no alarm
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        figure.savefig(picture, format=ending[1:], dpi=dots, metadata=_DATES[ending])
    return picture.getvalue()


def write_figure(figure: Figure, path: Path, dpi: float = DPI) -> None:
    """Write a figure in the format of its name's ending; the directory is made if need be."""
    data = figure_bytes(figure, check_format(path), dpi)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
