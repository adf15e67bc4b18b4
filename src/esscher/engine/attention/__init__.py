"""Streaming attention statistics: the whole convergence curve from one pass, in bounded memory.

:func:`attention_statistics` takes queries, keys and values of any number of heads and returns, for
every scale and every nested size, the mean and covariance of the outputs, the map error, received
attention, participation ratio and largest weight. :func:`nested_outputs` gives the outputs of
nested sizes themselves. :func:`streamed_attention` is for few queries and more keys than memory
holds.
"""

from __future__ import annotations

from esscher.engine.attention.blocks import BlockShape
from esscher.engine.attention.nested import NestedOutputs, nested_outputs
from esscher.engine.attention.outputs import Chunk, StreamedAttention, streamed_attention
from esscher.engine.attention.run import attention_statistics
from esscher.engine.attention.statistics import AttentionStatistics, QuerySummary

__all__ = [
    "AttentionStatistics",
    "BlockShape",
    "Chunk",
    "NestedOutputs",
    "QuerySummary",
    "StreamedAttention",
    "attention_statistics",
    "nested_outputs",
    "streamed_attention",
]
