"""Texts in which needles are hidden: repeated noise, or stretches of any text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.core.streams import random_stream

if TYPE_CHECKING:
    from esscher.engine.text.packing import Framing

#: Name of the noise, and the sentences that it repeats (those of RULER).
NOISE = "noise"
SENTENCES = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
)
#: Characters that end a sentence, with those that may follow them; and those of scripts without
#: spaces.
ENDS, CLOSING, WIDE_ENDS = (".", "!", "?"), "\"'”’)»", ("。", "！", "？")
#: How tokenizers write the space or the line break before a word.
SPACES = ("▁", "Ġ", "Ċ", " ", "\n")
#: Tokens that are searched for the end of a sentence.
SEARCHED = 64

Ids: TypeAlias = NDArray[np.int64]
#: ``"noise"``, a text, or the tokens of one.
HaystackSource: TypeAlias = "str | Sequence[int] | NDArray[np.integer[Any]]"


@dataclass(frozen=True, eq=False)
class Haystack:
    """A text, in tokens.

    Attributes
    ----------
    kind
        ``"noise"`` or ``"text"``.
    ids
        All its tokens.
    framing
        The tokenizer.
    """

    kind: str
    ids: Ids
    framing: Framing

    def stretch(self, number: int, length: int, tokens: int, seed: int) -> Ids:
        """The text of an item.

        Parameters
        ----------
        number
            Of the item. Items take one stretch after the other, from a random place on; behind the
            end of the text they begin again, at other places.
        length
            Tokens by which stretches follow each other.
        tokens
            Tokens that are wanted, at most ``length``.
        seed
            Seed of the place.
        """
        if self.kind == NOISE:
            return self.ids[:tokens]
        starts = len(self.ids) - length + 1
        first = int(random_stream(seed, "haystack").integers(starts))
        start = (first + number * length) % starts
        room = min(SEARCHED, len(self.ids) - tokens - start)
        ends = self.sentence_ends(self.ids[start : start + room + 1])
        return self.ids[start + (int(ends[0]) if len(ends) else 0) :][:tokens]

    def place(self, ids: Ids, wanted: int, last: int) -> int:
        """The end of a sentence near ``wanted`` tokens and not after ``last``, if there is one."""
        begin = max(0, wanted - SEARCHED)
        around = self.sentence_ends(ids[begin : min(last, wanted + SEARCHED) + 1]) + begin
        around = around[around <= last]
        return int(around[np.argmin(np.abs(around - wanted))]) if len(around) else wanted

    def sentence_ends(self, ids: Ids) -> NDArray[np.int64]:
        """Numbers of tokens after which a sentence ends and another can begin; 0 is not one."""
        tokenizer = self.framing.tokenizer
        found = []
        for i in range(1, len(ids)):
            text = tokenizer.decode([int(ids[i - 1])])
            if text.endswith(WIDE_ENDS):
                found.append(i)
            elif text.rstrip(CLOSING).endswith(ENDS):
                following = tokenizer.convert_ids_to_tokens(int(ids[i]))
                if str(following).startswith(SPACES):
                    found.append(i)
        return np.array(found, dtype=np.int64)


def as_haystack(framing: Framing, source: HaystackSource, length: int) -> Haystack:
    """Tokens of a haystack.

    Parameters
    ----------
    framing
        The tokenizer.
    source
        ``"noise"``, a text, or the tokens of one.
    length
        Tokens that an item takes of it at most.

    Raises
    ------
    InputError
        If it has fewer, or is none of these.
    """
    if isinstance(source, str) and source == NOISE:
        once = len(framing.ids(SENTENCES))
        return Haystack(NOISE, framing.ids(" ".join([SENTENCES] * (length // once + 1))), framing)
    if isinstance(source, str):
        # half characters would stop the tokenizer
        ids = framing.ids(source.encode("utf-8", "replace").decode())
    else:
        ids = _given(source, framing)
    if len(ids) < length:
        raise InputError(
            f"the haystack has {len(ids):,} tokens, and {length:,} are needed; give a longer text "
            f"(the text itself, not the name of a file), or {NOISE!r}"
        )
    return Haystack("text", ids, framing)


def _given(source: Any, framing: Framing) -> Ids:
    try:
        ids = np.asarray(source)
    except (TypeError, ValueError) as error:
        raise _wrong(source) from error
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise _wrong(source)
    known = framing.vocabulary
    if len(ids) and (ids.min() < 0 or (known is not None and ids.max() >= known)):
        raise InputError(
            f"the haystack has tokens from {ids.min()} to {ids.max()}, and the model knows 0 to "
            f"{'its last' if known is None else known - 1}; give tokens of its own tokenizer"
        )
    return ids.astype(np.int64)


def _wrong(source: object) -> InputError:
    return InputError(
        f"haystack is {shortened(source)}; it must be {NOISE!r}, a text, or a list of token ids"
    )
