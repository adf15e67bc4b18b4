"""Files and folders of text: unpacked, decoded, and checked to be text, chunk by chunk."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from esscher.core.errors import InputError
from esscher.core.untrusted import open_regular

#: Bytes read at a time.
CHUNK = 65_536
#: How to unpack, by the end of a file's name.
UNPACK: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
#: Files of a folder that are taken for text (also packed).
TEXT_ENDINGS = (
    ".txt .text .md .markdown .rst .tex .org .adoc .html .htm .xml .csv .tsv .log .py .pyi .c .h "
    ".cc .cpp .hpp .rs .go .java .kt .js .ts .jsx .tsx .rb .php .pl .sh .r .jl .lua .sql .swift "
    ".scala .hs .ml .cs .css .toml .yaml .yml .ini .cfg .jsonl .ndjson .parquet"
)
TEXT_SUFFIXES = frozenset(TEXT_ENDINGS.split())


def text_files(folder: Path) -> list[Path]:
    """Text files of a folder and its subfolders, in alphabetical order, without hidden ones."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(place) / name
            if not name.startswith(".") and suffix_of(path) in TEXT_SUFFIXES:
                _check_inside(path, folder)
                found.append(path)
    if not found:
        raise InputError(
            f"the folder {str(folder)!r} has no text files in it (looked for endings such as .txt, "
            ".md, .jsonl, .parquet, .py, also packed); give a file"
        )
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _check_inside(path: Path, folder: Path) -> None:
    """Refuse a link that leads out of a folder: somebody else may have made it.

    In a folder of the hub's cache (``snapshots/COMMIT``), links lead to ``blobs`` beside it.
    """
    if not path.is_symlink():
        return
    root = folder.resolve()
    blobs = [place.parent / "blobs" for place in root.parents if place.name == "snapshots"]
    target = path.resolve()
    if not any(target.is_relative_to(place) for place in (root, *blobs)):
        raise InputError(
            f"{path} is a link that leads out of the folder; copy the text into it, or give the "
            "file itself"
        )


def suffix_of(path: Path) -> str:
    """End of a file's name, in small letters and without that of a packed file."""
    plain = path.with_suffix("") if path.suffix.lower() in UNPACK else path
    return plain.suffix.lower()


def file_chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, unpacked if its name says that it is packed.

    Raises
    ------
    InputError
        When it cannot be read or unpacked.
    """
    unpack = UNPACK.get(path.suffix.lower())
    try:
        with open_regular(path) as file:
            if unpack is None:
                yield from stream_chunks(file)
            else:
                with unpack(file, "rb") as unpacked:
                    yield from stream_chunks(unpacked)
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read: {reason}; is it complete?") from error


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
