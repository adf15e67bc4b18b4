"""Reading text from everywhere, no further than needed, and saying what is wrong with it."""

from __future__ import annotations

import gc
import io
import json
import sys
import types
from itertools import islice

import pyarrow
import pyarrow.parquet
import pytest

from esscher.core.errors import InputError
from esscher.engine.text.documents import PIECE, read_text

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


def test_lines_and_byte_order_marks(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert joined(path) == "one\ntwo\nthree\n"


def test_a_folder_in_alphabetical_order(tmp_path):
    for name in ("b.txt", "a/z.md", "a/b.py", ".hidden.txt", ".git/x.txt", "image.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"[{name}]")
    assert [d.text for d in read_text(tmp_path)] == ["[a/b.py]", "[a/z.md]", "[b.txt]"]
    (tmp_path / "none").mkdir()
    refused(tmp_path / "none", "has no text files", ".txt")


def test_strings_and_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(PROSE.encode())))
    assert joined("-") == PROSE
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


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """The library itself, which keeps nothing outside of the test's folder."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("offline")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the library leaves .csv files open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_tables(tmp_path):
    rows = [{"id": 1, "body": "one", "title": "t"}, {"id": 2, "body": None, "title": "t"}]
    lines, parquet, csv = (tmp_path / f"a [1].{end}" for end in ("jsonl", "parquet", "csv"))
    lines.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    write_parquet(parquet, id=[1, 2], body=["one", None], title=["t", "t"])
    csv.write_text("id,body,title\n1,one,t\n2,,t\n")
    for path in (lines, parquet, csv):
        assert [d.text for d in read_text(path, column="body")] == ["one"]
        refused(path, "choose the column", "id, body, title")
        refused(path, "no column 'text' of text", "body, title", column="text")
        refused(path, "no column 'id' of text", "body, title", column="id")
    write_parquet(parquet, id=[1], only=["x"])
    assert joined(parquet) == "x"
    write_parquet(parquet, text=["x"], other=["y"])
    assert joined(parquet) == "x"
    parquet.write_bytes(b"PAR1 but not really PAR1")
    refused(parquet, "cannot be read")
    lines.write_text('{"text": "a"}\n{"text": \n')
    refused(lines, "cannot be read")
    gc.collect()  # or the warnings come in another test


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


def test_demo_texts():
    for name, part in (("demo:docs", "demo:docs/"), ("demo:code", "demo:code/")):
        documents = list(islice(read_text(name), 100))
        assert sum(len(d.text) for d in documents) > 100_000
        assert all(d.name.startswith(part) for d in documents)
        assert [d.name for d in documents] == sorted(d.name for d in documents)
        assert not any("/test/" in d.name or "site-packages" in d.name for d in documents)
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
    documents = list(read_text([text, "a " * PIECE, "x" * (2 * PIECE + 5)]))
    assert "".join(d.text for d in documents if d.name == "document 0") == text
    first, second, third = ([d for d in documents if d.name.endswith(end)] for end in "012")
    assert [d.part for d in first] == list(range(len(first)))
    assert all(PIECE // 2 < len(d.text) <= PIECE for d in first[:-1])
    assert all(d.text.endswith("\n") for d in first[:-1])
    assert all(d.text.startswith(" ") for d in second[1:])
    assert [len(d.text) for d in third] == [PIECE, PIECE, 5]


def fake_datasets(rows=None, error=None):
    calls = []

    def load_dataset(*args, **options):
        calls.append((args, options))
        if error is not None:
            raise error
        return iter(rows)

    return types.SimpleNamespace(load_dataset=load_dataset, calls=calls)


def test_datasets(monkeypatch, tmp_path):
    module = fake_datasets([{"id": 1, "text": "one"}, {"id": 2, "text": "two"}])
    monkeypatch.setitem(sys.modules, "datasets", module)
    assert joined("hf:owner/name@small:test") == "onetwo"
    assert module.calls == [(("owner/name", "small"), {"split": "test", "streaming": True})]
    refused("hf:name", "no column 'body'", "text", column="body")
    refused("hf:a b", "hf:NAME[@CONFIG][:SPLIT]")
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(error=ConnectionError("no net\nx")))
    refused("hf:name", "'hf:name' cannot be read", "no net")
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused("hf:name", 'pip install "esscher[texts]"')
    path = tmp_path / "a.jsonl"
    path.write_text("{}")
    refused(path, 'pip install "esscher[texts]"')
