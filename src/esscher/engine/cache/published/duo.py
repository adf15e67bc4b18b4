"""DuoAttention's split: some heads keep everything, the others first and recent tokens.

Xiao, Tang, Zuo, Guo, Yang, Tang, Fu, Han: DuoAttention: Efficient Long-Context LLM Inference with
Retrieval and Streaming Heads, arXiv 2410.10819. The published heads are learned by optimising
gates; here those that lose most as streaming heads on calibration passages keep everything
(``profile.py``). A streaming head keeps half of the mean budget (a quarter was worse on
SmolLM2); as many heads keep everything as the total allows, and what is left goes to the recent
tokens of streaming heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.engine.cache.published.profile import streamed
from esscher.engine.cache.published.rule import Rule, Scores
from esscher.engine.cache.published.streaming import sinks_and_recent

if TYPE_CHECKING:
    from esscher.engine.cache.published.prefilled import Prefilled
    from esscher.engine.cache.published.profile import Profile


@dataclass(frozen=True)
class Duo(Rule):
    """Retrieval heads and streaming heads.

    Attributes
    ----------
    share
        Tokens of a streaming head at least, as a share of the mean budget.
    """

    cite = (
        "Xiao et al., DuoAttention: Efficient Long-Context LLM Inference with Retrieval and "
        "Streaming Heads, arXiv 2410.10819"
    )
    calibrated = True
    share: float = 0.5

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "duo"

    def look(self, layer: Prefilled) -> Scores:
        """Nothing of a prompt matters but its length."""
        return Scores(torch.zeros(1, 1).expand(layer.key_heads, layer.prompt))

    def split(self, profile: Profile, tokens: int, each: int) -> tuple[NDArray[np.int64], int]:
        """Tokens that each key head keeps, [layers, key heads], and the first ones among them.

        The number of first tokens is that of streaming heads.
        """
        retrieval = profile.retrieval.reshape(-1)
        heads = len(retrieval)
        least = max(1, int(self.share * each))
        sinks, _ = streamed(least)
        spare = (each - least) * heads
        whole = spare // (tokens - least) if tokens > least else heads
        out = np.full(heads, tokens, dtype=np.int64)
        streaming = np.sort(np.argsort(-retrieval, kind="stable")[whole:])
        if len(streaming):
            more, odd = divmod(spare - whole * (tokens - least), len(streaming))
            out[streaming] = least + more
            out[streaming[:odd]] += 1
        return out.reshape(profile.retrieval.shape), sinks

    def _choose(
        self, found: Sequence[Scores], each: int, profile: Profile | None
    ) -> list[list[Tensor]]:
        assert profile is not None
        tokens = found[0].tokens
        budgets, sinks = self.split(profile, tokens, each)
        return [
            [sinks_and_recent(tokens, sinks, int(budget) - sinks) for budget in row]
            for row in budgets
        ]
