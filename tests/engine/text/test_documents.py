"""Reading text from everywhere, no further than needed, and saying what is wrong with it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sys
import tracemalloc
import types
import zlib
from itertools import islice

import pyarrow
import pyarrow.parquet
import pytest

from esscher.core.errors import InputError
from esscher.engine.text import read_text
from esscher.engine.text.documents import PIECE, pieces
from esscher.engine.text.tables import _lines

PROSE = "One line of text.\nAnd another, with an umlaut: ä.\n"


def joined(source, **options):
    return "".join(document.text for document in read_text(source, **options))


def refused(source, *parts, **options):
    with pytest.raises(InputError) as caught:
        joined(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def zstd(data):
    return pyarrow.Codec("zstd").compress(data, asbytes=True)


PACK = {
    "": lambda x: x,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


@pytest.mark.parametrize("suffix", PACK)
def test_a_file_packed_or_not(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    text = PROSE * 5000
    path.write_bytes(PACK[suffix](text.encode()))
    assert joined(path) == text
    assert joined(str(path), limit_chars=100) == text[:100]
    path.write_bytes(PACK[suffix](json.dumps({"text": PROSE}).encode()))
    rows = tmp_path / f"a.jsonl{suffix}"
    path.rename(rows)
    assert joined(rows) == PROSE


@pytest.mark.parametrize("suffix", [s for s in PACK if s])
def test_a_packed_file_that_is_damaged(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    whole = PACK[suffix]((PROSE * 20000).encode())
    for data in (whole[: len(whole) // 2], b"not packed at all" * 10, b""):
        path.write_bytes(data)
        refused(path, str(path))


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_bomb_is_not_unpacked(tmp_path, suffix):
    """Forty megabytes of one letter; a few hundred characters are asked for."""
    path = tmp_path / f"bomb.txt{suffix}"
    packer = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}.get(suffix[1:])
    size = 40 * 2**20
    if packer is None:
        path.write_bytes(zstd(b"a" * size))
    else:
        with packer(path, "wb") as file:
            for _ in range(40):
                file.write(b"a" * 2**20)
    tracemalloc.start()
    assert joined(path, limit_chars=500) == "a" * 500
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * 2**20  # .xz keeps the last 8 MB of what it has unpacked


def test_an_xz_file_that_asks_for_too_much_memory(tmp_path):
    """Its first block says that 4 GB of what was unpacked are looked back at."""
    data = bytearray(lzma.compress(PROSE.encode()))
    block = slice(12, 12 + 4 * data[12])  # after the head of the stream; a checksum follows
    assert data[block][2:4] == b"\x21\x01"  # LZMA2, with one byte: the logarithm of that length
    data[16] = 40
    data[block.stop : block.stop + 4] = zlib.crc32(data[block]).to_bytes(4, "little")
    path = tmp_path / "a.txt.xz"
    path.write_bytes(data)
    refused(path, "Memory usage limit exceeded")


def test_several_xz_streams_in_one_file(tmp_path):
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(b"one ") + lzma.compress(b"two") + b"\0" * 4)
    assert joined(path) == "one two"


def test_lines_and_byte_order_marks(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert joined(path) == "one\ntwo\nthree\n"


def test_a_folder_in_alphabetical_order(tmp_path):
    for name in ("b.txt", "a/z.md", "a/b.py", ".hidden.txt", ".git/x.txt", "image.png", "c.txt.gz"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        data = f"[{name}]".encode()
        path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    (tmp_path / "rows.jsonl").write_text('{"title": "t", "body": "rows"}\n')
    read = [d.text for d in read_text(tmp_path, column="body")]
    assert read == ["[a/b.py]", "[a/z.md]", "[b.txt]", "[c.txt.gz]", "rows"]


def test_a_folder_without_text(tmp_path):
    (tmp_path / "image.png").write_bytes(b"\0")
    refused(tmp_path, "has no text files", ".txt")


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(PROSE.encode())))
    assert joined("-") == PROSE


def test_strings():
    documents = list(read_text(["one", "two"]))
    assert [(d.name, d.text, d.part) for d in documents] == [
        ("document 0", "one", 0),
        ("document 1", "two", 0),
    ]
    refused(["one", 2], "document 1 is int")
    refused(b"bytes", "text is bytes")
    refused(3, "text is int")


def write_parquet(path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def test_tables(tmp_path):
    rows = [{"id": 1, "body": "one", "title": "t"}, {"id": 2, "body": None, "title": "t"}]
    lines = tmp_path / "a.jsonl"
    lines.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    parquet = tmp_path / "a.parquet"
    write_parquet(parquet, id=[1, 2], body=["one", None], title=["t", "t"])
    for path in (lines, parquet):
        assert [d.text for d in read_text(path, column="body")] == ["one"]
        refused(path, "choose the column", "id, body, title")
        refused(path, "no column 'text'", "id, body, title", column="text")
        refused(path, "'id'", "is not text", "body, title", column="id")
    write_parquet(parquet, id=[1], only=["x"])
    assert joined(parquet) == "x"
    write_parquet(parquet, text=["x"], other=["y"])
    assert joined(parquet) == "x"


def test_lines_that_are_wrong(tmp_path):
    path = tmp_path / "a.jsonl"
    for content, part in (
        ('{"text": "a"}\n{"text": \n', "line 2"),
        ("[1, 2]\n", "is a JSON list"),
        ('{"text": "a"}\n{"other": "b"}\n', "line 2 of"),
        ('{"text": "a"}\n{"text": 3}\n', "is int"),
        ('{"text": "a"}\n' + "[" * 100_000, "line 2"),
    ):
        path.write_text(content)
        refused(path, str(path), part)


def test_a_line_without_end(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "' + "a" * 300_000)
    with pytest.raises(InputError, match="a line of more than 100000 characters"):
        list(_lines(path, longest=100_000))


def test_a_parquet_file_that_is_damaged(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 but not really PAR1")
    refused(path, str(path))
    path.rename(tmp_path / "a.parquet.gz")
    refused(tmp_path / "a.parquet.gz", "unpack it first")


def test_files_that_are_not_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"text" + b"\0" * 10)
    refused(path, "is not text", "zero byte at 4")
    path.write_bytes(("x" * 100).encode() + b"\xff\xfe" + b"y" * 10)
    refused(path, "is not UTF-8", "byte 100")
    path.write_bytes(b"cut" + "ä".encode()[:1])
    refused(path, "is not UTF-8")
    refused(tmp_path / "none.txt", "there is no file or folder", "demo:docs")
    path.write_text("text")
    refused(path, "is not a table", column="text")
    refused("demo:docs", "is not a table", column="text")


@pytest.mark.parametrize("content", ["", "  \n\t\n"])
def test_empty_text(tmp_path, content):
    path = tmp_path / "a.txt"
    path.write_text(content)
    refused(path, "has no text in it")
    refused([content], "has no text in it")
    refused([], "has no text in it")


def test_limit():
    assert joined(["abc", "def"], limit_chars=4) == "abcd"
    for limit in (0, -1, True):
        refused(["a"], "limit_chars", limit_chars=limit)


def test_demo_texts():
    documents = list(read_text("demo:docs"))
    assert sum(len(d.text) for d in documents) > 300_000
    assert [d.name for d in documents] == sorted(d.name for d in documents)
    code = list(islice(read_text("demo:code"), 200))
    names = [d.name for d in code]
    assert names[0].startswith("demo:code/")
    assert names == sorted(names)
    assert not any("/test/" in name or "site-packages" in name for name in names)
    assert any("import " in d.text for d in code)
    refused("demo:poems", "demo:docs, demo:code")


def test_nothing_is_read_before_it_is_needed():
    asked = []

    def source():
        for i in range(100):
            asked.append(i)
            yield "text"

    stream = read_text(source())
    assert asked == []
    next(stream)
    assert asked == [0]


def test_pieces_are_cut_between_words():
    text = "".join(f"word{i} " + ("\n" if i % 50 == 49 else "") for i in range(40_000))
    cut = list(pieces(text[i : i + 1000] for i in range(0, len(text), 1000)))
    assert "".join(cut) == text
    assert all(PIECE // 2 < len(piece) <= PIECE for piece in cut[:-1])
    assert all(piece.endswith("\n") for piece in cut[:-1])
    spaces = list(pieces(["a " * PIECE]))
    assert all(piece.startswith(" ") for piece in spaces[1:])
    assert [len(p) for p in pieces(["x" * (2 * PIECE + 5)])] == [PIECE, PIECE, 5]


def test_parts_of_a_long_document(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(PROSE * 5000)
    documents = list(read_text(path))
    assert [d.part for d in documents] == list(range(len(documents)))
    assert len(documents) > 2
    assert {d.name for d in documents} == {str(path)}


def fake_datasets(rows=None, error=None):
    calls = []

    def load_dataset(*args, **options):
        calls.append((args, options))
        if error is not None:
            raise error
        return iter(rows)

    return types.SimpleNamespace(load_dataset=load_dataset, calls=calls)


def test_datasets(monkeypatch):
    module = fake_datasets([{"id": 1, "text": "one"}, {"id": 2, "text": "two"}])
    monkeypatch.setitem(sys.modules, "datasets", module)
    assert joined("hf:owner/name@small:test") == "onetwo"
    assert module.calls == [(("owner/name", "small"), {"split": "test", "streaming": True})]
    refused("hf:name", "no column 'body'", "id, text", column="body")
    refused("hf:a b", "hf:NAME[@CONFIG][:SPLIT]")
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(error=ConnectionError("no net\nx")))
    refused("hf:name", "'hf:name' cannot be read: no net")
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused("hf:name", "pip install datasets")
