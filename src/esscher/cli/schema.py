"""``esscher schema``: what the files of a run must look like."""

from __future__ import annotations

import click

from esscher.cli.options import print_json
from esscher.runs.registry import STUDIES, schema_named
from esscher.runs.schema import KINDS, schema_of


@click.command()
@click.argument("kind", metavar="KIND", type=click.Choice([*KINDS, *STUDIES]))
def schema(kind: str) -> None:
    """Print the JSON Schema of the files of a kind of run.

    KIND is what `esscher ls` calls a run, such as probe or plan; or run (what all have in common),
    cloud (a token cloud) or experiment. Its parts are named after files: configuration, cell and
    results.

    \b
    Example:
      esscher schema plan > plan.schema.json
    """  # noqa: D301 - click's mark for verbatim lines
    print_json(schema_named(kind) if kind in STUDIES else schema_of(kind))
