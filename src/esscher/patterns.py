"""Sparse attention patterns: which keys a query sees, with which weight."""

from esscher.engine.patterns import *  # noqa: F403 - its own __all__ says what
from esscher.engine.patterns import __all__ as __all__
