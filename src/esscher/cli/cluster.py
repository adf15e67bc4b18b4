"""Options of the commands that can run on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from esscher.cli.options import Command
from esscher.core.errors import InputError
from esscher.runs.cluster import Cluster, connect_cluster
from esscher.runs.cluster_file import start_cluster


def cluster_options(command: Command) -> Command:
    """Add the options that say on which cluster to run."""
    for option in (
        click.option(
            "--cluster",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="Start a cluster that this file describes (SLURM and others).",
        ),
        click.option(
            "--scheduler",
            metavar="ADDRESS",
            help="Run on this Dask cluster, such as tcp://host:8786 or tls://host:8786.",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def chosen_cluster(
    scheduler: str | None, cluster: Path | None, workers: int = 1
) -> Iterator[Cluster | None]:
    """The cluster that the options name, while it is needed; None for this machine.

    Parameters
    ----------
    scheduler, cluster
        What the options say.
    workers
        Number of local worker processes, which leave no work for a cluster.
    """
    if scheduler is None and cluster is None:
        yield None
        return
    if scheduler is not None and cluster is not None:
        raise InputError("--scheduler and --cluster are both given; choose one of them")
    name = "--cluster" if scheduler is None else "--scheduler"
    if workers > 1:
        raise InputError(
            f"--workers {workers} is for processes on this machine; leave it out with {name}"
        )

    def say(text: str) -> None:
        click.echo(text, err=True)

    if scheduler is not None:
        with connect_cluster(scheduler, say) as found:
            yield found
    elif cluster is not None:
        with start_cluster(cluster, say) as found:
            yield found
