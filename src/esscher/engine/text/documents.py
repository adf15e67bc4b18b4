"""Files and folders of text: decoded, and checked to be text, chunk by chunk."""

from __future__ import annotations

import codecs
import glob
import importlib
import io
import math
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from esscher.core.codec import Hash, Name, Record
from esscher.core.errors import InputError
from esscher.core.untrusted import first_line, open_regular

#: Bytes read at a time.
CHUNK = 65_536
#: Files of a folder that are taken for text.
TEXT_ENDINGS = (
    ".txt .text .md .markdown .rst .tex .org .adoc .html .htm .xml .csv .tsv .log .py .pyi .c .h "
    ".cc .cpp .hpp .rs .go .java .kt .js .ts .jsx .tsx .rb .php .pl .sh .r .jl .lua .sql .swift "
    ".scala .hs .ml .cs .css .toml .yaml .yml .ini .cfg .jsonl .ndjson .parquet"
)
TEXT_SUFFIXES = frozenset(TEXT_ENDINGS.split())


def text_files(folder: Path) -> list[Path]:
    """Text files of a folder and its subfolders, in alphabetical order, without hidden ones."""
    paths = [
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in TEXT_SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not paths:
        raise InputError(
            f"the folder {str(folder)!r} has no text files in it (looked for endings such as .txt, "
            ".md, .jsonl, .parquet, .py); give a file"
        )
    return sorted(paths, key=lambda path: path.relative_to(folder).as_posix())


def file_chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file.

    Raises
    ------
    InputError
        When it cannot be read.
    """
    with open_regular(path) as file:
        yield from stream_chunks(file)


def stream_chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The bytes of an open stream."""
    while chunk := stream.read(CHUNK):
        yield chunk


def decoded(chunks: Iterator[bytes], name: str) -> Iterator[str]:
    """UTF-8 text of bytes, with line ends as line feeds.

    Raises
    ------
    InputError
        For bytes that are not UTF-8 text, with the place of the first bad one.
    """
    utf8 = codecs.getincrementaldecoder("utf-8-sig")()
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
    done = 0
    try:
        for chunk in chunks:
            if b"\0" in chunk:
                raise InputError(
                    f"{name} is not text: it has a zero byte at {done + chunk.index(0)}; give a "
                    "text file (if it is UTF-16, convert it to UTF-8)"
                )
            yield decoder.decode(chunk)
            done += len(chunk)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8: byte {done + error.start} or shortly before it cannot be "
            "decoded; convert the text to UTF-8"
        ) from error


# Columns of text in tables, row by row, by the library ``datasets``: files, and ``hf:`` names.

#: How to install what reads tables.
INSTALL = 'pip install "esscher[texts]"'
#: Endings of files that are tables, and what ``datasets`` calls their format.
TABLES = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".csv": "csv",
}
#: ``hf:NAME[@CONFIG][:SPLIT]``.
NAME = re.compile(
    r"hf:(?P<name>[\w.\-]+(/[\w.\-]+)?)(@(?P<config>[\w.\-]+))?(:(?P<split>[\w.\-]+))?"
)


def table_rows(source: str, column: str | None) -> Iterator[str]:
    """Yield the texts of a table, one per row; rows without one are left out.

    Parameters
    ----------
    source
        A file, or ``hf:NAME[@CONFIG][:SPLIT]`` for a dataset on the hub, of which no more than
        needed is downloaded.
    column
        The column with the texts; if left out, ``text``, or the only one with text.

    Raises
    ------
    InputError
        When ``datasets`` is not installed, the name is of another form, the table has no such
        column, or it cannot be read.
    """
    match = NAME.fullmatch(source)
    if match is None and source.startswith("hf:"):
        raise InputError(f"{source!r} is not of the form hf:NAME[@CONFIG][:SPLIT]")
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise InputError(
            f"reading {source} needs the package datasets; install it with: {INSTALL}"
        ) from error
    place: tuple[str, ...]
    if match is not None:
        place, options = (match["name"], match["config"]), {"split": match["split"] or "train"}
        trouble = (
            f"the dataset {source!r} cannot be read; check its name, configuration and split, and "
            "the network"
        )
    else:
        path = Path(source)
        open_regular(path).close()
        # a name is taken for a pattern
        files = glob.escape(str(path.resolve()))
        place, options = (TABLES[path.suffix.lower()],), {"data_files": files, "split": "train"}
        trouble = f"{source} cannot be read"

    def texts() -> Iterator[str]:
        chosen = None
        try:
            for row in datasets.load_dataset(*place, **options, streaming=True):
                chosen = chosen or _choose_column(row, column, source)
                value = row.get(chosen)
                if value is not None and not isinstance(value, str):
                    raise InputError(
                        f"{chosen!r} of {source} holds {type(value).__name__}; it must be text"
                    )
                if value is not None:
                    yield value
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{trouble} ({type(error).__name__}: {first_line(error)})") from error

    return texts()


