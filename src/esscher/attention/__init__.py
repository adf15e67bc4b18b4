"""Streaming attention statistics: the whole convergence curve from one pass, in bounded memory.

:func:`attention_statistics` takes queries, keys and values of any number of heads and returns, for
every scale and every nested size, the mean and covariance of the outputs, the map error, received
attention, participation ratio and largest weight.
"""

from __future__ import annotations

from esscher.attention._blocks import BlockShape
from esscher.attention.run import attention_statistics
from esscher.attention.statistics import AttentionStatistics, QuerySummary

__all__ = ["AttentionStatistics", "BlockShape", "QuerySummary", "attention_statistics"]
