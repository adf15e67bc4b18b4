"""Weights that were looked at before: hashed and checked once, not for every cache of a plan.

A model in memory is known again by where its weights lie and how often they were written to, and by
a sample of them. What writes around PyTorch's count of writes (``weight.data``) is noticed by the
sample alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from esscher.engine.models.record import weight_sample

T = TypeVar("T")


@dataclass
class _Known:
    state: tuple[Any, ...]
    answers: dict[str, Any] = field(default_factory=dict)


_models: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()


def once(model: Any, question: str, answer: Callable[[Any], T]) -> T:
    """Return what a function says about a model's weights; asked again only if they changed.

    Parameters
    ----------
    model
        The model.
    question
        Name of the answer.
    answer
        Takes the model.
    """
    state = _state(model)
    if state is None:
        return answer(model)
    known = _models.get(model)
    if known is None or known.state != state:
        known = _models[model] = _Known(state)
    if question not in known.answers:
        known.answers[question] = answer(model)
    found: T = known.answers[question]
    return found


def _state(model: Any) -> tuple[Any, ...] | None:
    """What changes when weights do; None where that cannot be told."""
    tensors = list(model.state_dict(keep_vars=True).values())
    if any(tensor.is_inference() or tensor.is_meta for tensor in tensors):
        return None  # their writes are not counted
    return (*((tensor.data_ptr(), tensor._version) for tensor in tensors), weight_sample(model))
