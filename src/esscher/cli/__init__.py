"""The command line: ``esscher COMMAND``."""

from __future__ import annotations

from esscher.cli.program import main

__all__ = ["main"]
