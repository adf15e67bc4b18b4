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
from esscher.engine.models.loaded import LoadedModel
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


@dataclass(frozen=True, eq=False)
class Framing:
    """A tokenizer, with the tokens that it puts before and behind a text."""

    tokenizer: Any
    prefix: NDArray[np.int64]
    suffix: NDArray[np.int64]
    delimiters: NDArray[np.int64]
    vocabulary: int

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
        made = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        ids = np.asarray(made, dtype=np.int64)
        check_known(ids, self.vocabulary)
        return ids


def passages(
    model: LoadedModel,
    documents: Iterable[Document],
    *,
    tokens: int | None = None,
    context: int,
    keep_short: bool = True,
    digest: hashlib._Hash | None = None,
) -> Iterator[Passage]:
    """Pack text into passages of ``context`` tokens.

    Documents are joined by a blank line and cut every ``context`` tokens; passages are never
    padded. Each one is framed as the model expects: [CLS] ... [SEP] for encoders, a token for the
    beginning of the text where the tokenizer adds one.

    Parameters
    ----------
    model
        The model, with its tokenizer.
    documents
        What :func:`read_text` returns; no more of it is read than needed.
    tokens
        Stop once the passages hold this many tokens that are not delimiters; the last passage is
        whole, so that there can be more. All of the text if left out.
    context
        Tokens of a passage, delimiters included.
    keep_short
        Whether to keep the last passage when the text ends in the middle of it.
    digest
        Updated with the text that was tokenised (whole pieces, see :class:`Document`).
    """
    wanted = None if tokens is None else as_dim(tokens, "tokens")
    framing = framing_of(model)
    length, smallest = as_dim(context, "context"), framing.added + 1
    if length < smallest:
        raise InputError(
            f"context is {length}; the model frames a passage with {framing.added} tokens, so it "
            f"must be at least {smallest}"
        )
    if length > model.max_positions:
        raise InputError(
            f"context is {length}, but {model.name!r} reads at most {model.max_positions} tokens; "
            f"give at most {model.max_positions}"
        )

    def packed() -> Iterator[Passage]:
        rest = np.zeros(0, np.int64)
        number = text_tokens = 0
        for i, document in enumerate(documents):
            text = BETWEEN + document.text if i and not document.part else document.text
            # Half characters (from "\ud800" in a .jsonl file, say) would stop the tokenizer.
            data = text.encode("utf-8", "replace")
            if digest is not None:
                digest.update(data)
            rest = np.concatenate([rest, framing.ids(data.decode())])
            while len(rest) >= length - framing.added:
                body, rest = np.split(rest, [length - framing.added])
                passage = framing.passage(number, body)
                number, text_tokens = number + 1, text_tokens + passage.text_tokens
                yield passage
                if wanted is not None and text_tokens >= wanted:
                    return
        if len(rest) and keep_short:
            yield framing.passage(number, rest)

    return packed()


