"""The paper as a ledger of claims: ``paper()`` measures and judges all of them."""

from __future__ import annotations

from esscher.runs.study import function_of
from esscher.studies.paper.study import PaperStudy

__all__ = ["PaperStudy", "paper"]

paper = function_of(PaperStudy)
