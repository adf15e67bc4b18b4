"""From corpora to the numbers of every head on every block.

A number measured on one stretch of text varies from stretch to stretch. The block is the unit that
is repeated: a corpus is divided into as many equal parts as it has blocks, and every part gives one
block of consecutive text, from a place drawn at random in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import islice

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models.choice import AnyModel, opened_model
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.sampled.context import delimiter_shares, measure_context, split
from esscher.engine.sampled.layer import MOST, HeadNumbers, tokens_for
from esscher.engine.sampled.pooled import PassageMoments, measure_pooled
from esscher.engine.text.collect import collect_cloud, visit_passages
from esscher.engine.text.documents import TextSource, read_text, source_name
from esscher.engine.text.packing import BETWEEN, Passage, passages
from esscher.math.statistics import find_sinks, received_khat
from esscher.studies.domains.study import STATISTICS, BlockNumbers, Corpus, DomainsSettings

#: Characters of a corpus that are looked at; a longer one is used up to there.
LONGEST = 20_000_000
#: Characters in which the beginning of a line, or else of a word, is looked for.
SEARCHED = 1_000
#: Characters of a token that are tried first; doubled while a block is too short.
FIRST_GUESS = 6
#: Relative output error for which tokens are counted.
TOLERANCE = 0.1


def read_corpora(texts: Mapping[str, TextSource]) -> dict[Corpus, str]:
    """Read corpora, each up to 20 million characters; a blank line is between two documents.

    Raises
    ------
    InputError
        For a source that cannot be read; the message names the corpus.
    """
    corpora = {}
    for name, source in texts.items():
        try:
            pieces: list[str] = []
            for document in read_text(source, limit_chars=LONGEST):
                if pieces and not document.part:
                    pieces.append(BETWEEN)
                pieces.append(document.text)
        except InputError as error:
            raise InputError(f"corpus {name!r}: {error}") from error
        text = "".join(pieces)
        text_hash = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        corpus = Corpus(
            name=name, source=source_name(source), text_hash=text_hash, characters=len(text)
        )
        corpora[corpus] = text
    return corpora


def cut_blocks(
    loaded: LoadedModel, corpus: Corpus, text: str, settings: DomainsSettings
) -> list[str]:
    """Return the texts of a corpus' blocks, each with enough tokens.

    Raises
    ------
    InputError
        When a part of the corpus is too short; the message says how many tokens there are, and
        how many are needed.
    """
    blocks = []
    for block in range(settings.blocks):
        low = len(text) * block // settings.blocks
        high = len(text) * (block + 1) // settings.blocks
        where = float(random_stream(settings.seed, "corpus blocks", block).random())
        # Where the rest of the part is too short, nearer to its beginning.
        for at in (where, where / 2, where / 4, 0.0):
            start = low + int(at * (high - low))
            if start:
                # where a line begins, or else a word
                ends = [text.find(mark, start, min(start + SEARCHED, high)) for mark in "\n "]
                start = next((end + 1 for end in ends if end >= 0), start)
            part = _enough(loaded, text[start:high], settings)
            if part is not None:
                break
        else:
            stream = passages(loaded, read_text([text]), context=settings.context)
            tokens = sum(passage.text_tokens for passage in stream)
            needed = settings.blocks * settings.block_tokens
            fits = max(0, int(0.9 * tokens / settings.blocks))
            raise InputError(
                f"corpus {corpus.name!r} ({corpus.source}) has only {tokens:,} tokens, but "
                f"{settings.blocks} blocks of {settings.block_tokens:,} tokens need {needed:,}, "
                "and a little more to begin where a line does; give more text, or ask for fewer "
                f"blocks or for blocks of at most {fits:,} tokens"
            )
        blocks.append(part)
    return blocks


def block_passages(loaded: LoadedModel, text: str, settings: DomainsSettings) -> list[Passage]:
    """Return the passages of a block; fewer than it needs if its text is too short."""
    documents = read_text([text])
    if settings.sequences is None:
        return list(
            passages(loaded, documents, tokens=settings.block_tokens, context=settings.context)
        )
    whole = passages(loaded, documents, context=settings.context, keep_short=False)
    return list(islice(whole, settings.sequences))


def _enough(loaded: LoadedModel, text: str, settings: DomainsSettings) -> str | None:
    """The beginning of a text that fills a block; None if all of it does not."""
    length = FIRST_GUESS * settings.block_tokens
    while True:
        part = text[:length]
        if part.strip():
            read = block_passages(loaded, part, settings)
            if settings.sequences is None:
                filled = sum(p.text_tokens for p in read) >= settings.block_tokens
            else:
                filled = len(read) == settings.sequences
            if filled:
                return part
        if length >= len(text):
            return None
        length *= 2


def measure_block(
    model: AnyModel, text: str, corpus: str, block: int, settings: DomainsSettings
) -> xr.Dataset:
    """Measure every head on one block.

    Parameters
    ----------
    model
        The model as tasks take it.
    text
        Text of the block.
    corpus, block
        Name of its corpus, and its number there, which decides on the random numbers. Blocks of the
        same number share them between corpora: what differs between corpora is then due to the text
        alone.
    settings
        What to measure.
    """
    seed = int(random_stream(settings.seed, "corpus block seed", block).integers(2**31))
    with opened_model(model) as loaded:
        read = block_passages(loaded, text, settings)
        if settings.mode == "pooled":
            numbers = _pooled(loaded, read, settings, seed)
        else:
            numbers = _context(loaded, read, settings, seed)
        unknown = getattr(loaded.tokenizer, "unk_token_id", None)
    ids = np.concatenate([passage.ids[~passage.is_delimiter] for passage in read])
    data = BlockNumbers.new(
        corpus=[corpus],
        block=[block],
        statistic=STATISTICS,
        layer=settings.layers,
        head=settings.heads,
    )
    data.number = [[numbers]]
    data.length = [[len(ids)]]
    data.distinct = [[len(np.unique(ids)) / len(ids)]]
    data.unknown = [[0.0 if unknown is None else float(np.mean(ids == unknown))]]
    return data.dataset


def _pooled(
    loaded: LoadedModel, read: list[Passage], settings: DomainsSettings, seed: int
) -> Array:
    """Numbers of every head on the tokens of a block as one set, [statistic, layer, head]."""
    tokens = settings.block_tokens
    moments = PassageMoments(read, tokens)
    cloud = collect_cloud(
        loaded,
        read,
        tokens=tokens,
        layers=settings.layers,
        heads=settings.heads,
        watch=moments.take,
    )
    rows = []
    for layer in settings.layers:
        measured, heads = measure_pooled(cloud, layer, (2,), 0, seed)
        shares = moments.delimiters[layer][list(measured.heads)]
        rows.append([head_numbers(*head, None, seed) for head in zip(heads, shares, strict=True)])
    return np.moveaxis(np.array(rows), -1, 0)


def _context(
    loaded: LoadedModel, read: list[Passage], settings: DomainsSettings, seed: int
) -> Array:
    """Numbers of every head on the sequences of a block, their mean, [statistic, layer, head]."""
    rows: list[list[list[float]]] = []

    def measure(passage: Passage, capture: LayerInputs) -> None:
        rng = random_stream(seed, "probe queries", passage.number)
        queries, keys = split(len(passage.ids), passage.is_delimiter, loaded.causal, rng)
        with torch.inference_mode():
            _, numbers, sinks = measure_context(
                capture, queries, keys, (2,), 0, seed, passage.number
            )
            shares = delimiter_shares(capture, passage.is_delimiter)
        rows.append([head_numbers(numbers[h], shares[h], sinks[h], seed) for h in settings.heads])

    visit_passages(loaded, read, measure, layers=settings.layers)
    grid = np.array(rows).reshape(len(read), len(settings.layers), len(settings.heads), -1)
    # passages last: sums are then in the order in which those of a list are
    return np.asarray(np.ascontiguousarray(grid.transpose(3, 1, 2, 0)).mean(axis=-1))


def head_numbers(
    numbers: HeadNumbers, delimiters: float, apart: NDArray[np.int64] | None, seed: int
) -> list[float]:
    """Statistics of a head, in the order of ``STATISTICS``; the same definitions as in a probe.

    Parameters
    ----------
    numbers
        One pass of the head.
    delimiters
        Share of the attention that goes to delimiters.
    apart
        Keys that are sinks and have been set apart already; found here if left out.
    seed
        Seed of the choice of queries for the number of tokens.
    """
    moments = numbers.coupled
    received = numbers.received * len(numbers.tilts)
    sinks = find_sinks(received) if apart is None else apart
    try:
        k = received_khat(received, sinks)[0]
    except InputError:  # too many equal values, or too few: there is no tail
        k = float("nan")
    values = {
        "tokens": min(tokens_for(numbers, TOLERANCE, seed), MOST),
        "ess": float(np.median(numbers.participation)),
        "khat": k,
        "horizon": moments.horizon,
        "frobenius": moments.frobenius,
        "tau": moments.tau,
        "sinks": float(numbers.received[sinks].sum()),
        "delimiters": float(delimiters),
    }
    return [values[name] for name in STATISTICS]
