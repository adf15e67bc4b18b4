"""Gemma 1, 2 and 3: Llama's layout with soft-capped logits (2) and sliding windows (2 and 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from esscher.engine.models.families.llama import Llama


class Gemma(Llama):
    """Gemma, Gemma 2, Gemma 3 (its text part)."""

    name = "Gemma"
    model_types: ClassVar[Sequence[str]] = ("gemma", "gemma2", "gemma3", "gemma3_text")

    def described_causal(self, fields: Mapping[str, Any]) -> bool:
        """Unless it was trained to look both ways."""
        return not fields.get("use_bidirectional_attention")
