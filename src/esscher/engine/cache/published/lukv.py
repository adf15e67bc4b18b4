"""LU-KV: budgets of all heads from a profile of what each would lose of the future.

Tang, Jiao, Chen, Liu, Li, Chen: Predicting Future Utility: Global Combinatorial Optimization for
Task-Agnostic KV Cache Eviction, arXiv 2602.08585. Tokens are ranked by expected attention. Budgets
of heads minimise the future utility that is lost on calibration passages (``profile.py``): each
head's losses are replaced by their convex hull, and tokens are handed out where they gain most.
Any scorer can be used, with a profile of its own ranking. The published one adds 0.02 to expected
weights, which in short prompts are smaller: norms of values decide then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from esscher.engine.cache.published.expected import Expected
from esscher.engine.cache.published.rule import Rule, Scorer, Scores, largest, named
from esscher.math.allocation import EffectCurve, allocate

if TYPE_CHECKING:
    from esscher.engine.cache.published.prefilled import Prefilled
    from esscher.engine.cache.published.profile import Profile


@dataclass(frozen=True)
class LUKV(Rule):
    """Budgets from a profile.

    Attributes
    ----------
    scorer
        Ranks the tokens of a head.
    sinks, recent
        First and last tokens that every head keeps.
    """

    cite = (
        "Tang et al., Predicting Future Utility: Global Combinatorial Optimization for "
        "Task-Agnostic KV Cache Eviction, arXiv 2602.08585"
    )
    calibrated = True
    scorer: Scorer = field(default_factory=lambda: Expected(epsilon=0.02))
    sinks: int = 4
    recent: int = 1

    @property
    def name(self) -> str:
        """Name in the registry, with that of the scorer if it is another."""
        plain = isinstance(self.scorer, Expected) and self.scorer.epsilon == 0.0
        return "lukv:expected" if plain else named("lukv", self.scorer, Expected)

    def look(self, layer: Prefilled) -> Scores:
        """As the scorer, sinks and recent tokens first."""
        scores = self.scorer.look(layer).scores.clone()
        top = scores.max() + 1.0
        scores[:, : self.sinks] = top
        scores[:, layer.prompt - self.recent :] = top
        return Scores(scores)

    def budgets(self, profile: Profile, tokens: int, each: int) -> NDArray[np.int64]:
        """Tokens that each key head keeps, [layers, key heads]; their mean is ``each``.

        Sizes of a profile of prompts of another length are taken as shares.
        """
        scaled = np.round(profile.sizes * (tokens / profile.prompt)).astype(np.int64)
        scaled = np.clip(scaled, min(self.sinks + self.recent, tokens), tokens)
        # of sizes that have become the same, the largest
        last = np.append(np.diff(scaled) > 0, True)
        sizes, (layers, key_heads) = scaled[last], profile.retrieval.shape
        lost = profile.lost[..., last].reshape(-1, len(sizes))
        curves = [EffectCurve.below(sizes, curve) for curve in lost]
        return allocate(curves, each * len(curves)).budgets.reshape(layers, key_heads)

    def _choose(
        self, found: Sequence[Scores], each: int, profile: Profile | None
    ) -> list[list[Tensor]]:
        assert profile is not None
        budgets = self.budgets(profile, found[0].tokens, each)
        return [
            [largest(own, int(budget)) for own, budget in zip(layer.scores, row, strict=True)]
            for layer, row in zip(found, budgets, strict=True)
        ]
