"""Token budgets per head, predicted from one pass and checked on unseen text."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esscher.studies.plan.entry import plan
    from esscher.studies.plan.planned import Plan, load_plan

__all__ = ["Plan", "load_plan", "plan"]

#: Where names are defined: imported when they are asked for, since some bring torch.
_MODULES = {
    "Plan": "planned",
    "load_plan": "planned",
    "plan": "entry",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
