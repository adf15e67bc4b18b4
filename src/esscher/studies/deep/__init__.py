"""A model, or a stack of layers, that attends to n tokens in every layer."""

from __future__ import annotations

from esscher.runs.study import function_of
from esscher.studies.deep.study import DeepStackStudy, DeepStudy

deep = function_of(DeepStudy)
deep_stack = function_of(DeepStackStudy)
