"""One replicate as a Parquet file that can tell whether it is whole.

Columns: replicate, scale (its place in the list), alpha, n, and the errors mean, cov, map (NaN at
the sizes above the last of a replicate that a precision made end early). The schema's metadata
carry the configuration's hash and a checksum of the columns.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from esscher.core.errors import InputError
from esscher.core.untrusted import parse_json, read_table
from esscher.core.validation import Array
from esscher.runs.folder import SWEEP
from esscher.runs.schema import check
from esscher.studies.sweep.measure import METRICS

#: Version of the layout of a run directory; another one is refused.
SCHEMA = 1
_KEY = b"esscher"


@dataclass(frozen=True, eq=False)
class Part:
    """The errors of one replicate, axes [metric, scale, size], and what measured them.

    A replicate that ends before the largest size has ``nan`` from there on.
    """

    replicate: int
    errors: Array
    versions: dict[str, str | None]
    seconds: float

    @property
    def depth(self) -> int:
        """Number of sizes at which it was measured."""
        return int(np.isfinite(self.errors[0, 0]).sum())


@dataclass(frozen=True)
class PartLayout:
    """What every part of a run has in common."""

    scales: tuple[float, ...]
    sizes: tuple[int, ...]
    configuration: str

    def encode(self, part: Part) -> bytes:
        """Return the contents of a part's file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = self._columns(part)
        about = {
            "schema": SCHEMA,
            "configuration": self.configuration,
            "replicate": part.replicate,
            "sha256": _checksum(columns),
            "versions": part.versions,
            "seconds": part.seconds,
        }
        table = pa.table({name: pa.array(column) for name, column in columns.items()})
        table = table.replace_schema_metadata({_KEY: json.dumps(about).encode()})
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        return buffer.getvalue()

    def decode(self, data: bytes, replicate: int, place: str) -> Part:
        """Read a part back.

        Raises
        ------
        InputError
            If the file is truncated, corrupt or not of this run; ``place`` names it.
        """
        try:
            table = read_table(data, place)
            about = parse_json((table.schema.metadata or {})[_KEY], place)
            check(about, SWEEP, "part", place)
            columns = {name: np.asarray(table[name].to_numpy()) for name in table.column_names}
            shape = len(METRICS), len(self.scales), len(self.sizes)
            errors = np.stack([columns[metric] for metric in METRICS]).reshape(shape)
            part = Part(replicate, errors, about["versions"], float(about["seconds"]))
            stored = about["schema"], about["configuration"], about["replicate"], about["sha256"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            reason = reason.removeprefix(f"{place} is damaged: ")
            raise _damaged(place, replicate, f"it cannot be read: {reason}") from error
        if stored[0] != SCHEMA:
            raise _damaged(place, replicate, f"its layout is version {stored[0]}, not {SCHEMA}")
        if stored[1] != self.configuration:
            raise _damaged(place, replicate, "it belongs to another configuration")
        if stored[2] != replicate:
            raise _damaged(place, replicate, f"it holds replicate {stored[2]}")
        expected = self._columns(part)
        same = expected.keys() == columns.keys() and all(
            expected[name].dtype == columns[name].dtype for name in expected
        )
        if not same or _checksum(columns) != stored[3] or _checksum(expected) != stored[3]:
            raise _damaged(place, replicate, "its numbers do not match its checksum")
        return part

    def _columns(self, part: Part) -> dict[str, np.ndarray[Any, Any]]:
        scales, sizes = len(self.scales), len(self.sizes)
        return {
            "replicate": np.full(scales * sizes, part.replicate, dtype=np.int64),
            "scale": np.repeat(np.arange(scales, dtype=np.int64), sizes),
            "alpha": np.repeat(np.asarray(self.scales, dtype=np.float64), sizes),
            "n": np.tile(np.asarray(self.sizes, dtype=np.int64), scales),
        } | {
            metric: np.asarray(part.errors[i], dtype=np.float64).ravel()
            for i, metric in enumerate(METRICS)
        }


def _checksum(columns: dict[str, np.ndarray[Any, Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(columns):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(columns[name]).tobytes())
    return digest.hexdigest()


def _damaged(place: str, replicate: int, reason: str) -> InputError:
    return InputError(
        f"{place} is damaged: {reason}; delete this file and run the same command again, "
        f"which recomputes replicate {replicate} and keeps all others"
    )
