"""The command line: ``esscher COMMAND``."""

from __future__ import annotations

from esscher.cli.main import main

__all__ = ["main"]
