"""Run a task on a worker of a cluster: check its software, take one thread, compute."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from esscher.core.errors import InputError
from esscher.runs.executors import asked_threads, call_alone, use_threads
from esscher.runs.provenance import versions


def call(expected: dict[str, str | None], function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a task on a worker.

    Parameters
    ----------
    expected
        Versions of the software where the run is stored.
    function, arguments
        The task.

    Returns
    -------
    Any
        The result.

    Raises
    ------
    InputError
        If other versions are installed here: results could differ from those of a local run.
    """
    here = versions()
    if here != expected:
        differences = ", ".join(
            f"{name} {here.get(name)} instead of {wanted}"
            for name, wanted in expected.items()
            if here.get(name) != wanted
        )
        raise InputError(
            f"the worker on {socket.gethostname()} has {differences}; install the same versions on "
            "all machines of the cluster"
        )
    # Dask's nanny says 1; a worker without a nanny would take all cores for every task.
    use_threads(asked_threads() or 1)
    return call_alone(function, *arguments)


def keep(value: Any) -> Any:
    """Hold a value that many tasks take; the cluster moves it to each worker once."""
    return value
