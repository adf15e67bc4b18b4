"""Text generated under a plan, or dense, or both: what is asked for is checked before it is done.

Nothing here imports torch before :meth:`Request.run`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.core.atomic import check_writable, write_atomically
from esscher.core.codec import Count, Record, as_json, as_record
from esscher.core.errors import InputError
from esscher.core.options import LARGEST
from esscher.core.shown import announce, counted
from esscher.core.untrusted import limits, read_json
from esscher.core.validation import as_dim, as_positive, as_seed
from esscher.engine.models.choice import ModelChoice
from esscher.engine.text.documents import decoded, file_chunks, read_text, stream_chunks
from esscher.runs.registry import load
from esscher.studies.plan.result import Plan

if TYPE_CHECKING:
    from esscher.engine.cache.budgets import Score
    from esscher.engine.cache.cache import Decode, ReducedCache
    from esscher.engine.generation import Comparison, Generation


#: Lowest temperature: logits divided by it are far from overflow, and ties alone are drawn.
COLDEST = 1e-5
#: Name of a prompt that comes from standard input, and how the names of demo texts begin.
STANDARD_INPUT, DEMO = "-", "demo:"
#: Most characters of a demo text that are a prompt, some 2,000 tokens; it ends with a paragraph.
DEMO_PROMPT, PARAGRAPH = 8_000, "\n\n"


def read_plan(path: str | Path) -> Plan:
    """Read a plan from its file, or from the directory of its run.

    Raises
    ------
    InputError
        If there is none, or it is something else.
    """
    result = load(path)
    if not isinstance(result, Plan):
        raise InputError(
            f"{path} holds a result of esscher {result.study.name}, not a plan; make one with "
            "esscher plan MODEL --save plan.json"
        )
    return result


def read_prompt(source: str, most: int = limits.TEXT) -> str:
    """Read a prompt, as it is, from a file, from standard input, or from a demo text.

    Parameters
    ----------
    source
        The file; ``-`` for standard input; ``demo:code`` for the beginning of that text.
    most
        Characters that are read at most.

    Raises
    ------
    InputError
        If it is not there, no UTF-8 text, empty, or longer than any model reads.
    """
    if source.startswith(DEMO):
        text = "".join(piece.text for piece in read_text(source, limit_chars=DEMO_PROMPT))
        return text[: text.rindex(PARAGRAPH)]
    standard = source == STANDARD_INPUT
    name = "standard input" if standard else source
    path = Path(source).expanduser()
    if not standard and not path.exists():
        raise InputError(
            f"there is no file {source!r} to read the prompt from; give a text file, - for "
            "standard input, or demo:code"
        )
    if not standard and path.is_dir():
        raise InputError(f"the prompt {source!r} is a directory; give a text file")
    chunks = stream_chunks(sys.stdin.buffer) if standard else file_chunks(path)
    text = ""
    for chunk in decoded(chunks, name):
        text += chunk
        if len(text) > most:
            raise InputError(
                f"the prompt {name!r} has more than {most:,} characters, which no model reads at "
                "once; give a shorter text"
            )
    if not text.strip():
        raise InputError(f"the prompt {name!r} has no text in it; give a text with words")
    return text


@dataclass(frozen=True, kw_only=True)
class Request:
    """A text to generate; made, it is checked against all that is known without the weights.

    Attributes
    ----------
    model
        A decoder, and how to load it.
    prompt
        The text to go on from.
    plan
        What its cache keeps; None for transformers' own cache.
    max_new_tokens
        Tokens to generate at most.
    comparing
        Whether to generate with transformers' own cache too, first.
    seed, decode, length, chunk, score
        As for :meth:`Plan.cache`; the seed is also that of the draws.
    temperature
        Of the law that tokens are drawn from; None takes the likeliest.
    chat
        Whether the prompt is what a user says in a chat.
    save_cache
        File for the plan's cache in the end.

    Raises
    ------
    InputError
        For what cannot be done, with the remedy.
    """

    model: ModelChoice
    prompt: str
    plan: Plan | None
    max_new_tokens: int = 128
    comparing: bool = False
    seed: int = 0
    decode: Decode = "keep"
    length: int | None = None
    chunk: int | None = None
    score: Score | None = None
    temperature: float | None = None
    chat: bool = False
    save_cache: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        as_dim(self.max_new_tokens, "max_new_tokens")
        as_seed(self.seed, most=LARGEST)  # PyTorch takes no larger ones
        for name in ("length", "chunk"):
            if getattr(self, name) is not None:
                as_dim(getattr(self, name), name)
        warmth = COLDEST if self.temperature is None else self.temperature
        if as_positive(warmth, "temperature") < COLDEST:
            raise InputError(
                f"temperature is {warmth:g}; it must be at least {COLDEST:g}, or be left out, "
                "which takes the most likely token"
            )
        if self.plan is None and (self.comparing or self.save_cache is not None):
            raise InputError("there is no plan; give one, or generate dense")
        if self.save_cache is not None:
            check_writable(self.save_cache, f"save_cache {self.save_cache}")
        outline = self.model.outline
        outline.check_supported()
        if not outline.causal:
            raise InputError(
                f"{outline.name!r} is an encoder, which cannot generate text; choose a decoder, "
                "such as demo:smollm2"
            )
        if self.max_new_tokens >= outline.max_positions:
            raise InputError(
                f"max_new_tokens is {self.max_new_tokens}, but {outline.name} reads at most "
                f"{outline.max_positions} tokens, with the prompt; give fewer"
            )
        if self.plan is None:
            return
        # another architecture is refused here; weights are compared when they are loaded
        sizes = [
            (shape.layers, shape.heads, shape.key_heads, shape.head_dim, shape.hidden)
            for shape in (self.plan.model, outline.shape)
        ]
        model = self.plan.model
        names = [(model.name, model.family), (outline.name, outline.family.name)]
        if names[0][1] == names[1][1] and sizes[0] == sizes[1]:
            return
        first, second = (
            f"{name!r} ({family}: {layers} layers of {heads} heads, {key_heads} key heads of "
            f"dimension {dim})"
            for (name, family), (layers, heads, key_heads, dim, _) in zip(names, sizes, strict=True)
        )
        raise InputError(f"the plan is for {first}, not for {second}; make a plan for it")

    def to_dict(self) -> dict[str, Any]:
        """Return what produced the text; the prompt is left out, which the caller has."""
        options: dict[str, Any] = {
            "model": self.model.name,
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "chat": self.chat,
        }
        if self.plan is None:
            return options
        return options | {
            "decode": self.decode,
            "length": self.length,
            "chunk": self.chunk,
            "score": self.score or self.plan.score,
        }

    def run(self) -> Generation | Comparison:
        """Load the model, and generate.

        Raises
        ------
        InputError
            If the plan is for other weights, or the prompt is too long for the model.
        """
        announce(f"Loading {self.model.name}")
        from esscher.engine.generation import compare, generate, prompt_ids, warm_up  # bring torch

        loaded = self.model.load()
        ids = prompt_ids(loaded, self.prompt, self.max_new_tokens, chat=self.chat)

        def make_cache() -> ReducedCache | None:
            if self.plan is None:
                return None
            return self.plan.cache(
                loaded,
                seed=self.seed,
                decode=self.decode,
                length=self.length,
                chunk=self.chunk,
                score=self.score,
            )

        cache = make_cache()  # a plan for another model is refused here
        announce(f"Reading {counted(len(ids), 'token')}")
        result: Generation | Comparison
        if self.comparing:
            result, cache = compare(
                loaded,
                ids,
                make_cache,
                new=self.max_new_tokens,
                temperature=self.temperature,
                seed=self.seed,
            )
        else:
            warm_up(loaded, ids, make_cache())
            result = generate(
                loaded,
                ids,
                cache,
                new=self.max_new_tokens,
                temperature=self.temperature,
                seed=self.seed,
            )
        if self.save_cache is not None and cache is not None:
            cache.save(self.save_cache)
        return result


# What a plan saved on this machine: seconds, bytes and memory of both caches, kept with its run.
#
# ``esscher generate --compare`` measures it. Times are of a machine and of an hour, so that they
# are no part of the plan's result; they are in a file next to it, and the report shows them.

#: Name of the file in the directory of a run.
SAVINGS = "generated.json"


class Cost(Record, frozen=True, kw_only=True):
    """What generating took with one cache; None where the system does not tell."""

    prompt_seconds: float
    tokens_per_second: float | None
    cache_bytes: Count
    peak_memory: Count | None


class Savings(Record, frozen=True, kw_only=True):
    """The same prompt with transformers' own cache, and with that of the plan.

    Attributes
    ----------
    tokens, new_tokens
        Of the prompt, and those that were generated.
    dense, planned
        What each took.
    parts_at
        Number of the first new token in which the texts differ; None if they do not.
    """

    tokens: Count
    new_tokens: Count
    dense: Cost
    planned: Cost
    parts_at: Count | None


def store_savings(comparison: Comparison, folder: Path) -> Path:
    """Keep the costs of a comparison in the directory of the plan's run; return the file."""
    dense, planned = (
        Cost(
            prompt_seconds=text.prompt_seconds,
            tokens_per_second=text.decode_rate,
            cache_bytes=text.cache_bytes,
            peak_memory=text.peak.bytes,
        )
        for text in (comparison.dense, comparison.planned)
    )
    savings = Savings(
        tokens=comparison.dense.tokens,
        new_tokens=comparison.planned.new_tokens,
        dense=dense,
        planned=planned,
        parts_at=comparison.parts_at,
    )
    path = folder / SAVINGS
    write_atomically(path, as_json(savings))
    return path


def read_savings(folder: Path | None) -> Savings | None:
    """Return what was measured of a run's plan; None if nothing was.

    Raises
    ------
    InputError
        If the file is damaged.
    """
    if folder is None:
        return None
    path = folder / SAVINGS
    try:
        tree = read_json(path, follow=False)
    except FileNotFoundError:
        return None
    return as_record(tree, Savings, str(path))
