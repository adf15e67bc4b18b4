"""RoBERTa and XLM-RoBERTa: BERT's layers with positions that start after the padding index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from esscher.models.families.bert import Bert


class Roberta(Bert):
    """RoBERTa."""

    name = "RoBERTa"
    model_types: ClassVar[Sequence[str]] = ("roberta", "xlm-roberta")

    def max_positions(self, model: Any) -> int:
        """Positions up to and including the padding index are never used for text."""
        backbone = self.backbone(model)
        first = int(backbone.embeddings.padding_idx) + 1
        return int(backbone.config.max_position_embeddings) - first
