"""Passages: framed as the model expects, never padded, never more text than needed."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.core.options import AtMost
from esscher.engine.models.loaded import wrap_model
from esscher.engine.text.documents import Document, read_text
from esscher.engine.text.packing import first_passages, passages, read_passages
from tests.engine.models.folders import SENTENCE, decoder_tokenizer, encoder_tokenizer, words
from tests.engine.models.tiny import tiny_model

CLS, SEP = 1, 2


def test_encoders_are_framed_on_both_sides(bert):
    text = words(30)
    cut = list(passages(bert, read_text([text]), context=12))
    assert [len(p.ids) for p in cut] == [12, 12, 12]
    assert [p.number for p in cut] == [0, 1, 2]
    body = []
    for passage in cut:
        assert (passage.ids[0], passage.ids[-1]) == (CLS, SEP)
        np.testing.assert_array_equal(np.flatnonzero(passage.is_delimiter), [0, 11])
        assert passage.text_tokens == 10
        body += passage.ids[1:-1].tolist()
    assert body == bert.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_decoders_get_a_beginning_only_if_their_tokenizer_adds_one(llama):
    documents = list(read_text([words(20)]))
    begin = list(passages(llama, documents, context=8))
    assert all(
        p.ids[0] == 1 and p.is_delimiter.tolist() == [True] + [False] * (len(p.ids) - 1)
        for p in begin
    )
    plain = wrap_model(llama.model, decoder_tokenizer(begin=False))
    plain = list(passages(plain, documents, context=8))
    assert not any(p.is_delimiter.any() for p in plain)
    assert [len(p.ids) for p in plain] == [8, 8, 4]


def test_the_last_passage(bert):
    documents = list(read_text([words(25)]))
    kept = list(passages(bert, documents, context=12))
    assert [len(p.ids) for p in kept] == [12, 12, 7]
    assert kept[-1].ids[-1] == SEP
    dropped = list(passages(bert, documents, context=12, keep_short=False))
    assert [len(p.ids) for p in dropped] == [12, 12]


def test_delimiters_inside_the_text_are_marked(bert):
    cut = list(passages(bert, read_text(["the of [SEP] and [MASK] a"]), context=20))
    assert cut[0].is_delimiter.tolist() == [True, False, False, True, False, False, False, True]
    assert cut[0].text_tokens == 5


def test_documents_are_joined(bert):
    joined = list(passages(bert, read_text(["the of", "and a"]), context=12))
    assert len(joined) == 1
    assert joined[0].text_tokens == 4
    parts = [Document("x", "the of", 0), Document("x", " and a", 1)]
    assert next(passages(bert, read_text(["the \ud800 of"]), context=12)).text_tokens == 3
    digest = hashlib.sha256()
    assert next(passages(bert, parts, context=12, digest=digest)).text_tokens == 4
    assert digest.hexdigest() == hashlib.sha256(b"the of and a").hexdigest()


def test_no_more_text_is_read_than_needed(bert):
    read = []

    def documents():
        for i in range(1000):
            read.append(i)
            yield words(50)

    text = read_passages(bert, documents(), tokens=120, context=12)
    assert sum(p.text_tokens for p in text) == text.text_tokens == 120
    assert len(read) == 3
    assert text.text_hash == hashlib.sha256("\n\n".join([words(50)] * 3).encode()).hexdigest()


def test_tokens_are_rounded_up_to_whole_passages(bert):
    text = read_passages(bert, [words(100)], tokens=41, context=12)
    assert (len(text), text.text_tokens, text[-1].number, text.context) == (5, 50, 4, 12)
    with pytest.raises(InputError, match="has only 25 tokens, but 26 are needed"):
        read_passages(bert, [words(25)], tokens=26, context=12)
    assert len(read_passages(bert, [words(25)], tokens=25, context=12)) == 3


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (2, "frames a passage with 2 tokens, so it must be at least 3"),
        (81, "'bert' reads at most 80 tokens"),
        (0, "context is 0"),
        (3.5, "context is 3.5"),
    ],
)
def test_contexts_that_do_not_work(bert, context, message):
    with pytest.raises(InputError, match=message):
        passages(bert, read_text([SENTENCE]), context=context)


def test_tokenizers_that_do_not_work():
    with pytest.raises(InputError, match="there is no tokenizer"):
        passages(tiny_model("bert"), read_text([SENTENCE]), context=10)
    loaded = wrap_model(tiny_model("bert", vocab_size=20).model, encoder_tokenizer())
    with pytest.raises(InputError, match="do not match"):
        list(passages(loaded, read_text([SENTENCE]), context=10))


def test_defaults_are_what_the_text_has(bert):
    """A number that was not asked for is an upper limit, as long as there is something."""
    model, text = bert, [words(70)]
    assert len(read_passages(model, text, tokens=AtMost(500), context=20, least=30)) == 4
    assert [len(passage.ids) for passage in first_passages(model, text, AtMost(8), 20)] == [20] * 3
    with pytest.raises(InputError, match="only 70 tokens, but 90 are needed; give more text"):
        read_passages(model, text, tokens=AtMost(500), context=20, least=90)
    with pytest.raises(InputError, match="only 0 of 1 whole passages of 80 tokens; give more"):
        first_passages(model, text, AtMost(8), 80)
    # passages of a default length are shorter
    cut = first_passages(model, text, AtMost(8), AtMost(80))
    assert [len(passage.ids) for passage in cut] == [72]
    assert cut.context == 72
    assert cut[0].is_delimiter.tolist() == [True] + [False] * 70 + [True]
    cut = first_passages(model, text, 3, AtMost(80))
    assert [len(passage.ids) for passage in cut] == [25, 25, 25]
    body = np.concatenate([passage.ids[1:-1] for passage in cut])
    ids = model.tokenizer(text[0], add_special_tokens=False)["input_ids"]
    assert body.tolist() == ids[:69]
    # what was asked for is not changed
    with pytest.raises(InputError, match="at most 3 passages"):
        first_passages(model, text, 8, 20)
