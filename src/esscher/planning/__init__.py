"""Token budgets per head, predicted from one pass and checked on unseen text."""

from __future__ import annotations

from esscher.planning.contexts import ContextUse, context_lengths, load_context
from esscher.planning.planned import Plan, load_plan
from esscher.planning.run import plan

__all__ = ["ContextUse", "Plan", "context_lengths", "load_context", "load_plan", "plan"]
