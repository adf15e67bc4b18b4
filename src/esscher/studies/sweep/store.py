"""A run is a directory: configuration, raw errors per replicate, derived results.

``config.json``
    Written once the run is set up; what the errors are a function of, the request, provenance.
``limit.npz``
    Moments of the limit, so that a resumed run compares with the very same numbers.
``parts/000017.parquet``
    Raw errors of one replicate (see ``parts.py``): the source of truth.
``predictions.json``
    What theory predicts at the run's sizes; computed once, when the run is complete.
``results.json``, ``run.log``, ``lock``
    Derived summaries, a line a minute, and the lock of the process at work.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from esscher.core.atomic import clean_leftovers, write_atomically
from esscher.core.codec import as_json
from esscher.core.errors import InputError
from esscher.core.untrusted import (
    check_folder,
    limits,
    read_arrays,
    read_file,
    shortened,
)
from esscher.core.validation import as_sizes
from esscher.runs.folder import (
    CONFIG,
    LOG,
    PARTS,
    SWEEP,
    check_free,
    check_same,
    read_about,
    read_results,
    write_results,
)
from esscher.runs.lock import LOCK, run_lock
from esscher.runs.provenance import command, git_revision, versions
from esscher.runs.schema import read_checked
from esscher.studies.sweep.parts import SCHEMA, Part, PartLayout
from esscher.studies.sweep.predictions import ScalePrediction
from esscher.studies.sweep.reference import Reference

LIMIT, PREDICTIONS = "limit.npz", "predictions.json"
_PART_NAME = re.compile(r"(\d{6,})\.parquet")


@dataclass(frozen=True)
class Request:
    """How many replicates are wanted; may change from one start of a run to the next."""

    replicates: int
    precision: float | None = None
    max_replicates: int | None = None


@dataclass(frozen=True)
class Run:
    """A run directory, opened: reading and writing parts and results."""

    folder: Path
    configuration: dict[str, Any]
    about: dict[str, Any]

    @property
    def layout(self) -> PartLayout:
        """What every part has in common."""
        return PartLayout(
            tuple(self.configuration["scales"]),
            tuple(self.configuration["sizes"]),
            configuration_hash(self.configuration),
        )

    @property
    def request(self) -> Request:
        """What was asked for when the run was last started."""
        return Request(**self.about["request"])

    def part_paths(self) -> dict[int, Path]:
        """Files of the replicates that are there, in the order of their numbers."""
        found = {}
        for path in check_folder(self.folder, PARTS).glob("*.parquet"):
            match = _PART_NAME.fullmatch(path.name)
            if match:
                found[int(match[1])] = path
        return dict(sorted(found.items()))

    def read_parts(self, known: Mapping[int, Part] | None = None) -> dict[int, Part]:
        """All replicates that are there, checked; those that are known are not read again."""
        layout, known = self.layout, known or {}
        return {
            replicate: known[replicate]
            if replicate in known
            else layout.decode(_part_bytes(path), replicate, str(path))
            for replicate, path in self.part_paths().items()
        }

    def write_part(self, part: Part) -> None:
        """Store one replicate."""
        path = self.folder / PARTS / f"{part.replicate:06d}.parquet"
        write_atomically(path, self.layout.encode(part))

    def write_results(self, results: dict[str, Any]) -> None:
        """Replace the derived results."""
        write_results(self.folder, results)

    def read_results(self) -> dict[str, Any] | None:
        """Derived results, if there are readable ones."""
        return read_results(self.folder, SWEEP)

    def write_predictions(self, predictions: Sequence[ScalePrediction]) -> None:
        """Store what theory says about this run."""
        stored = {
            "configuration": configuration_hash(self.configuration),
            "scales": [prediction.to_dict() for prediction in predictions],
        }
        write_atomically(self.folder / PREDICTIONS, as_json(stored))

    def read_predictions(self) -> tuple[ScalePrediction, ...] | None:
        """What theory says about this run; None if that is not there, or of another one.

        Raises
        ------
        InputError
            If the file is not what a sweep writes.
        """
        try:
            stored = read_checked(self.folder / PREDICTIONS, SWEEP, "predictions", limits.RESULTS)
        except FileNotFoundError:
            return None
        except InputError as error:
            raise InputError(
                f"{error}; delete {PREDICTIONS} and run the same command again with --predict"
            ) from error
        if stored["configuration"] != configuration_hash(self.configuration):
            return None
        sizes, scales = self.configuration["sizes"], self.configuration["scales"]
        if len(stored["scales"]) != len(scales) or any(
            len(errors) != len(sizes)
            for scale in stored["scales"]
            for errors in scale["errors"].values()
        ):
            raise InputError(
                f"{self.folder / PREDICTIONS} is damaged: it is not of {len(scales)} scales and "
                f"{len(sizes)} sizes; delete it and run the same command again with --predict"
            )
        return tuple(ScalePrediction.from_dict(scale) for scale in stored["scales"])


def configuration_hash(configuration: dict[str, Any]) -> str:
    """SHA-256 of a configuration."""
    return hashlib.sha256(json.dumps(configuration, sort_keys=True).encode()).hexdigest()


@contextmanager
def open_run(
    folder: Path,
    configuration: dict[str, Any],
    request: Request,
    reference: Callable[[], Reference],
) -> Iterator[tuple[Run, Reference]]:
    """Set up a run directory, or take up the one that is there, and hold its lock.

    Raises
    ------
    InputError
        If the directory is something else, belongs to another configuration (the message shows the
        difference), is damaged, or another process works on it.
    """
    config = folder / CONFIG
    # Computed before anything is created: a law without limit must not leave a directory behind.
    fresh = None
    if not config.exists():
        _check_new(folder)
        fresh = reference()
    try:
        check_folder(folder, PARTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create {folder / PARTS}: {error.strerror}") from error
    with run_lock(folder):
        clean_leftovers(folder)
        clean_leftovers(folder / PARTS)
        if config.exists():
            run = read_run(folder)
            check_same(folder, run.configuration, configuration)
            limits = _read_limit(run)
            if run.request != request:
                about = run.about | {"request": asdict(request), "command": command()}
                run = Run(folder, configuration, about)
                write_atomically(config, as_json(run.about))
        else:
            limits = reference() if fresh is None else fresh
            run = _create(folder, configuration, request, limits)
        yield run, limits


def read_run(folder: Path) -> Run:
    """Open a run directory for reading; no lock is needed, files are never half-written."""
    about = read_about(folder)
    if "kind" in about:
        raise InputError(f"{folder} holds a run of kind {shortened(about['kind'])}, not a sweep")
    schema, configuration = about["schema"], about["configuration"]
    as_sizes(configuration["sizes"], f"{folder / CONFIG}: sizes", smallest=1)
    if schema != SCHEMA:
        raise InputError(
            f"{folder} has layout version {schema}; this version of Esscher reads {SCHEMA}"
        )
    return Run(folder, configuration, about)


def _check_new(folder: Path) -> None:
    if any((folder / PARTS).glob("*.parquet")):
        raise InputError(
            f"{folder} holds replicates but no {CONFIG}; restore it, or choose a new directory"
        )
    check_free(folder, {LOCK, LOG, LIMIT, PARTS})


def _create(
    folder: Path, configuration: dict[str, Any], request: Request, limits: Reference
) -> Run:
    data = io.BytesIO()
    np.savez(
        data,
        means=limits.means,
        covariances=limits.covariances,
        methods=np.array(limits.methods),
        mean_error=limits.mean_error,
        cov_error=limits.cov_error,
    )
    write_atomically(folder / LIMIT, data.getvalue())
    about = {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "configuration": configuration,
        "request": asdict(request),
        "versions": versions(),
        "git_revision": git_revision(),
        "command": command(),
        "limit": {
            "methods": list(limits.methods),
            "notes": list(limits.notes()),
            "sha256": hashlib.sha256(data.getvalue()).hexdigest(),
        },
    }
    # Last: a directory with this file is a run, whatever happens next.
    write_atomically(folder / CONFIG, as_json(about))
    return Run(folder, configuration, about)


def _read_limit(run: Run) -> Reference:
    path = run.folder / LIMIT
    try:
        data = read_file(path, limits.ARRAYS, follow=False)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; restore it") from error
    if hashlib.sha256(data).hexdigest() != run.about.get("limit", {}).get("sha256"):
        raise InputError(
            f"{path} is damaged (its checksum differs from the one in {CONFIG}); restore it, "
            "or start the sweep in another directory"
        )
    names = ("means", "covariances", "methods", "mean_error", "cov_error")
    arrays = read_arrays(data, names, str(path))
    head, count = run.configuration["head"], len(run.configuration["scales"])
    wide = head["value_dim"]
    wanted: dict[str, tuple[int, ...]] = {
        "means": (count, wide), "covariances": (count, wide, wide), "methods": (count,),
        "mean_error": (count,), "cov_error": (count,),
    }  # fmt: skip
    for name, shape in wanted.items():
        if arrays[name].shape != shape:
            raise InputError(
                f"{path} is damaged: {name} has shape {arrays[name].shape}, not {shape}; restore "
                "it, or start the sweep in another directory"
            )
    return Reference(
        arrays["means"],
        arrays["covariances"],
        tuple(str(method) for method in arrays["methods"]),
        arrays["mean_error"],
        arrays["cov_error"],
    )


def _part_bytes(path: Path) -> bytes:
    try:
        return read_file(path, limits.PART, follow=False)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
