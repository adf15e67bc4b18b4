"""Text that a decoder generates, with time, bytes of the cache, and peak memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.memory import MemoryWatch
from esscher.core.untrusted import first_line
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.models.transformers_library import quiet, transformers_module
from esscher.engine.text.packing import check_known, text_after

#: Tokens whose likelihood is remembered of every step: a continuation is hardly ever another.
LIKELIEST = 64
#: Tokens that are read, and generated, before anything is measured: the first call is slower.
WARM_PROMPT, WARM_NEW = 8, 2
#: Tokens shown of a text before it parts from another.
AROUND = 12


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Generated text.

    Attributes
    ----------
    text
        What was generated, without the prompt.
    tokens
        Tokens of the prompt.
    token_ids
        The new tokens; an end of text is one of them.
    prompt_seconds
        Time to read the prompt, up to the law of the first new token.
    decode_seconds
        Time for the new tokens after the first.
    cache_bytes, dense_bytes
        Bytes of the cache at the end, and those of transformers' own for the same tokens.
    kept
        Share of the tokens that the cache holds, over all key heads.
    peak
        The most bytes that the process had while it generated; None if the system does not tell.
    likely
        Probabilities of the likeliest tokens of every step; empty if they were not asked for.
    """

    text: str
    tokens: int
    token_ids: tuple[int, ...]
    prompt_seconds: float
    decode_seconds: float
    cache_bytes: int
    dense_bytes: int
    kept: float
    peak: int | None
    likely: tuple[Mapping[int, float], ...] = field(default=(), repr=False)

    @property
    def new_tokens(self) -> int:
        """How many tokens were generated."""
        return len(self.token_ids)

    @property
    def prompt_rate(self) -> float:
        """Tokens of the prompt that were read per second."""
        return self.tokens / self.prompt_seconds

    @property
    def decode_rate(self) -> float | None:
        """New tokens per second, without the first, which reading the prompt gives."""
        return (self.new_tokens - 1) / self.decode_seconds if self.new_tokens > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "new_tokens": self.new_tokens,
            "token_ids": list(self.token_ids),
            "seconds": {"prompt": self.prompt_seconds, "decode": self.decode_seconds},
            "tokens_per_second": {"prompt": self.prompt_rate, "decode": self.decode_rate},
            "cache_bytes": self.cache_bytes,
            "dense_bytes": self.dense_bytes,
            "kept": self.kept,
            "peak_memory": self.peak,
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The same prompt with transformers' own cache, and with that of a plan.

    Attributes
    ----------
    dense, planned
        What each of them generated.
    parts_at
        Number of the first new token in which they differ, counted from 1; None if they do not.
    common
        Text up to there.
    before
        Its last words, or those of the prompt.
    """

    dense: Generation
    planned: Generation
    parts_at: int | None
    common: str
    before: str

    @property
    def likelihood(self) -> tuple[float | None, float | None]:
        """How likely the token of each was under the dense model, where they part.

        None for one that is not among the likeliest 64.
        """
        if self.parts_at is None:
            return None, None
        at = self.parts_at - 1
        law = self.dense.likely[at] if at < len(self.dense.likely) else {}
        first, second = (
            law.get(text.token_ids[at]) if at < text.new_tokens else None
            for text in (self.dense, self.planned)
        )
        return first, second

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings."""
        dense, planned = self.likelihood
        return {
            "parts_at": self.parts_at,
            "common": self.common,
            "likelihood": {"dense": dense, "plan": planned},
            "dense": self.dense.to_dict(),
            "plan": self.planned.to_dict(),
        }


def prompt_ids(loaded: LoadedModel, text: str, new: int, *, chat: bool = False) -> tuple[int, ...]:
    """Tokens of a prompt.

    Parameters
    ----------
    loaded
        A decoder with its tokenizer.
    text
        The prompt.
    new
        Tokens for which there has to be room after it.
    chat
        Whether it is what a user says in a chat, put into words by the tokenizer's template.

    Raises
    ------
    InputError
        If it has no tokens, too many for the model or such as the model does not know, or if there
        is no template.
    """
    tokenizer = loaded.tokenizer
    if chat:
        if not getattr(tokenizer, "chat_template", None):
            raise InputError(
                f"the tokenizer of {loaded.name!r} has no chat template; leave out --chat and "
                "write the prompt as the model is to see it"
            )
        messages = [{"role": "user", "content": text}]
        try:
            text = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # a template is a program of whoever made the model
            raise InputError(
                f"the chat template of {loaded.name!r} fails ({type(error).__name__}: "
                f"{first_line(error)}); leave out --chat and write the prompt as the model is to "
                "see it"
            ) from error
    # a template has the special tokens already
    tokens = tokenizer(text, add_special_tokens=not chat, verbose=False)["input_ids"]
    ids = tuple(map(int, tokens))
    if not ids:
        raise InputError("the prompt has no tokens; give a text with words")
    check_known(ids, len(loaded.model.get_input_embeddings().weight))
    room = loaded.max_positions - new
    if len(ids) > room:
        raise InputError(
            f"the prompt has {len(ids):,} tokens, and with {new:,} new ones that is more than the "
            f"{loaded.max_positions:,} that {loaded.name} reads; give a prompt of at most "
            f"{room:,} tokens, or fewer new ones"
        )
    return ids


