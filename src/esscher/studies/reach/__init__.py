"""How long a context the heads of a decoder can search, and at which scale of their logits."""

from __future__ import annotations

from esscher.runs.study import function_of
from esscher.studies.reach.result import Reach
from esscher.studies.reach.study import ReachStudy

reach = function_of(ReachStudy)

__all__ = ["Reach", "ReachStudy", "reach"]