@dataclass(frozen=True, eq=False)
class PassageSet(Sequence[Passage]):
    """Passages in memory, with source and hash of their text.

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
        """Record of the text for stored runs."""
        return TextRecord(source=self.source, hash=self.text_hash)

    def __len__(self) -> int:
        return len(self.passages)

    def __getitem__(self, index: Any) -> Any:
        return self.passages[index]


def read_passages(
    model: LoadedModel,
    source: TextSource,
    *,
    tokens: int,
    context: int,
    column: str | None = None,
    least: int = 1,
) -> PassageSet:
    """Read as many passages of a text as ``tokens`` tokens take; arguments as in :func:`passages`.

    With fewer than ``least`` tokens it is of no use to ask for fewer. If ``tokens`` is a default
    (:class:`esscher.core.options.AtMost`), a text with fewer, but at least that many, is read as a
    whole.

    Raises
    ------
    InputError
        When the text has fewer tokens, with the number it has.
    """
    digest, name = hashlib.sha256(), source_name(source)
    documents = read_text(source, column=column)
    read = tuple(passages(model, documents, tokens=tokens, context=context, digest=digest))
    count = sum(passage.text_tokens for passage in read)
    needed = least if isinstance(tokens, AtMost) else tokens
    if count < needed:
        raise InputError(
            f"{name!r} has only {count} tokens, but {needed} are needed; give more text"
            + (f", or ask for at most {count}" if count >= least else "")
        )
    return PassageSet(read, name, digest.hexdigest(), count, int(context))


def first_passages(
    model: LoadedModel,
    source: TextSource,
    count: int,
    length: int,
    column: str | None = None,
) -> PassageSet:
    """Read whole passages of one length from the beginning of a text.

    Of a default count (:class:`esscher.core.options.AtMost`) there may be fewer, but one; passages
    of a default length are shorter if the text is too short (:func:`equal_passages`).

    Raises
    ------
    InputError
        When the text has fewer; the message says how many.
    """
    digest = hashlib.sha256()
    stream = passages(
        model,
        read_text(source, column=column),
        context=length,
        keep_short=isinstance(length, AtMost),
        digest=digest,
    )
    read = tuple(islice(stream, count))
    tokens = sum(passage.text_tokens for passage in read)
    text = PassageSet(read, source_name(source), digest.hexdigest(), tokens, int(length))
    return equal_passages(model, text, count, length)


def equal_passages(
    model: LoadedModel, text: PassageSet, count: int, length: int, least: int = 1
) -> PassageSet:
    """Return passages of one length, of those that were read of a text.

    A text in which a default length does not leave enough of them is cut again, into as many equal
    ones as are needed.

    Parameters
    ----------
    model
        As in :func:`passages`.
    text
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
    whole = tuple(passage for passage in text if len(passage.ids) == length)
    if len(whole) >= needed:
        return replace(text, passages=whole[:count])
    if isinstance(length, AtMost):
        framing = framing_of(model)
        body = sum(len(framing.body(passage)) for passage in text)
        if body >= needed:
            return cut_again(model, text, count, body // needed + framing.added)
    fewer = f", or ask for at most {len(whole)} passages" if whole and needed == count else ""
    raise InputError(
        f"{text.source!r} has only {len(whole)} of {needed} whole passages of {length} tokens; "
        f"give more text, or a shorter context{fewer}"
    )


def cut_again(model: LoadedModel, text: PassageSet, count: int, length: int) -> PassageSet:
    """Cut what was read of a text into passages of another length, so many at most."""
    framing = framing_of(model)
    ids = np.concatenate([framing.body(passage) for passage in text])
    body = length - framing.added
    starts = range(0, len(ids) - body + 1, body)[:count]
    cut = tuple(framing.passage(i, ids[at : at + body]) for i, at in enumerate(starts))
    return replace(text, passages=cut, context=length)


def framing_of(model: LoadedModel) -> Framing:
    """Return the tokenizer of a model, with the tokens that it puts around a text."""
    tokenizer = model.tokenizer
    if tokenizer is None or not callable(tokenizer):
        raise InputError("there is no tokenizer; load the model by name, or hand one to wrap_model")
    delimiters = np.array(sorted(model.delimiter_ids), np.int64)
    vocabulary = len(model.model.get_input_embeddings().weight)
    none = np.zeros(0, np.int64)
    plain = Framing(tokenizer, none, none, delimiters, vocabulary)
    word = plain.ids(PROBE)
    framed = np.asarray(tokenizer(PROBE, verbose=False)["input_ids"], dtype=np.int64)
    check_known(framed, vocabulary)
    for start in range(len(framed) - len(word) + 1):
        stop = start + len(word)
        if len(word) and np.array_equal(framed[start:stop], word):
            return replace(plain, prefix=framed[:start], suffix=framed[stop:])
    raise InputError("the tokenizer changes a text when it frames it; it cannot be used here")


def text_after(tokenizer: Any, before: Sequence[int], new: Sequence[int]) -> str:
    """Text of new tokens; some tokenizers would drop the space before the first of them."""
    first = tokenizer.decode(list(before), skip_special_tokens=True)
    both = str(tokenizer.decode([*before, *new], skip_special_tokens=True))
    if both.startswith(first):
        return both[len(first) :]
    return str(tokenizer.decode(list(new), skip_special_tokens=True))


def check_known(ids: Sequence[int] | NDArray[np.int64], vocabulary: int) -> None:
    """Refuse tokens that a model does not know: its tokenizer is that of another one."""
    largest = int(np.max(ids, initial=0))
    if largest >= vocabulary:
        raise InputError(
            f"the tokenizer made token {largest}, but the model knows only {vocabulary}; they do "
            "not match"
        )
