"""RoBERTa and XLM-RoBERTa: BERT's layers with positions that start after the padding index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from esscher.engine.models.families.bert import Bert
from esscher.engine.models.families.family import whole_number


class Roberta(Bert):
    """RoBERTa."""

    name = "RoBERTa"
    model_types: ClassVar[Sequence[str]] = ("roberta", "xlm-roberta")

    def unused_positions(self, fields: Mapping[str, Any]) -> int:
        """Positions up to and including the padding index."""
        return whole_number(fields, "pad_token_id") + 1
