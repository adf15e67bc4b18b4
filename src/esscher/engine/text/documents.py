"""Text from anywhere, as documents in pieces that are read when they are needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from esscher.core.codec import Hash, Name, Record
from esscher.core.errors import InputError
from esscher.engine.text.files import decoded, file_chunks, stream_chunks, suffix_of, text_files
from esscher.engine.text.named import DEMO_TEXTS
from esscher.engine.text.tables import TABLES, dataset_rows, table_rows

#: Characters of a piece: about 16,000 tokens, which is what reading ahead can cost.
PIECE = 65_536


class TextRecord(Record, frozen=True, kw_only=True):
    """A text, as runs name it.

    Attributes
    ----------
    source
        File, folder or name it was read from.
    hash
        SHA-256 of what was read.
    """

    source: Name
    hash: Hash

    def __str__(self) -> str:
        return self.source


#: A file, a folder, ``-``, ``demo:...``, ``hf:...``, or the documents themselves; when it has been
#: read, a record stands in its place.
TextSource: TypeAlias = "str | os.PathLike[str] | Iterable[str] | TextRecord"

Named: TypeAlias = "tuple[str, Iterator[str]]"


@dataclass(frozen=True)
class Document:
    """A document, or a part of a long one.

    Attributes
    ----------
    name
        Where it comes from.
    text
        At most 65,536 characters, cut between words.
    part
        Number of the part; a document is its parts joined together.
    """

    name: str
    text: str
    part: int = 0


def read_text(
    source: TextSource, *, column: str | None = None, limit_chars: int | None = None
) -> Iterator[Document]:
    """Read text piece by piece; nothing is read before it is asked for.

    Parameters
    ----------
    source
        A file (``.gz``, ``.bz2`` and ``.xz`` are unpacked on the way; ``.jsonl``, ``.parquet`` and
        ``.csv`` are tables), a folder (its text files in alphabetical order, with those of the
        folders in it), ``-`` for standard input, ``demo:docs`` (Python's language reference),
        ``demo:code`` (the standard library), ``hf:NAME[@CONFIG][:SPLIT]`` (a Hugging Face
        dataset), or a list of strings.
    column
        Column of a table that holds the text. If left out: ``text``, or the only column of text.
    limit_chars
        Stop after this many characters.

    Raises
    ------
    InputError
        For a source that does not exist, is not text, or has no text in it; some of these only
        show when it is read.
    """
    if limit_chars is not None and (isinstance(limit_chars, bool) or int(limit_chars) < 1):
        raise InputError(f"limit_chars is {limit_chars!r}; it must be at least 1, or None")
    title = source_name(source)
    return _read(title, _find(source, column), limit_chars)


def check_text(source: TextSource, column: str | None = None) -> None:
    """Refuse a source that cannot be read or has no text in it; no more is read than needed.

    Standard input, datasets and what can be iterated over only once are left for later.

    Raises
    ------
    InputError
        As :func:`read_text` and reading what it returns would.
    """
    documents = read_text(source, column=column)
    named = isinstance(source, (str, os.PathLike))
    passing = isinstance(source, Iterator) if not named else str(source).startswith(("-", "hf:"))
    if not passing:
        any(document.text.strip() for document in documents)


def source_name(source: TextSource) -> str:
    """Name a source for messages and stored runs."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    return "text in memory"


def _find(source: TextSource, column: str | None) -> Iterator[Named]:
    """The documents of a source, each with its name and its text in chunks."""
    if not isinstance(source, (str, os.PathLike)):
        if isinstance(source, (bytes, bytearray)) or not isinstance(source, Iterable):
            raise InputError(
                f"text is {type(source).__name__}; it must be the name of a file or folder, or a "
                "list of strings"
            )
        return _given(source)
    name = os.fspath(source)
    if name.startswith("hf:"):
        return ((name, iter([text])) for text in dataset_rows(name, column))
    if column is not None and name.startswith(("-", "demo:")):
        raise InputError(f"column is {column!r}, but {name!r} is not a table")
    if name == "-":
        return iter([("standard input", decoded(stream_chunks(sys.stdin.buffer), name))])
    if name.startswith("demo:"):
        if name not in DEMO_TEXTS:
            known = ", ".join(DEMO_TEXTS)
            raise InputError(f"there is no text {name!r}; the demo texts are {known}")
        return ((title, iter([text])) for title, text in DEMO_TEXTS[name]())
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(path, column)
    if not path.is_file():
        raise InputError(
            f"there is no file or folder {name!r}; the demo texts are {', '.join(DEMO_TEXTS)}"
        )
    return _file(path, column)


def _given(source: Iterable[str]) -> Iterator[Named]:
    for i, text in enumerate(source):
        if not isinstance(text, str):
            raise InputError(f"document {i} is {type(text).__name__}; it must be a string")
        yield f"document {i}", iter([text])


def _folder(path: Path, column: str | None) -> Iterator[Named]:
    files = text_files(path)
    for file in files:
        yield from _file(file, column if _is_table(file) else None)


def _file(path: Path, column: str | None) -> Iterator[Named]:
    if _is_table(path):
        return ((str(path), iter([text])) for text in table_rows(path, column))
    if column is not None:
        tables = ", ".join(TABLES)
        raise InputError(f"column is {column!r}, but {path} is not a table ({tables})")
    return iter([(str(path), decoded(file_chunks(path), str(path)))])


def _is_table(path: Path) -> bool:
    return suffix_of(path) in TABLES


def _read(title: str, documents: Iterator[Named], limit: int | None) -> Iterator[Document]:
    seen, empty = 0, True
    for name, chunks in documents:
        for part, piece in enumerate(pieces(chunks)):
            text = piece if limit is None else piece[: limit - seen]
            seen += len(text)
            empty = empty and not text.strip()
            yield Document(name, text, part)
            if limit is not None and seen >= limit:
                break
        if limit is not None and seen >= limit:
            break
    if empty:
        raise InputError(f"{title!r} has no text in it; give a text with words")


def pieces(chunks: Iterable[str], size: int = PIECE) -> Iterator[str]:
    """Join chunks and cut them anew into pieces of at most ``size`` characters.

    A cut falls behind the last end of a line in the second half of a piece, or else before the
    last space in it, so that tokens are those of the whole text (but for a text with neither).
    """
    rest = ""
    for chunk in chunks:
        rest += chunk
        start = 0  # the rest is copied once per chunk: a chunk may be a whole book
        while len(rest) - start > size:
            half, end = start + size // 2, start + size
            cut = rest.rfind("\n", half, end) + 1
            if cut == 0:
                cut = rest.rfind(" ", half, end)
            if cut <= start:
                cut = end
            yield rest[start:cut]
            start = cut
        rest = rest[start:]
    if rest:
        yield rest
