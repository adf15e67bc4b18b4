"""Tiny models with tokenizers, in memory and in folders, and text in words that they know."""

from __future__ import annotations

import json

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


def _tokenizer(model, split, frame=None, **roles):
    """A tokenizer that is built here, since nothing can be downloaded; ``frame`` goes around."""
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = split
    if frame is not None:
        marks = [word for word in frame.split() if word != "$A"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=frame, special_tokens=[(mark, tokenizer.token_to_id(mark)) for mark in marks]
        )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


def _word_tokenizer(special, unknown, frame, **roles):
    """Whole words."""
    from tokenizers import models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    model = models.WordLevel(vocabulary, unk_token=unknown)
    return _tokenizer(model, pre_tokenizers.Whitespace(), frame, unk_token=unknown, **roles)


def encoder_tokenizer():
    """Whole words between [CLS] and [SEP]."""
    roles = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    roles = {f"{role}_token": word for role, word in roles.items()}
    return _word_tokenizer(SPECIAL, "[UNK]", "[CLS] $A [SEP]", **roles)


def decoder_tokenizer(*, begin=True):
    """Whole words, after a beginning-of-text token if wanted."""
    special, frame = ["<unk>", "<s>", "</s>"], "<s> $A" if begin else None
    return _word_tokenizer(special, "<unk>", frame, bos_token="<s>", eos_token="</s>")


def letter_tokenizer():
    """One token per letter, after a token for the beginning."""
    from tokenizers import decoders, models, pre_tokenizers

    # the space and the line break are the last two
    alphabet = [*(chr(i) for i in range(33, 127)), "Ġ", "Ċ"]
    vocabulary = {word: i for i, word in enumerate(["<s>", "</s>", *alphabet])}
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made = _tokenizer(
        models.BPE(vocabulary, []), split, "<s> $A", bos_token="<s>", eos_token="</s>"
    )
    made.backend_tokenizer.decoder = decoders.ByteLevel()
    return made


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


def configure(folder, **fields):
    """Change fields of the configuration in a model's folder."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


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
