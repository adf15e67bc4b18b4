"""Files that may come from anybody: read within limits, or refused with a reason.

Everything that Esscher reads and did not write itself a moment ago goes through here: regular files
only, of bounded size; JSON of bounded depth and number of values; arrays and tables whose size is
known before memory is taken for them. ``tests/fuzz/test_registry.py`` sees to it that no other
place calls the parsers.
"""

from __future__ import annotations

from esscher.core.shown import printable, shortened
from esscher.core.untrusted import limits
from esscher.core.untrusted.arrays import map_array
from esscher.core.untrusted.documents import parse_json, read_json
from esscher.core.untrusted.guard import bounded, foreign
from esscher.core.untrusted.regular import (
    append_line,
    check_folder,
    open_regular,
    open_regular_for_writing,
    read_file,
)
from esscher.core.untrusted.tables import first_line, read_table

__all__ = [
    "append_line",
    "bounded",
    "check_folder",
    "first_line",
    "foreign",
    "limits",
    "map_array",
    "open_regular",
    "open_regular_for_writing",
    "parse_json",
    "printable",
    "read_file",
    "read_json",
    "read_table",
    "shortened",
]