def _choose_column(row: Mapping[str, Any], wanted: str | None, name: str) -> str:
    """The column to read: the one asked for, or ``text``, or the only one with text.

    Raises
    ------
    InputError
        Listing the columns, when there is no such column or no obvious one.
    """
    texts = [key for key, value in row.items() if isinstance(value, str)]
    if wanted is None:
        if "text" in row:
            return "text"
        if len(texts) == 1:
            return texts[0]
        raise InputError(
            f"choose the column of {name} that holds the text; its columns: {', '.join(row)}"
        )
    if wanted not in row or (row[wanted] is not None and wanted not in texts):
        raise InputError(
            f"{name} has no column {wanted!r} of text; columns with text: "
            f"{', '.join(texts) or 'none'}"
        )
    return wanted


# Texts that every Python has, by name: ``demo:docs`` and ``demo:code``.

#: Folders of the standard library that are not program text: tests, installed packages, prose and
#: tables of characters.
LEFT_OUT = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "pydoc_data", "encodings"}
)


def language_reference() -> Iterator[tuple[str, str]]:
    """Python's language reference, topic by topic."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise InputError(
            "this Python comes without pydoc_data, so there is no demo:docs; give a text file"
        ) from error
    for name in sorted(topics):
        yield f"demo:docs/{name}", topics[name]


def standard_library() -> Iterator[tuple[str, str]]:
    """The sources of the standard library, in alphabetical order."""
    root = Path(sysconfig.get_path("stdlib"))
    files: list[Path] = []
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        here = Path(place).relative_to(root)
        files += [here / name for name in names if name.endswith(".py")]
    if not files:
        raise InputError(
            "this Python comes without the sources of its library, so there is no demo:code; give "
            "a folder with program text"
        )
    for path in sorted(files):
        try:
            text = (root / path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):  # a few files are there to test other encodings
            continue
        yield f"demo:code/{path.as_posix()}", text


#: The texts by their names.
DEMO_TEXTS: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "demo:docs": language_reference,
    "demo:code": standard_library,
}


# Text from anywhere, as documents in pieces that are read when they are needed.

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
        A file (``.jsonl``, ``.parquet`` and ``.csv`` are tables), a folder (its text files in
        alphabetical order, with those of the folders in it), ``-`` for standard input,
        ``demo:docs`` (Python's language reference), ``demo:code`` (the standard library),
        ``hf:NAME[@CONFIG][:SPLIT]`` (a Hugging Face dataset), or a list of strings.
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
    return _cut(source_name(source), _documents(source, column), limit_chars)


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


def _documents(source: TextSource, column: str | None) -> Iterator[Named]:
    """The documents of a source, each with its name and its text in chunks."""
    if not isinstance(source, (str, os.PathLike)):
        if isinstance(source, (bytes, bytearray)) or not isinstance(source, Iterable):
            raise InputError(
                f"text is {type(source).__name__}; it must be the name of a file or folder, or a "
                "list of strings"
            )
        return _strings(source)
    name = os.fspath(source)
    if name.startswith("hf:"):
        return ((name, iter([text])) for text in table_rows(name, column))
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
        # files of a folder may be of several kinds: the column is that of its tables
        return (
            document
            for file in text_files(path)
            for document in _file(file, column if file.suffix.lower() in TABLES else None)
        )
    if not path.is_file():
        raise InputError(
            f"there is no file or folder {name!r}; the demo texts are {', '.join(DEMO_TEXTS)}"
        )
    return _file(path, column)


def _strings(source: Iterable[str]) -> Iterator[Named]:
    for i, text in enumerate(source):
        if not isinstance(text, str):
            raise InputError(f"document {i} is {type(text).__name__}; it must be a string")
        yield f"document {i}", iter([text])


def _file(path: Path, column: str | None) -> Iterator[Named]:
    if path.suffix.lower() in TABLES:
        return ((str(path), iter([text])) for text in table_rows(str(path), column))
    if column is not None:
        tables = ", ".join(TABLES)
        raise InputError(f"column is {column!r}, but {path} is not a table ({tables})")
    return iter([(str(path), decoded(file_chunks(path), str(path)))])


def _cut(title: str, documents: Iterator[Named], limit: int | None) -> Iterator[Document]:
    """Documents in pieces, up to a number of characters in all."""
    left, empty = math.inf if limit is None else limit, True
    for name, chunks in documents:
        for part, piece in enumerate(pieces(chunks)):
            text = piece if len(piece) <= left else piece[: int(left)]
            left -= len(text)
            empty = empty and not text.strip()
            yield Document(name, text, part)
            if not left:
                break
        if not left:
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
