"""``esscher schema``: what the files of a run must look like."""

from __future__ import annotations

import click

from esscher.cli.printing import print_json
from esscher.runs.registry import schema_named


@click.command()
@click.argument("kind", metavar="KIND")
def schema(kind: str) -> None:
    """Print the JSON Schema of the files of a run.

    KIND is the kind that `esscher ls` shows, such as probe or plan. The definitions are named after
    the files: config, cell and results.

    \b
    Example:
      esscher schema plan > plan.schema.json
    """  # noqa: D301 - click's mark for verbatim lines
    print_json(schema_named(kind))
