"""Streaming attention statistics: the whole convergence curve from one pass, in bounded memory.

:func:`attention_statistics` takes queries, keys and values of any number of heads and returns, for
every scale and every nested size, the mean and covariance of the outputs and the map error.
``outputs.nested_outputs`` gives the outputs of nested sizes themselves, and
``outputs.streamed_attention`` is for few queries and more keys than memory holds. Nothing here
imports torch before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esscher.engine.attention.statistics import AttentionStatistics, attention_statistics

__all__ = ["AttentionStatistics", "attention_statistics"]


def __getattr__(name: str) -> Any:
    """Import what needs numpy when it is first asked for: what bits are does not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from esscher.engine.attention import statistics

    return getattr(statistics, name)
