"""Clusters that are started for a run, from a description in a file: SLURM and others.

The file is YAML or JSON::

    kind: slurm            # or pbs, sge, lsf, htcondor, oar, moab, local
    jobs: 8                # or minimum and maximum: as many as there is work for
    options:               # handed to the class of dask-jobqueue, such as SLURMCluster
      queue: normal
      cores: 16
      processes: 16
      memory: 64GB
      walltime: "04:00:00"
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from esscher.errors import InputError
from esscher.runs.cluster import (
    INSTALL,
    TIMEOUT,
    Cluster,
    Say,
    _first_line,
    _nothing,
    _quiet,
    closing,
    distributed_module,
)
from esscher.untrusted import limits, parse_yaml, read_file, shortened

#: Classes of dask-jobqueue by what a file calls them.
KINDS = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "sge": "SGECluster",
    "lsf": "LSFCluster",
    "htcondor": "HTCondorCluster",
    "oar": "OARCluster",
    "moab": "MoabCluster",
}
#: Worker processes on this machine: to try a description, or for one large machine.
LOCAL = "local"
#: Jobs that a file may ask for.
MOST = 100_000


@dataclass(frozen=True)
class ClusterDescription:
    """What a file says about a cluster.

    Attributes
    ----------
    kind
        One of ``KINDS``, or ``"local"``.
    minimum, maximum
        Number of jobs (worker processes of a local cluster); the same for a fixed number.
    options
        Arguments of the cluster's class.
    """

    kind: str
    minimum: int
    maximum: int
    options: dict[str, Any] = field(default_factory=dict)


def read_description(path: str | Path) -> ClusterDescription:
    """Read and check the description of a cluster.

    Raises
    ------
    InputError
        If the file cannot be read or says something that cannot be used.
    """
    file = Path(path)
    content = _content(file)
    if not isinstance(content, dict):
        raise InputError(f"{file} must hold kind, jobs and options; see docs/guides/cluster.md")
    known = {"kind", "jobs", "minimum", "maximum", "options"}
    for name in content:
        if name not in known:
            raise InputError(
                f"{file}: {shortened(name)} is not known; it may hold {', '.join(sorted(known))} "
                "(arguments of the cluster's class belong under options)"
            )
    kind, options = content.get("kind"), content.get("options") or {}
    if not isinstance(kind, str) or (kind not in KINDS and kind != LOCAL):
        raise InputError(
            f"{file}: kind is {shortened(kind)}; it must be one of {', '.join([*KINDS, LOCAL])}"
        )
    if not isinstance(options, dict):
        raise InputError(f"{file}: options must be a mapping of names to values")
    if "jobs" in content:
        if "minimum" in content or "maximum" in content:
            raise InputError(f"{file}: give jobs, or minimum and maximum, not both")
        minimum = maximum = _count(content["jobs"], "jobs", 1, file)
    elif "maximum" in content:
        minimum = _count(content.get("minimum", 0), "minimum", 0, file)
        maximum = _count(content["maximum"], "maximum", max(1, minimum), file)
    else:
        raise InputError(f"{file}: say how many jobs: jobs, or minimum and maximum")
    return ClusterDescription(kind, minimum, maximum, dict(options))


@contextmanager
def start_cluster(path: str | Path, say: Say = _nothing) -> Iterator[Cluster]:
    """Start the cluster that a file describes, and end its jobs afterwards.

    Parameters
    ----------
    path
        The file.
    say
        Told what a user should know meanwhile.

    Raises
    ------
    InputError
        If the file cannot be used, a package is missing, or the cluster does not start.
    """
    description = read_description(path)
    distributed = distributed_module()
    import dask

    factory = _factory(description, distributed, Path(path))
    with (
        _quiet(),
        # These workers are ours alone: a deadly task need not kill four of them to be found out.
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
    ):
        cluster = _made(factory, Path(path))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if description.minimum == description.maximum:
                    _scale(cluster, description)
                else:
                    cluster.adapt(minimum=description.minimum, maximum=description.maximum)
            client = distributed.Client(cluster, timeout=TIMEOUT, set_as_default=False)
            with closing(client):
                yield Cluster(client, say)
        finally:
            with suppress(Exception, asyncio.CancelledError):
                cluster.close(timeout=TIMEOUT)


def _made(factory: Callable[[], Any], path: Path) -> Any:
    """Make the cluster's object, or say why it cannot be made."""
    hook = sys.unraisablehook
    # dask-jobqueue's half-made objects complain once more when they are thrown away
    sys.unraisablehook = lambda arguments: None
    try:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # such as for a dashboard's port that is taken
                return factory()
        except Exception as error:  # whatever a class makes of the arguments in the file
            problem = f"{type(error).__name__}: {_first_line(error)}"
    finally:
        sys.unraisablehook = hook
    raise InputError(f"the cluster of {path} cannot be started: {problem}; check its options")


def _scale(cluster: Any, description: ClusterDescription) -> None:
    if description.kind == LOCAL:
        cluster.scale(description.maximum)
    else:
        cluster.scale(jobs=description.maximum)


def _factory(description: ClusterDescription, distributed: Any, path: Path) -> Any:
    if description.kind == LOCAL:
        options: dict[str, Any] = {
            "n_workers": 0,
            "threads_per_worker": 1,
            "dashboard_address": ":0",
            "preload": ["esscher.runs.local_worker"],
        }
        return lambda: distributed.LocalCluster(**(options | description.options))
    try:
        import dask_jobqueue
    except ImportError as error:
        raise InputError(
            f"{path}: a {description.kind} cluster needs the package dask-jobqueue; install it "
            f"with: {INSTALL}"
        ) from error
    chosen = getattr(dask_jobqueue, KINDS[description.kind])
    options = {"scheduler_options": {"dashboard_address": ":0"}}
    return lambda: chosen(**(options | description.options))


def _content(file: Path) -> Any:
    distributed_module()  # brings the reader of YAML along
    try:
        return parse_yaml(read_file(file, limits.CLUSTER), str(file))  # JSON is YAML too
    except OSError as error:
        raise InputError(f"cannot read the cluster file {file}: {error.strerror}") from error


def _count(value: Any, name: str, smallest: int, file: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= MOST:
        raise InputError(
            f"{file}: {name} is {shortened(value)}; it must be a whole number of at least "
            f"{smallest}, and at most {MOST}"
        )
    return value
