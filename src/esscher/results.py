"""Types of results: what studies return, and what :func:`esscher.load` reads."""

from esscher.runs.old_result import Result
from esscher.studies.plan import Plan, PlanResult
from esscher.studies.sweep import Sweep

__all__ = [
    "Plan",
    "PlanResult",
    "Result",
    "Sweep",
]
