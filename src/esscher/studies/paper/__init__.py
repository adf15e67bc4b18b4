"""The paper as a ledger of claims: ``paper()`` measures and judges all of them."""

from __future__ import annotations

from esscher.runs.old_study import function_of
from esscher.studies.paper.study import Paper, PaperStudy

__all__ = ["Paper", "PaperStudy", "paper"]

paper = function_of(PaperStudy)
