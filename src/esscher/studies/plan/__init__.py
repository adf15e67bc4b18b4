"""Token budgets per head, predicted from one pass and checked on unseen text."""

from __future__ import annotations

from esscher.engine.cache.budgets import Keeping, TokenBudgets
from esscher.runs.study import function_of
from esscher.studies.plan.result import Plan, PlanResult
from esscher.studies.plan.study import PlanStudy

plan = function_of(PlanStudy)

__all__ = ["Keeping", "Plan", "PlanResult", "PlanStudy", "TokenBudgets", "plan"]
