"""Token budgets per head, predicted from one pass and checked on unseen text."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esscher.studies.plan.contexts import ContextUse, load_context
    from esscher.studies.plan.entry import context_lengths, plan
    from esscher.studies.plan.planned import Plan, load_plan

__all__ = ["ContextUse", "Plan", "context_lengths", "load_context", "load_plan", "plan"]

#: Where names are defined: imported when they are asked for, since some bring torch.
_MODULES = {
    "ContextUse": "contexts",
    "Plan": "planned",
    "context_lengths": "entry",
    "load_context": "contexts",
    "load_plan": "planned",
    "plan": "entry",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
