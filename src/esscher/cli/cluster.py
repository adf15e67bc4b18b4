"""Options of commands that compute cells: on worker processes or a cluster."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from esscher.cli.printing import say
from esscher.runs.executors import CellExecutor, chosen_executor

#: Options that say on which cluster to run: names, and settings of click.
CLUSTER: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "--scheduler",
        {
            "metavar": "ADDRESS",
            "help": "Run on this Dask cluster, such as tcp://host:8786 or tls://host:8786.",
        },
    ),
)


def chosen_cluster(scheduler: str | None, workers: int = 1) -> AbstractContextManager[CellExecutor]:
    """Give whoever computes by the options, while it is needed; notices go to standard error."""
    return chosen_executor(workers, scheduler=scheduler, say=lambda text: say(text, err=True))
