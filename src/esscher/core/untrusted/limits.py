"""Limits for files from elsewhere, all in one place; ``docs/guides/security.md`` lists them.

Each limit is some twenty times what the largest models and texts have needed.
"""

from __future__ import annotations

MIB = 2**20

#: Bytes of config.json.
CONFIGURATION = 16 * MIB
#: Bytes of the file that a scheduler writes.
SCHEDULER = MIB
#: Bytes of results.json: 270 heads take 8 MB.
RESULTS = 256 * MIB
#: Bytes of one part of a run, each of its two files.
PART = 256 * MIB
#: Values (numbers, strings, lists, objects) of a JSON file; each takes about 64 bytes of memory.
VALUES = 16_000_000
#: Lists and objects inside each other.
DEPTH = 32
#: Characters of a string in a JSON file.
STRING = MIB
#: Largest absolute value of a whole number in a JSON file; larger ones are no float64 any more.
WHOLE = 10**300
#: Processor seconds, and bytes beyond those of this process, for programs and rules of a model.
SECONDS, MEMORY = 20, 4096 * MIB
#: Bytes, rows and columns of a table in memory.
TABLE, ROWS, COLUMNS = 1024 * MIB, 50_000_000, 64
#: Characters of a prompt, and bytes of text that a program of a model may return.
TEXT = 64 * MIB
