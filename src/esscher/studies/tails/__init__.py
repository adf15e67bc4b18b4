"""Is the sub-Gaussian assumption true? Tails of tokens, keys and logits of real models."""

from __future__ import annotations

from esscher.runs.study import function_of
from esscher.studies.tails.study import TailsStudy

tails = function_of(TailsStudy)
