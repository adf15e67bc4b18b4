"""A tiny decoder that reads letters, so that every text can be read back, and a text for it."""

from __future__ import annotations

import pytest

from esscher.engine.models import wrap_model
from tests.engine.models.folders import random_words
from tests.engine.models.tiny import tiny_model, transformers


def letter_tokenizer():
    """One token per letter, after a token for the beginning."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    # the space and the line break are the last two
    alphabet = [*(chr(i) for i in range(33, 127)), "Ġ", "Ċ"]
    vocabulary = {word: i for i, word in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    )


@pytest.fixture(scope="session")
def decoder():
    loaded = tiny_model(
        "llama", strength=15.0, vocab_size=98, max_position_embeddings=4096, bos_token_id=0,
        eos_token_id=1,
    )  # fmt: skip
    return wrap_model(loaded.model, letter_tokenizer(), name="letters")


@pytest.fixture(scope="session")
def text():
    """Sentences of random words."""
    words = random_words(6000).split()
    return " ".join(" ".join(words[i : i + 9]).capitalize() + "." for i in range(0, 6000, 9))
