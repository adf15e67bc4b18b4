"""How long a context each head of a decoder uses."""

from __future__ import annotations

from esscher.runs.study import function_of
from esscher.studies.context.study import ContextStudy

context = function_of(ContextStudy)
