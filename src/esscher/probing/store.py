"""The run directory of a probe: configuration, one part per cell, derived results.

A cell is a layer (pooled mode) or a passage (context mode). A part is a Parquet file with the raw
errors (layer, unit, metric, replicate, n, error) and a JSON file with everything else, which is
written last and carries the checksum of the first: a part is there when both are.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from esscher.atomic import clean_leftovers, write_atomically
from esscher.errors import InputError
from esscher.probing.layer import METRICS, LayerMeasurement
from esscher.sweep.folder import (
    CONFIG,
    LOG,
    PARTS,
    as_json,
    check_free,
    check_same,
    read_results,
    write_results,
)
from esscher.sweep.lock import LOCK, run_lock
from esscher.sweep.provenance import git_revision, versions

#: Version of the layout; another one is refused.
SCHEMA = 1
KIND = "probe"
_NAME = re.compile(r"[a-z]+-\d{1,9}")


@dataclass(frozen=True)
class ProbeRun:
    """A probe's directory, opened."""

    folder: Path
    about: dict[str, Any]

    @property
    def configuration(self) -> dict[str, Any]:
        """All that the results are a function of."""
        return dict(self.about["configuration"])

    def write_part(self, name: str, layers: list[LayerMeasurement]) -> None:
        """Store one cell."""
        data = _errors_table(layers)
        about = {
            "schema": SCHEMA,
            "cell": name,
            "sha256": hashlib.sha256(data).hexdigest(),
            "layers": [
                {
                    "layer": m.layer,
                    "heads": list(m.heads),
                    "sizes": list(m.sizes),
                    "shape": list(m.errors.shape),
                    "relative": m.relative.tolist(),
                    "reference_error": m.reference_error.tolist(),
                    "stats": m.stats,
                }
                for m in layers
            ],
        }
        write_atomically(self.folder / PARTS / f"{name}.parquet", data)
        write_atomically(self.folder / PARTS / f"{name}.json", as_json(about))

    def read_part(self, name: str) -> list[LayerMeasurement] | None:
        """One cell, or None if it is not there.

        Raises
        ------
        InputError
            If it is damaged.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        assert _NAME.fullmatch(name)
        paths = [self.folder / PARTS / f"{name}.{kind}" for kind in ("json", "parquet")]
        if not all(path.exists() for path in paths):
            return None
        try:
            about = json.loads(paths[0].read_bytes())
            data = paths[1].read_bytes()
            if about["schema"] != SCHEMA or hashlib.sha256(data).hexdigest() != about["sha256"]:
                raise ValueError("its checksum does not match")
            errors = np.asarray(pq.read_table(io.BytesIO(data))["error"].to_numpy())
            layers, start = [], 0
            for layer in about["layers"]:
                count = int(np.prod(layer["shape"]))
                layers.append(
                    LayerMeasurement(
                        layer=layer["layer"],
                        heads=tuple(layer["heads"]),
                        sizes=tuple(layer["sizes"]),
                        errors=errors[start : start + count].reshape(layer["shape"]),
                        relative=np.asarray(layer["relative"]),
                        reference_error=np.asarray(layer["reference_error"]),
                        stats=layer["stats"],
                    )
                )
                start += count
        except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(
                f"{paths[0]} is damaged ({error}); delete {name}.json and {name}.parquet and run "
                "the same command again, which recomputes them and keeps all others"
            ) from error
        return layers

    def write_results(self, results: dict[str, Any]) -> None:
        """Replace the derived results."""
        write_results(self.folder, results)

    def read_results(self) -> dict[str, Any] | None:
        """Derived results, if there are readable ones."""
        return read_results(self.folder)


@contextmanager
def open_probe(folder: Path, configuration: dict[str, Any]) -> Iterator[ProbeRun]:
    """Set up a probe's directory, or take up the one that is there, and hold its lock."""
    config = folder / CONFIG
    if not config.exists():
        check_free(folder, {LOCK, LOG, PARTS})
    try:
        (folder / PARTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create {folder / PARTS}: {error.strerror}") from error
    with run_lock(folder):
        clean_leftovers(folder)
        clean_leftovers(folder / PARTS)
        if config.exists():
            run = read_probe(folder)
            stored = json.loads(json.dumps(configuration))  # lists for tuples
            check_same(folder, run.configuration, stored)
        else:
            about = {
                "schema": SCHEMA,
                "kind": KIND,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "configuration": configuration,
                "versions": versions(),
                "git_revision": git_revision(),
            }
            write_atomically(config, as_json(about))
            run = ProbeRun(folder, about)
        yield run


def is_probe(folder: Path) -> bool:
    """Whether a directory holds the run of a probe."""
    try:
        return bool(json.loads((folder / CONFIG).read_bytes()).get("kind") == KIND)
    except (OSError, ValueError, AttributeError):
        return False


def read_probe(folder: Path) -> ProbeRun:
    """Open a probe's directory for reading."""
    config = folder / CONFIG
    try:
        about = json.loads(config.read_bytes())
        kind, schema = about["kind"], about["schema"]
        dict(about["configuration"])
    except FileNotFoundError as error:
        raise InputError(f"{folder} is not a run: it has no {CONFIG}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{config} is damaged ({error}); restore it, or choose another directory"
        ) from error
    if kind != KIND:
        raise InputError(f"{folder} holds a run of kind {kind!r}, not a probe")
    if schema != SCHEMA:
        raise InputError(
            f"{folder} has layout version {schema}; this version of Esscher reads {SCHEMA}"
        )
    return ProbeRun(folder, about)


def _errors_table(layers: list[LayerMeasurement]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for m in layers:
        metric, unit, replicate, size = (axis.ravel() for axis in np.indices(m.errors.shape))
        names = np.array([*(str(head) for head in m.heads), "layer"])
        columns: dict[str, Any] = {
            "layer": np.full(m.errors.size, m.layer, dtype=np.int64),
            "unit": names[unit],
            "metric": np.array(METRICS)[metric],
            "replicate": replicate.astype(np.int64),
            "n": np.asarray(m.sizes, dtype=np.int64)[size],
            "error": m.errors.ravel(),
        }
        tables.append(pa.table(columns))
    buffer = io.BytesIO()
    pq.write_table(pa.concat_tables(tables), buffer)
    return buffer.getvalue()
