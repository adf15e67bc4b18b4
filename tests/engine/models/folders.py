"""Tiny models with tokenizers, in memory and in folders, and text in words that they know."""

from __future__ import annotations

import numpy as np

from esscher.engine.models.loaded import wrap_model
from esscher.engine.models.transformers_library import quiet
from tests.engine.models.tiny import tiny_model, transformers

SENTENCE = (
    "the of and a to in is that it was he for on are as with his they at be this have from or one "
    "had by word but not what all were we when your can said there use an each which she do how"
)
WORDS = SENTENCE.split()
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]


def encoder_tokenizer():
    """Whole words between [CLS] and [SEP]; built here, since nothing can be downloaded."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        unk_token="[UNK]",
    )


def decoder_tokenizer(*, begin=True):
    """Whole words, after a beginning-of-text token if wanted."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def tiny(name="bert", **options):
    """A tiny model with its tokenizer, in memory."""
    loaded = tiny_model(name, **options)
    tokenizer = decoder_tokenizer() if loaded.family.decoder else encoder_tokenizer()
    return wrap_model(loaded.model, tokenizer, name=name)


def words(n):
    """A text of n known words, in turn."""
    return " ".join(WORDS[i % len(WORDS)] for i in range(n))


def random_words(count=2500, seed=0, words=WORDS):
    """A text of random words: tokens of a real text do not repeat with a period."""
    return " ".join(np.random.default_rng(seed).choice(words, size=count))


def save(folder, name="bert", **options):
    """Write a tiny model with a tokenizer to a folder; return it as it was in memory."""
    loaded = tiny_model(name, **options)
    with quiet():
        loaded.model.save_pretrained(folder)
    encoder_tokenizer().save_pretrained(folder)
    return loaded


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


def letter_decoder(positions: int):
    """A decoder that reads letters, so that every text can be read back."""
    loaded = tiny_model(
        "llama",
        strength=15.0,
        vocab_size=98,
        max_position_embeddings=positions,
        bos_token_id=0,
        eos_token_id=1,
    )
    return wrap_model(loaded.model, letter_tokenizer(), name="letters")


def random_sentences(count: int) -> str:
    """Sentences of random words, nine each."""
    words = random_words(count).split()
    return " ".join(" ".join(words[i : i + 9]).capitalize() + "." for i in range(0, count, 9))
