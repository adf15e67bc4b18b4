"""Files that may come from anybody: read within limits, or refused with a reason.

Everything that Esscher reads and did not write itself a moment ago goes through here: regular files
only, of bounded size; JSON of bounded depth and number of values; tables whose size is known
before memory is taken for them. No other place calls the parsers.
"""

from __future__ import annotations

from esscher.core.shown import printable, shortened
from esscher.core.untrusted import limits
from esscher.core.untrusted.files import (
    check_folder,
    first_line,
    open_regular,
    open_regular_for_writing,
    parse_json,
    read_file,
    read_json,
    read_table,
)
from esscher.core.untrusted.guard import bounded, foreign

__all__ = [
    "bounded",
    "check_folder",
    "first_line",
    "foreign",
    "limits",
    "open_regular",
    "open_regular_for_writing",
    "parse_json",
    "printable",
    "read_file",
    "read_json",
    "read_table",
    "shortened",
]
