"""Types of results: what studies return, and what :func:`esscher.load` reads."""

from esscher.runs.result import Comparison, HeadResult, Result
from esscher.studies.plan import Plan, PlanResult

__all__ = ["Comparison", "HeadResult", "Plan", "PlanResult", "Result"]
