"""How long a context each head of a decoder uses."""

from __future__ import annotations

from esscher.runs.old_study import function_of
from esscher.studies.context.study import Context, ContextStudy

context = function_of(ContextStudy)

__all__ = ["Context", "ContextStudy", "context"]