def generate(
    loaded: LoadedModel,
    ids: tuple[int, ...],
    cache: Any = None,
    *,
    new: int,
    temperature: float | None = None,
    seed: int = 0,
    likely: bool = False,
) -> Generation:
    """Read a prompt once and generate tokens after it.

    Parameters
    ----------
    loaded
        A decoder with its tokenizer.
    ids
        Tokens of the prompt.
    cache
        An empty :class:`~esscher.engine.cache.cache.ReducedCache`; None for transformers' own.
    new
        Tokens to generate at most; an end of text ends it before.
    temperature
        Of the law that tokens are drawn from; None takes the likeliest.
    seed
        Seed of the draws.
    likely
        Whether to remember the likeliest tokens of every step.
    """
    memory = MemoryWatch()
    reduced = cache is not None
    if cache is None:
        cache = transformers_module().DynamicCache(config=loaded.model.config)
    times: list[float] = []
    likeliest: list[Mapping[int, float]] = []

    def watch(input_ids: Tensor, scores: Tensor) -> Tensor:
        """Note when logits come, and the largest; change nothing."""
        float(scores[0, 0])  # waits for the device
        times.append(time.perf_counter())
        if likely:
            law = torch.softmax(scores[0].float(), dim=-1)
            top = law.topk(min(LIKELIEST, len(law)))
            likeliest.append(dict(zip(top.indices.tolist(), top.values.tolist(), strict=True)))
        return scores

    prompt = torch.tensor([ids], device=loaded.device)
    sampling = {"do_sample": temperature is not None, "num_beams": 1, "repetition_penalty": 1.0}
    if temperature is not None:
        sampling |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
        torch.manual_seed(seed)
    model, tokenizer = loaded.model, loaded.tokenizer
    # Nothing is taken from the model's generation_config.json but the tokens that begin and end
    # texts: stop strings, penalties and the like would need more than a model and its cache, or
    # change the tokens that are compared.
    config = model.generation_config
    ends = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id")}
    padding = (tokenizer.pad_token_id, config.pad_token_id, tokenizer.eos_token_id, 0)
    model.generation_config = transformers_module().GenerationConfig(**ends)
    start = time.perf_counter()
    try:
        with quiet():
            out = model.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                past_key_values=cache,
                max_new_tokens=new,
                logits_processor=transformers_module().LogitsProcessorList([watch]),
                pad_token_id=next(token for token in padding if token is not None),
                cache_implementation=None,
                **sampling,
            )
    finally:
        model.generation_config = config
    peak = memory.peak
    token_ids = tuple(map(int, out[0, len(ids) :].tolist()))
    if reduced:
        cache_bytes, dense_bytes = int(cache.nbytes), int(cache.dense_nbytes)
        kept = float(cache.kept.mean()) / int(cache.get_seq_length())
    else:
        cache_bytes = sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in cache.layers)
        dense_bytes, kept = cache_bytes, 1.0
    return Generation(
        text=text_after(loaded.tokenizer, ids, token_ids),
        tokens=len(ids),
        token_ids=token_ids,
        prompt_seconds=times[0] - start,
        decode_seconds=times[-1] - times[0],
        cache_bytes=cache_bytes,
        dense_bytes=dense_bytes,
        kept=kept,
        peak=peak,
        likely=tuple(likeliest),
    )


def warm_up(loaded: LoadedModel, ids: tuple[int, ...], cache: Any = None) -> None:
    """Generate a few tokens and discard them: the first call is slower than later ones."""
    generate(loaded, ids[:WARM_PROMPT], cache, new=WARM_NEW)


def compare(
    loaded: LoadedModel,
    ids: tuple[int, ...],
    make_cache: Callable[[], Any],
    *,
    new: int,
    temperature: float | None = None,
    seed: int = 0,
) -> tuple[Comparison, Any]:
    """Generate with transformers' own cache, then with another.

    Parameters
    ----------
    loaded, ids, new, temperature, seed
        As for :func:`generate`.
    make_cache
        Makes an empty cache.

    Returns
    -------
    Both, and the other cache as it is in the end.
    """
    cache = make_cache()
    warm_up(loaded, ids)
    warm_up(loaded, ids, make_cache())
    dense = generate(loaded, ids, new=new, temperature=temperature, seed=seed, likely=True)
    planned = generate(loaded, ids, cache, new=new, temperature=temperature, seed=seed)
    first, second = dense.token_ids, planned.token_ids
    same = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
    comparison = Comparison(
        dense=dense,
        planned=planned,
        parts_at=None if first == second else same + 1,
        common=text_after(loaded.tokenizer, ids, first[:same]),
        before=loaded.tokenizer.decode((ids + first[:same])[-AROUND:], skip_special_tokens=True),
    )
    return comparison, cache
