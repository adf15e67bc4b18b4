"""What a decoder is told so that it repeats what it has read, as in KVzip (arXiv 2505.23416)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.engine.models import LoadedModel

#: Tokens that are repeated at a time.
CHUNK = 2048
#: What the model is told, before the beginning of a text and before other parts, and what follows.
FIRST = "\n\nRepeat the previous context exactly."
LATER = "\n\nRepeat the part of the previous context exactly, starting with"
SUFFIX = "\n"
#: Tokens before a part, which say where it starts.
OVERLAP = 8


@dataclass(frozen=True)
class Instruction:
    """The instruction in tokens of a model.

    Attributes
    ----------
    name, max_positions
        Of the model: its name, and the longest text it can read.
    first, later, suffix
        Tokens of the three texts.
    """

    name: str
    max_positions: int
    first: tuple[int, ...]
    later: tuple[int, ...]
    suffix: tuple[int, ...]

    @classmethod
    def of(cls, loaded: LoadedModel) -> Instruction:
        """Read it with a model's tokenizer.

        Raises
        ------
        InputError
            If there is none.
        """
        if loaded.tokenizer is None:
            raise InputError(
                f"{loaded.name!r} was loaded without a tokenizer, and cannot be told to repeat a "
                "prompt; hand it in with its tokenizer (esscher.wrap_model(model, tokenizer)), or "
                "choose score='all'"
            )
        texts = (
            tuple(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])
            for text in (FIRST, LATER, SUFFIX)
        )
        return cls(loaded.name, loaded.max_positions, *texts)

    def reading(self, part: Tensor, before: Tensor | None) -> Tensor:
        """Tokens that repeat a part of a text, the last of them the part itself.

        Parameters
        ----------
        part
            Tokens, [n].
        before
            Those of the text before the part; None if it is the beginning.
        """

        def tensor(ids: Sequence[int]) -> Tensor:
            return torch.tensor(ids, dtype=part.dtype, device=part.device)

        told = [tensor(self.first)] if before is None else [tensor(self.later), before[-OVERLAP:]]
        return torch.cat([*told, tensor(self.suffix), part])

    def check_room(self, prompt: int, part: int, remedy: str) -> None:
        """Refuse a prompt after which the model cannot read a part of so many tokens again.

        Raises
        ------
        InputError
            With the numbers, and the remedy.
        """
        more = part + len(self.suffix) + max(len(self.first), len(self.later) + OVERLAP)
        if prompt + more > self.max_positions:
            raise InputError(
                f"{self.name!r} reads {self.max_positions:,} tokens at most, and cannot repeat a "
                f"prompt of {prompt:,} tokens with {more:,} more; {remedy}"
            )
