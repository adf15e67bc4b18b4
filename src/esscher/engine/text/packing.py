"""Text as passages of tokens, the way a model expects to read them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.options import AtMost
from esscher.core.validation import as_dim
from esscher.engine.models.loaded import DELIMITER_ROLES, LoadedModel
from esscher.engine.text.documents import Document, TextRecord, TextSource, read_text, source_name

#: Text between two documents.
BETWEEN = "\n\n"
#: A word to find out with which tokens a tokenizer frames a text.
PROBE = "a"


@dataclass(frozen=True, eq=False)
class Passage:
    """Tokens that a model reads at a time.

    Attributes
    ----------
    number
        Number of the passage in its text.
    ids
        Token ids, [n].
    is_delimiter
        True at delimiters: those that frame the passage, and those inside the text.
    """

    number: int
    ids: NDArray[np.int64]
    is_delimiter: NDArray[np.bool_]

    @property
    def text_tokens(self) -> int:
        """Number of tokens that are not delimiters."""
        return int(np.count_nonzero(~self.is_delimiter))


class PassageStream(Iterator[Passage]):
    """Passages one after the other, made when they are asked for; see :func:`passages`.

    Attributes
    ----------
    text_tokens
        Tokens handed out so far, without delimiters.
    characters
        Characters of the text tokenised so far.
    """

    def __init__(
        self,
        framing: Framing,
        documents: Iterable[Document],
        context: int,
        tokens: int | None,
        keep_short: bool,
    ) -> None:
        self.text_tokens = 0
        self.characters = 0
        self._framing, self._context, self._keep_short = framing, context, keep_short
        self._wanted = tokens
        self._hash = hashlib.sha256()
        self._passages = self._make(iter(documents))

    def __next__(self) -> Passage:
        return next(self._passages)

    @property
    def text_hash(self) -> str:
        """SHA-256 of the text tokenised so far (whole pieces, see :class:`Document`)."""
        return self._hash.hexdigest()

    def _make(self, documents: Iterator[Document]) -> Iterator[Passage]:
        body = self._context - self._framing.added
        rest = np.zeros(0, np.int64)
        number = 0
        for ids in self._tokenised(documents):
            rest = np.concatenate([rest, ids])
            while len(rest) >= body:
                yield self._counted(number, rest[:body])
                number, rest = number + 1, rest[body:]
                if self._wanted is not None and self.text_tokens >= self._wanted:
                    return
        if len(rest) and self._keep_short:
            yield self._counted(number, rest)

    def _tokenised(self, documents: Iterator[Document]) -> Iterator[NDArray[np.int64]]:
        for i, document in enumerate(documents):
            text = BETWEEN + document.text if i and not document.part else document.text
            # Half characters (from "\ud800" in a .jsonl file, say) would stop the tokenizer.
            data = text.encode("utf-8", "replace")
            self._hash.update(data)
            self.characters += len(text)
            yield self._framing.ids(data.decode())

    def _counted(self, number: int, body: NDArray[np.int64]) -> Passage:
        passage = self._framing.passage(number, body)
        self.text_tokens += passage.text_tokens
        return passage


@dataclass(frozen=True, eq=False)
class Framing:
    """A tokenizer, with the tokens that it puts before and behind a text."""

    tokenizer: Any
    prefix: NDArray[np.int64]
    suffix: NDArray[np.int64]
    delimiters: NDArray[np.int64]
    vocabulary: int | None

    @property
    def added(self) -> int:
        """Number of tokens around a text."""
        return len(self.prefix) + len(self.suffix)

    def passage(self, number: int, body: NDArray[np.int64]) -> Passage:
        """Frame some tokens of a text."""
        ids = np.concatenate([self.prefix, body, self.suffix])
        is_delimiter = np.isin(ids, self.delimiters)
        is_delimiter[: len(self.prefix)] = True
        is_delimiter[len(ids) - len(self.suffix) :] = True
        return Passage(number, ids, is_delimiter)

    def body(self, passage: Passage) -> NDArray[np.int64]:
        """The tokens of a passage between those around it."""
        return passage.ids[len(self.prefix) : len(passage.ids) - len(self.suffix)]

    def ids(self, text: str) -> NDArray[np.int64]:
        """Token ids of a text without anything around it."""
        # Not "verbose": a text longer than the model's context is cut here, no need for a warning.
        found = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        ids = np.asarray(found, dtype=np.int64)
        if self.vocabulary is not None and len(ids) and ids.max() >= self.vocabulary:
            raise InputError(
                f"the tokenizer made token {ids.max()}, but the model knows only "
                f"{self.vocabulary}; they do not match"
            )
        return ids


def passages(
    model: LoadedModel | Any,
    documents: Iterable[Document],
    *,
    tokens: int | None = None,
    context: int,
    delimiters: bool = True,
    keep_short: bool = True,
) -> PassageStream:
    """Pack text into passages of ``context`` tokens.

    Documents are joined by a blank line and cut every ``context`` tokens; passages are never
    padded. Each one is framed as the model expects: [CLS] ... [SEP] for encoders, a token for the
    beginning of the text where the tokenizer adds one.

    Parameters
    ----------
    model
        A loaded model, or a tokenizer.
    documents
        What :func:`read_text` returns; no more of it is read than needed.
    tokens
        Stop once the passages hold this many tokens that are not delimiters; the last passage is
        whole, so that there can be more. All of the text if left out.
    context
        Tokens of a passage, delimiters included.
    delimiters
        Whether to frame the passages.
    keep_short
        Whether to keep the last passage when the text ends in the middle of it.
    """
    if tokens is not None:
        tokens = as_dim(tokens, "tokens")
    framing = framing_of(model, delimiters)
    length = _as_context(context, model, framing)
    return PassageStream(framing, documents, length, tokens, keep_short)


#: The function again, for where an argument has its name.
_stream = passages


@dataclass(frozen=True, eq=False)
class PassageSet(Sequence[Passage]):
    """Passages in memory, with what is known about their text.

    Attributes
    ----------
    passages
        The passages.
    source
        Name of the text.
    text_hash
        SHA-256 of the text that was tokenised.
    text_tokens
        Tokens without delimiters.
    context
        Tokens of a whole passage.
    """

    passages: tuple[Passage, ...]
    source: str
    text_hash: str
    text_tokens: int
    context: int

    @property
    def record(self) -> TextRecord:
        """What a stored run says about the text."""
        return TextRecord(source=self.source, hash=self.text_hash)

    def __len__(self) -> int:
        return len(self.passages)

    def __getitem__(self, index: Any) -> Any:
        return self.passages[index]


def read_passages(
    model: LoadedModel | Any,
    source: TextSource,
    *,
    tokens: int,
    context: int,
    column: str | None = None,
    delimiters: bool = True,
    keep_short: bool = True,
    least: int = 1,
    passages: int | None = None,
) -> PassageSet:
    """Read as many passages of a text as ``tokens`` tokens take; arguments as in :func:`passages`.

    With fewer than ``least`` tokens it is of no use to ask for fewer. If ``tokens`` is a default
    (:class:`esscher.core.options.AtMost`), a text with fewer, but at least that many, is read as a
    whole. Where it was a number of ``passages`` that was asked for, the message counts in passages.

    Raises
    ------
    InputError
        When the text has fewer tokens, with the number it has.
    """
    stream = _stream(
        model,
        read_text(source, column=column),
        tokens=tokens,
        context=context,
        delimiters=delimiters,
        keep_short=keep_short,
    )
    found = tuple(stream)
    name = source_name(source)
    enough = least if isinstance(tokens, AtMost) else tokens
    if stream.text_tokens < enough:
        raise InputError(
            f"{name!r} has only {stream.text_tokens} tokens"
            + ("" if keep_short else f" in whole passages of {context}")
            + _too_short(stream.text_tokens, tokens, context, least, passages)
        )
    return PassageSet(found, name, stream.text_hash, stream.text_tokens, int(context))


def whole_passages(
    model: LoadedModel | Any,
    source: TextSource,
    *,
    count: int,
    context: int,
    column: str | None = None,
) -> PassageSet:
    """Read the first ``count`` whole passages of a text; arguments as in :func:`passages`.

    Of a default count (:class:`esscher.core.options.AtMost`) there may be fewer, but one; passages
    of a default length are shorter if the text is too short (:func:`equal_passages`).

    Raises
    ------
    InputError
        When the text has fewer, with the number it has.
    """
    shrinks = isinstance(context, AtMost)
    stream = _stream(model, read_text(source, column=column), context=context, keep_short=shrinks)
    read, name = tuple(islice(stream, count)), source_name(source)
    found = PassageSet(read, name, stream.text_hash, stream.text_tokens, int(context))
    if shrinks and read:
        return equal_passages(model, found, count, context)
    if isinstance(count, AtMost) and not found:
        raise _no_passage(name, context)
    if len(found) < count and not isinstance(count, AtMost):
        raise InputError(
            f"{name!r} has only {len(found)} whole passages of {context} tokens, but {count} are "
            "asked for; give more text, a shorter context"
            + (f", or ask for at most {len(found)} passages" if found else "")
        )
    return found


def first_passages(
    model: LoadedModel | Any,
    source: TextSource,
    count: int,
    length: int,
    column: str | None = None,
) -> PassageSet:
    """Read passages of one length from the beginning of a text.

    Of a default count (:class:`esscher.core.options.AtMost`) there may be fewer, but one; passages
    of a default length are shorter if the text is too short (:func:`equal_passages`).

    Raises
    ------
    InputError
        When the text has fewer; the message says how many.
    """
    limit = isinstance(count, AtMost) or isinstance(length, AtMost)
    tokens = AtMost(count * length) if limit else count * length
    found = read_passages(
        model, source, tokens=tokens, context=length, column=column, passages=count
    )
    return equal_passages(model, found, count, length)


def equal_passages(
    model: LoadedModel | Any, found: PassageSet, count: int, length: int, least: int = 1
) -> PassageSet:
    """Return passages of one length, of those that were read of a text.

    A text in which a default length does not leave enough of them is cut again, into as many equal
    ones as are needed.

    Parameters
    ----------
    model
        As in :func:`passages`.
    found
        All passages of the text, or enough; the last one may be shorter.
    count
        How many to return; a default is an upper limit (:class:`esscher.core.options.AtMost`).
    length
        Tokens of a passage; a default is an upper limit.
    least
        How many are needed of a default count.

    Raises
    ------
    InputError
        When there are not enough.
    """
    needed = least if isinstance(count, AtMost) else count
    whole = tuple(passage for passage in found if len(passage.ids) == length)
    if len(whole) >= needed:
        return replace(found, passages=whole[:count])
    if isinstance(length, AtMost):
        framing = framing_of(model, delimiters=True)
        body = sum(len(framing.body(passage)) for passage in found)
        if body >= needed:
            return cut_again(model, found, count, body // needed + framing.added)
    if needed == 1:
        raise _no_passage(found.source, length)
    raise InputError(
        f"{found.source!r} has only {len(whole)} whole passages of {length} tokens, and at least "
        f"{needed} are needed; give more text, or a shorter context"
    )


def cut_again(model: LoadedModel | Any, found: PassageSet, count: int, length: int) -> PassageSet:
    """Cut what was read of a text into passages of another length, so many at most."""
    framing = framing_of(model, delimiters=True)
    text, body = np.concatenate([framing.body(one) for one in found]), length - framing.added
    parts = (text[start : start + body] for start in range(0, len(text) - body + 1, body))
    made = (framing.passage(number, part) for number, part in enumerate(parts))
    return replace(found, passages=tuple(islice(made, count)), context=length)


def _no_passage(name: str, length: int) -> InputError:
    return InputError(
        f"{name!r} has no whole passage of {length} tokens; give more text, or a shorter context"
    )


def first_tokens(passages: Iterable[Passage], tokens: int) -> Iterator[NDArray[np.bool_]]:
    """Yield which tokens of each passage are among the first ``tokens`` without delimiters."""
    for passage in passages:
        text = ~passage.is_delimiter
        yield text & (np.cumsum(text) <= tokens)
        tokens -= passage.text_tokens


def _too_short(found: int, tokens: int, context: int, least: int, passages: int | None) -> str:
    """Say how much text was asked for, and what to do about it."""
    if passages is not None:
        fits = found // context
        fewer = f"at most {fits} passages" if fits else "shorter ones"
        return (
            f", but {passages} passages of {context} take {tokens}; give more text, or ask for "
            f"{fewer}"
        )
    if isinstance(tokens, AtMost):
        return f"; give a text with at least {least}"
    if found < least:
        return f", but {tokens} are asked for; give a text with at least {least}"
    return f", but {tokens} are asked for; give more text, or ask for at most {found}"


def framing_of(model: LoadedModel | Any, delimiters: bool) -> Framing:
    """Return the tokenizer of a model, with what it puts around a text if delimiters are wanted."""
    tokenizer = model.tokenizer if isinstance(model, LoadedModel) else model
    if tokenizer is None or not callable(tokenizer):
        raise InputError("there is no tokenizer; load the model by name, or hand one to wrap_model")
    if isinstance(model, LoadedModel):
        ids = model.delimiter_ids
        vocabulary = int(model.family.config(model.model).vocab_size)
    else:
        found = (getattr(tokenizer, f"{role}_id", None) for role in DELIMITER_ROLES)
        ids = frozenset(i for i in found if i is not None)
        vocabulary = None
    none = np.zeros(0, np.int64)
    plain = Framing(tokenizer, none, none, np.array(sorted(ids), np.int64), vocabulary)
    if not delimiters:
        return plain
    prefix, suffix = _around(tokenizer, plain.ids(PROBE))
    return Framing(tokenizer, prefix, suffix, plain.delimiters, vocabulary)


def _around(tokenizer: Any, bare: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tokens put before and behind the probe word, whose own tokens are ``bare``."""
    framed = np.asarray(tokenizer(PROBE, verbose=False)["input_ids"], dtype=np.int64)
    for start in range(len(framed) - len(bare) + 1):
        if len(bare) and np.array_equal(framed[start : start + len(bare)], bare):
            return framed[:start], framed[start + len(bare) :]
    raise InputError("the tokenizer changes a text when it frames it; it cannot be used here")


def _as_context(context: int, model: LoadedModel | Any, framing: Framing) -> int:
    length = as_dim(context, "context")
    smallest = framing.added + 1
    if length < smallest:
        raise InputError(
            f"context is {length}; the model frames a passage with {framing.added} tokens, so it "
            f"must be at least {smallest}"
        )
    if isinstance(model, LoadedModel) and length > model.max_positions:
        raise InputError(
            f"context is {length}, but {model.name!r} reads at most {model.max_positions} tokens; "
            f"give at most {model.max_positions}"
        )
    return length
