"""What published rules have in common: scores while a prompt is read, and a choice by them.

A rule looks at every layer once (:meth:`Rule.look`) and then chooses what each key head keeps
(:meth:`Rule.keep`). All rules keep the same number of tokens in all, so that they can be compared.
Equal scores are decided for the token that comes first, so that results can be repeated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.validation import as_dim

if TYPE_CHECKING:
    from esscher.engine.cache.published.prefilled import Prefilled


@dataclass(frozen=True, eq=False)
class Scores:
    """What a rule made of one layer: the larger the score of a token, the better it is kept.

    Attributes
    ----------
    scores
        [key heads, tokens], float32.
    """

    scores: Tensor

    @property
    def tokens(self) -> int:
        """Number of tokens of the prompt."""
        return int(self.scores.shape[1])

    def joined(self, other: Scores) -> Scores:
        """The larger of two scores of every token: of two parts of a repetition."""
        return Scores(torch.maximum(self.scores, other.scores))


class Rule(ABC):
    """A published rule for what is kept of a prompt.

    Attributes
    ----------
    cite
        Authors, title and arXiv number.
    reads
        What the rule looks at: the prompt's own reading, or its repetition by the model.
    """

    cite: ClassVar[str]
    reads: ClassVar[Literal["prompt", "repeat"]] = "prompt"

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in the registry."""

    @abstractmethod
    def look(self, layer: Prefilled) -> Scores:
        """Score the tokens of the prompt in one layer."""

    @abstractmethod
    def _choose(self, found: Sequence[Scores], each: int) -> list[list[Tensor]]:
        """Choose what is kept, see :meth:`keep`."""

    def keep(self, found: Sequence[Scores], each: int) -> list[list[Tensor]]:
        """Choose what every key head keeps: increasing indices, by layer and key head.

        In all they are exactly ``each`` times the number of key heads of all layers.

        Parameters
        ----------
        found
            What :meth:`look` found, layer by layer. Layers that are not reduced are left out.
        each
            Tokens that a key head keeps on average.

        Raises
        ------
        InputError
            If there are not so many tokens.
        """
        each, tokens, key_heads = as_dim(each, "each"), found[0].tokens, len(found[0].scores)
        if each > tokens:
            raise InputError(f"each is {each:,}; the prompt has {tokens:,} tokens")
        kept = self._choose(found, each)
        total = sum(len(index) for layer in kept for index in layer)
        if total != each * len(found) * key_heads:
            raise AssertionError(
                f"the rule {self.name!r} kept {total:,} tokens in all, not "
                f"{each * len(found) * key_heads:,}"
            )
        return kept


class Scorer(Rule):
    """A rule that keeps the same number of tokens in every head: those with the largest scores."""

    def _choose(self, found: Sequence[Scores], each: int) -> list[list[Tensor]]:
        return [[largest(own, each) for own in layer.scores] for layer in found]


def named(rule: str, scorer: Scorer, published: type[Scorer]) -> str:
    """Name of a rule over a scorer; the one it was published with is not named."""
    return rule if type(scorer) is published else f"{rule}:{scorer.name}"


def largest(scores: Tensor, count: int) -> Tensor:
    """Indices of the largest of some scores [n], increasing; the first of equal ones."""
    order = torch.sort(scores, descending=True, stable=True).indices
    return order[:count].sort().values


def largest_of_all(scores: Tensor, count: int) -> list[int]:
    """How many of the largest scores of a table [rows, n] lie in each row."""
    rows = largest(scores.flatten(), count) // scores.shape[1]
    return torch.bincount(rows, minlength=len(scores)).tolist()


def padded(scores: Tensor, before: int, after: int) -> Tensor:
    """Surround scores by tokens that are kept first, as if they had the largest of all plus one."""
    top = float(scores.max()) + 1.0
    return torch.nn.functional.pad(scores, (before, after), value=top)


def check_longer(layer: Prefilled, rule: str, least: int) -> None:
    """Refuse a prompt that is not longer than what a rule keeps for certain.

    Raises
    ------
    InputError
        Naming both.
    """
    if layer.prompt <= least:
        raise InputError(
            f"the prompt has {layer.prompt} tokens; the rule {rule!r} needs more than {least}"
        )
