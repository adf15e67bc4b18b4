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

Whoever reaches a scheduler or a worker can run code there. Local clusters listen on this machine
alone. Job queues need a scheduler that nodes can reach; dashboards are off, and on this machine
alone if they are asked for. Dask's configuration may want TLS for either.
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

from esscher.core.errors import InputError
from esscher.core.untrusted import limits, parse_yaml, read_file, shortened
from esscher.runs.cluster import (
    INSTALL,
    TIMEOUT,
    Cluster,
    _quiet,
    closing,
    distributed_module,
)
from esscher.runs.encryption import cluster_security, for_jobs
from esscher.runs.executors import Say, first_line, say_nothing

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
#: Any free port that only this machine reaches.
NOWHERE_ELSE = "127.0.0.1:0"
#: Dask's settings of a scheduler that shows nothing: without a dashboard it would show other pages.
NO_PAGES: dict[str, Any] = {"distributed.scheduler.http.routes": []}
#: Dask's settings while a cluster of our own runs.
SETTINGS = {
    # These workers are ours alone: a deadly task need not kill four of them to be found out.
    "distributed.scheduler.allowed-failures": 1,
}


@dataclass(frozen=True)
class ClusterDescription:
    """A cluster, as a file describes it.

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
        raise InputError(
            f"{file}: the number of jobs is missing; give jobs, or minimum and maximum"
        )
    return ClusterDescription(kind, minimum, maximum, dict(options))


@contextmanager
def start_cluster(path: str | Path, say: Say = say_nothing) -> Iterator[Cluster]:
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
    with _quiet(), dask.config.set(SETTINGS):
        cluster = _made(factory, Path(path))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _scale(cluster, description)
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
            problem = f"{type(error).__name__}: {first_line(error)}"
    finally:
        sys.unraisablehook = hook
    raise InputError(f"the cluster of {path} cannot be started: {problem}; check its options")


def _scale(cluster: Any, description: ClusterDescription) -> None:
    """Ask for jobs; a local cluster calls them workers."""
    low, high = description.minimum, description.maximum
    local = description.kind == LOCAL
    if low == high:
        cluster.scale(**{"n" if local else "jobs": high})
    elif local:
        cluster.adapt(minimum=low, maximum=high)
    else:
        cluster.adapt(minimum_jobs=low, maximum_jobs=high)


def _factory(description: ClusterDescription, distributed: Any, path: Path) -> Callable[[], Any]:
    """Return the function that makes the cluster.

    Raises
    ------
    InputError
        If a package is missing, or TLS is wanted and its certificates cannot be used.
    """
    options = dict(description.options)
    if "security" not in options:
        security = cluster_security(options.get("protocol"))
        if security is not None:
            options["security"] = security if description.kind == LOCAL else for_jobs(security)
    if description.kind == LOCAL:
        arguments = _local_options(options)
        return lambda: _without_pages(
            distributed.LocalCluster, arguments, arguments["scheduler_kwargs"]
        )
    try:
        import dask_jobqueue
    except ImportError as error:
        raise InputError(
            f"{path}: a {description.kind} cluster needs the package dask-jobqueue; install it "
            f"with: {INSTALL}"
        ) from error
    chosen = getattr(dask_jobqueue, KINDS[description.kind])
    arguments = _job_options(options, chosen.job_cls.default_config_name())
    return lambda: _without_pages(chosen, arguments, arguments["scheduler_options"])


def _without_pages(chosen: Any, arguments: dict[str, Any], scheduler: dict[str, Any]) -> Any:
    """Make a cluster; its scheduler shows nothing on the web unless a dashboard is asked for."""
    import dask

    with dask.config.set({} if scheduler.get("dashboard", True) else NO_PAGES):
        return chosen(**arguments)


def _local_options(options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a ``LocalCluster`` that nobody outside of this machine can reach."""
    given: dict[str, Any] = {
        "n_workers": 0,
        "threads_per_worker": 1,
        "preload": ["esscher.runs.local_worker"],
    } | options
    scheduler = dict(given.get("scheduler_kwargs") or {})
    if "dashboard_address" in given:
        scheduler.setdefault("dashboard_address", given["dashboard_address"])
    given["scheduler_kwargs"] = _without_dashboard(scheduler)
    if given.get("processes") is False:
        # a worker in a thread has no host, and would take all of them
        given.setdefault("worker_dashboard_address", NOWHERE_ELSE)
    if given.get("worker_dashboard_address") is not None:
        given["worker_dashboard_address"] = on_this_machine(given["worker_dashboard_address"])
    return given


def _job_options(options: dict[str, Any], config_name: str) -> dict[str, Any]:
    """Arguments of a class of dask-jobqueue, on top of what Dask's configuration says."""
    import dask

    name = f"jobqueue.{options.get('config_name') or config_name}"
    scheduler = options.get("scheduler_options")
    if scheduler is None:
        scheduler = dask.config.get(f"{name}.scheduler-options", None)
    words = (
        options.get("worker_extra_args")
        or options.get("extra")
        or dask.config.get(f"{name}.worker-extra-args", None)
        or dask.config.get(f"{name}.extra", None)
    )
    return options | {
        "scheduler_options": _without_dashboard(dict(scheduler or {})),
        # the last of two equal options counts: what a user says
        "worker_extra_args": [
            "--no-dashboard",
            "--dashboard-address",
            NOWHERE_ELSE,
            *(words or []),
        ],
    }


def _without_dashboard(scheduler: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a scheduler: no dashboard unless one is asked for.

    Dask opens the port of a dashboard in any case, so it needs an address.
    """
    asked = scheduler.get("dashboard_address")
    if asked is None:
        return {"dashboard": False} | scheduler | {"dashboard_address": NOWHERE_ELSE}
    return scheduler | {"dashboard_address": on_this_machine(asked)}


def on_this_machine(address: Any) -> Any:
    """An address such as ``:8787`` or 8787, which means all networks, on this machine alone.

    One with a host is left as it is: somebody chose it.
    """
    text = str(address).strip()
    port = text.removeprefix(":")
    return f"127.0.0.1:{port}" if port.isascii() and port.isdigit() else address


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
