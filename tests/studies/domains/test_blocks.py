"""Corpora in blocks: spread over the whole, apart from each other, long enough."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.studies.domains.measure import block_passages, cut_blocks, read_corpora
from esscher.studies.domains.study import DomainsStudy
from tests.engine.models.folders import WORDS, tiny


@pytest.fixture(scope="module")
def bert():
    return tiny("bert")


def read_corpus(name, source):
    ((corpus, text),) = read_corpora({name: source}).items()
    return corpus, text


def study(blocks, tokens=80, seed=0, mode="pooled"):
    return DomainsStudy(
        "demo:minilm", {}, blocks=blocks, block_tokens=tokens, context=42, mode=mode, seed=seed
    )


def lines(count, seed=0):
    """Numbered lines of random words; the tokenizer takes a number for an unknown word."""
    rng = np.random.default_rng([seed, 3])
    return "".join(f"{i} {' '.join(rng.choice(WORDS, 9))}\n" for i in range(count))


def numbers(text):
    return [int(line.split()[0]) for line in text.splitlines() if line.split()[0].isdigit()]


@pytest.mark.parametrize("mode", ["pooled", "context"])
def test_blocks_are_spread_and_apart(bert, mode):
    asked = study(5, tokens=84 if mode == "context" else 80, mode=mode)
    blocks = cut_blocks(bert, *read_corpus("x", [lines(600)]), asked)
    assert len(blocks) == 5
    seen = [numbers(block) for block in blocks]
    for before, after in itertools.pairwise(seen):
        assert before[-1] <= after[0]
    for part, (first, *_) in enumerate(seen):
        # each in its own fifth, from the beginning of a line on
        assert part * 120 - 2 <= first <= (part + 1) * 120
    for block in blocks:
        read = block_passages(bert, block, asked)
        assert sum(p.text_tokens for p in read) >= 80
        if mode == "context":
            assert [len(p.ids) for p in read] == [42, 42]


def test_places_depend_on_the_seed_only(bert):
    corpus = read_corpus("x", [lines(600)])
    first = cut_blocks(bert, *corpus, study(4))
    assert first == cut_blocks(bert, *corpus, study(4))
    assert first != cut_blocks(bert, *corpus, study(4, seed=1))


def test_a_corpus_that_just_suffices(bert):
    # 4 parts of 100 tokens, blocks of 80: only the beginnings of the parts are long enough
    assert len(cut_blocks(bert, *read_corpus("x", [lines(40)]), study(4))) == 4


def test_a_corpus_that_is_too_short_says_how_much(bert):
    with pytest.raises(InputError, match=r"'small'.*only 400 tokens.*need 1,200.*at most 60"):
        cut_blocks(bert, *read_corpus("small", [lines(40)]), study(6, tokens=200))


def test_text_without_lines_or_spaces_is_cut_anywhere(bert):
    with pytest.raises(InputError, match="has only 1 tokens"):
        cut_blocks(bert, *read_corpus("x", ["a" * 50_000]), study(3))


def test_documents_are_joined_by_blank_lines():
    assert read_corpus("x", ["one", "two"])[1] == "one\n\ntwo"


def test_unreadable_corpora_are_named(tmp_path):
    with pytest.raises(InputError, match=r"corpus 'b'.*no file or folder"):
        read_corpus("b", str(tmp_path / "missing.txt"))
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"corpus 'c'.*not text"):
        read_corpus("c", tmp_path / "bad.txt")


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({}, "are no corpora"),
        ({"a": "x"}, "is only one corpus"),
        ({"a": "x", "": "y"}, "name of a corpus is ''"),
        ({"a": "x", 3: "y"}, "name of a corpus is 3"),
        ({"a": "x", "a ": "y"}, "the same name"),
        ({"a": "-", "b": "-"}, "standard input"),
        (["a", "b"], "dictionary"),
    ],
)
def test_bad_corpora(texts, words):
    with pytest.raises(InputError, match=words):
        DomainsStudy("demo:minilm", texts).check_texts()
