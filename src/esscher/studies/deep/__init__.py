"""Deep stacks: how the sampling error of attention travels through layers."""

from __future__ import annotations

from esscher.runs.old_study import function_of
from esscher.studies.deep.result import Deep
from esscher.studies.deep.study import DeepStackStudy, DeepStudy

deep = function_of(DeepStudy)
deep_stack = function_of(DeepStackStudy)

__all__ = ["Deep", "DeepStackStudy", "DeepStudy", "deep", "deep_stack"]
