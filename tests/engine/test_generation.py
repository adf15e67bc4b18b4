"""Generated text against transformers' own, and what is measured on the way."""

from __future__ import annotations

import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.cache.cache import planned_cache
from esscher.engine.generation import compare, generate, prompt_ids
from esscher.engine.models.loaded import wrap_model
from tests.engine.cache.plans import budgets_for, generated, padded
from tests.engine.models.folders import WORDS, decoder_tokenizer, random_words, tiny

NEW = 12


@pytest.fixture(scope="module")
def loaded():
    return tiny("llama", max_position_embeddings=256)


@pytest.fixture(scope="module")
def ids(loaded):
    return prompt_ids(loaded, random_words(150), NEW)


def by_transformers(loaded, ids, **options):
    """Tokens that transformers generates by itself."""
    batch = padded([torch.tensor(ids)])
    result = generated(loaded, batch, new=NEW, min_new_tokens=None, **options)
    return tuple(result.sequences[0, len(ids) :].tolist())


def test_dense_is_transformers_own(loaded, ids) -> None:
    result = generate(loaded, ids, new=NEW)
    assert result.token_ids == by_transformers(loaded, ids)
    assert result.tokens == len(ids) == 151
    assert result.kept == 1
    shape, seen = loaded.shape, len(ids) + result.new_tokens - 1
    assert result.cache_bytes == result.dense_bytes
    assert result.cache_bytes == 2 * shape.layers * shape.key_heads * shape.head_dim * 4 * seen
    assert result.prompt_seconds > 0
    assert result.decode_seconds > 0
    assert result.decode_rate == pytest.approx((result.new_tokens - 1) / result.decode_seconds)
    assert result.likely == ()


def test_a_reduced_cache(loaded, ids) -> None:
    cache = planned_cache(loaded, budgets_for(loaded, 0.25))
    result = generate(loaded, ids, cache, new=NEW)
    again = planned_cache(loaded, budgets_for(loaded, 0.25))
    assert result.token_ids == by_transformers(loaded, ids, past_key_values=again)
    assert result.dense_bytes == cache.dense_nbytes
    assert result.cache_bytes == cache.nbytes
    assert result.kept == cache.kept.mean() / cache.get_seq_length()
    assert 0.25 < result.kept < 0.35


def test_the_prompt_is_read_once(loaded, ids) -> None:
    read = []
    hook = loaded.backbone.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        result = generate(loaded, ids, new=NEW)
    finally:
        hook.remove()
    assert read == [len(ids)] + [1] * (result.new_tokens - 1)


def test_one_token_has_no_speed_of_decoding(loaded, ids) -> None:
    result = generate(loaded, ids, new=1)
    assert (result.new_tokens, result.decode_seconds, result.decode_rate) == (1, 0, None)


def test_draws_are_those_of_the_seed(loaded, ids) -> None:
    first, same, other = (
        generate(loaded, ids, new=NEW, temperature=3.0, seed=seed).token_ids for seed in (1, 1, 2)
    )
    assert first == same != other


def test_a_comparison(loaded, ids) -> None:
    result, cache = compare(
        loaded, ids, lambda: planned_cache(loaded, budgets_for(loaded, 0.2)), new=NEW
    )
    first, second = result.dense.token_ids, result.planned.token_ids
    assert first == by_transformers(loaded, ids)
    assert cache.nbytes == result.planned.cache_bytes
    assert first != second  # a tiny model of random weights is soon led astray
    assert result.parts_at is not None
    at = result.parts_at - 1
    assert first[:at] == second[:at]
    assert first[at] != second[at]
    with torch.no_grad():
        logits = loaded.model(input_ids=torch.tensor([[*ids, *first[:at]]])).logits[0, -1]
    law = torch.softmax(logits, dim=-1)
    for likelihood, token in zip(result.likelihood, (first[at], second[at]), strict=True):
        assert likelihood is not None
        assert likelihood == pytest.approx(float(law[token]), rel=1e-3)
    assert result.dense.text.startswith(result.common)
    assert result.planned.text.startswith(result.common)
    assert result.to_dict()["parts_at"] == result.parts_at


def test_everything_kept_is_the_same_text(loaded, ids) -> None:
    result, _ = compare(
        loaded, ids, lambda: planned_cache(loaded, budgets_for(loaded, 1.0)), new=NEW
    )
    assert result.parts_at is None
    assert result.common == result.dense.text == result.planned.text
    assert result.likelihood == (None, None)


def test_text_begins_where_the_prompt_ends(loaded, ids) -> None:
    result = generate(loaded, ids, new=3)
    words = loaded.tokenizer.convert_ids_to_tokens(list(result.token_ids))
    assert result.text == "".join(f" {word}" for word in words if word in WORDS)


def test_prompts_that_cannot_be_read(loaded) -> None:
    with pytest.raises(InputError, match=r"has 251 tokens.*12 new.*256.*at most 244"):
        prompt_ids(loaded, random_words(250), 12)
    assert len(prompt_ids(loaded, random_words(243), 12)) == 244
    with pytest.raises(InputError, match="has no chat template"):
        prompt_ids(loaded, "the", 1, chat=True)
    plain = wrap_model(loaded.model, decoder_tokenizer(begin=False), name="plain")
    with pytest.raises(InputError, match="no tokens"):
        prompt_ids(plain, "", 1)
    tokenizer = decoder_tokenizer()  # of another model
    tokenizer.add_tokens([f"word{i}" for i in range(200)])
    with pytest.raises(InputError, match="do not match"):
        prompt_ids(wrap_model(loaded.model, tokenizer, name="x"), "the word199", 1)


def test_chats(loaded) -> None:
    chat = wrap_model(loaded.model, decoder_tokenizer(), name="chat")
    chat.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }} {{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %} said{% endif %}"
    )
    ids = prompt_ids(chat, "the word", 1, chat=True)
    assert chat.tokenizer.decode(ids, skip_special_tokens=True).endswith("the word said")
    chat.tokenizer.chat_template = "{{ raise_exception('no users here') }}"
    with pytest.raises(InputError, match=r"of 'chat' fails.*no users here"):
        prompt_ids(chat, "the word", 1, chat=True)


def test_only_ends_are_taken_from_the_generation_config(loaded, ids) -> None:
    """transformers raises an exception for stop strings, and repeats no word."""
    plain, config = generate(loaded, ids, new=NEW).token_ids, loaded.model.generation_config
    changed = {"stop_strings": ["the"], "no_repeat_ngram_size": 1, "repetition_penalty": 3.0}
    sampling = {"do_sample": True, "temperature": 9.0}
    other = type(config)(eos_token_id=plain[3], **changed, **sampling)
    loaded.model.generation_config = other
    try:
        result = generate(loaded, ids, new=NEW)
        assert loaded.model.generation_config is other
    finally:
        loaded.model.generation_config = config
    assert result.token_ids == plain[: plain.index(plain[3]) + 1]
