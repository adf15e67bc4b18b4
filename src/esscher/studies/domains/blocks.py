"""Corpora cut into blocks: stretches of consecutive text, spread over the whole of it.

A number measured on one stretch of text varies from stretch to stretch. The block is the unit that
is repeated: every statistic is computed per block, and corpora are compared by their blocks. A
corpus is divided into as many equal parts as it has blocks, and every part gives one block, from a
place drawn at random in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.models import LoadedModel
from esscher.engine.text import Passage, passages, read_text
from esscher.studies.domains.study import BlockShape

#: Characters in which the beginning of a line, or else of a word, is looked for.
SEARCHED = 1_000
#: Characters of a token that are tried first; doubled while a block is too short.
FIRST_GUESS = 6


@dataclass(frozen=True, eq=False)
class CorpusText:
    """A text with a name.

    Attributes
    ----------
    name, source
        The user's name of it, and where it comes from.
    text
        Its documents, with a blank line between two of them.
    """

    name: str
    source: str
    text: str


def cut_blocks(loaded: LoadedModel, corpus: CorpusText, shape: BlockShape, seed: int) -> list[str]:
    """The texts of a corpus' blocks, each with enough tokens.

    Raises
    ------
    InputError
        When a part of the corpus is too short; the message says how many tokens there are, and
        how many are needed.
    """
    found = []
    for block in range(shape.count):
        low = len(corpus.text) * block // shape.count
        high = len(corpus.text) * (block + 1) // shape.count
        where = float(random_stream(seed, "corpus blocks", block).random())
        # Where the rest of the part is too short, nearer to its beginning.
        for at in (where, where / 2, where / 4, 0.0):
            text = _enough(loaded, corpus.text, _start(corpus.text, low, high, at), high, shape)
            if text is not None:
                break
        else:
            raise _too_short(loaded, corpus, shape)
        found.append(text)
    return found


def block_passages(loaded: LoadedModel, text: str, shape: BlockShape) -> list[Passage]:
    """The passages of a block; fewer than it needs if its text is too short."""
    documents = read_text([text])
    if shape.sequences is None:
        return list(passages(loaded, documents, tokens=shape.tokens, context=shape.context))
    whole = passages(loaded, documents, context=shape.context, keep_short=False)
    return list(islice(whole, shape.sequences))


def _enough(loaded: LoadedModel, text: str, start: int, end: int, shape: BlockShape) -> str | None:
    """The text from ``start`` on that fills a block; None if it ends before."""
    length = FIRST_GUESS * shape.tokens
    while True:
        part = text[start : min(start + length, end)]
        if part.strip():
            found = block_passages(loaded, part, shape)
            if shape.sequences is not None and len(found) == shape.sequences:
                return part
            if shape.sequences is None and sum(p.text_tokens for p in found) >= shape.tokens:
                return part
        if start + length >= end:
            return None
        length *= 2


def _start(text: str, low: int, high: int, at: float) -> int:
    """A place in a part of a text where a line begins, or else a word."""
    place = low + int(at * (high - low))
    if place == 0:
        return 0
    limit = min(place + SEARCHED, high)
    for mark in ("\n", " "):
        found = text.find(mark, place, limit)
        if found >= 0:
            return found + 1
    return place


def _too_short(loaded: LoadedModel, corpus: CorpusText, shape: BlockShape) -> InputError:
    stream = passages(loaded, read_text([corpus.text]), context=shape.context)
    tokens = sum(passage.text_tokens for passage in stream)
    needed = shape.count * shape.tokens
    what = f"{shape.count} blocks of {shape.tokens:,} tokens need {needed:,}"
    if tokens >= needed:
        what += ", and more, because blocks are spread evenly and begin where a line does"
    fits = max(0, int(0.9 * tokens / shape.count))
    return InputError(
        f"corpus {corpus.name!r} ({corpus.source}) has only {tokens:,} tokens, but {what}; give "
        f"more text, or ask for fewer blocks or for blocks of at most {fits:,} tokens"
    )
