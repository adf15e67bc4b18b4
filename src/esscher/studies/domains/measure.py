"""From corpora to the numbers of every head on every block.

A number measured on one stretch of text varies from stretch to stretch. The block is the unit that
is repeated: a corpus is divided into as many equal parts as it has blocks, and every part gives one
block of consecutive text, from a place drawn at random in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models.choice import AnyModel, opened_model
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.sampled.context import delimiter_shares, measure_context, split
from esscher.engine.sampled.layer import HeadNumbers
from esscher.engine.sampled.pooled import PassageMoments, measure_pooled
from esscher.engine.text.collect import collect_cloud, visit_passages
from esscher.engine.text.documents import TextSource, read_text, source_name
from esscher.engine.text.packing import BETWEEN, Passage, passages
from esscher.math.statistics import find_sinks, received_exponent
from esscher.math.theory.cloud_table import map_errors
from esscher.runs.folder import Cell
from esscher.studies.domains.result import BlockCell, Corpus
from esscher.studies.domains.study import DomainsStudy

#: Characters of a corpus that are looked at; a longer one is used up to there.
LONGEST = 20_000_000
#: Characters in which the beginning of a line, or else of a word, is looked for.
SEARCHED = 1_000
#: Characters of a token that are tried first; doubled while a block is too short.
FIRST_GUESS = 6
#: Relative output error for which tokens are counted.
TOLERANCE = 0.1
#: Queries at which the exact error is evaluated, and up to which factor around the first guess.
EXACT, AROUND = 4, 8.0
#: Largest number of tokens that is told from "never".
MOST = 1e8
#: Queries whose weights are in memory at a time.
QUERY_BLOCK = 1024


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


def cut_blocks(loaded: LoadedModel, corpus: Corpus, text: str, study: DomainsStudy) -> list[str]:
    """Return the texts of a corpus' blocks, each with enough tokens.

    Raises
    ------
    InputError
        When a part of the corpus is too short; the message says how many tokens there are, and
        how many are needed.
    """
    blocks = []
    for block in range(study.blocks):
        low = len(text) * block // study.blocks
        high = len(text) * (block + 1) // study.blocks
        where = float(random_stream(study.seed, "corpus blocks", block).random())
        # Where the rest of the part is too short, nearer to its beginning.
        for at in (where, where / 2, where / 4, 0.0):
            start = low + int(at * (high - low))
            if start:
                # where a line begins, or else a word
                ends = [text.find(mark, start, min(start + SEARCHED, high)) for mark in "\n "]
                start = next((end + 1 for end in ends if end >= 0), start)
            part = _enough(loaded, text[start:high], study)
            if part is not None:
                break
        else:
            stream = passages(loaded, read_text([text]), context=study.context)
            tokens = sum(passage.text_tokens for passage in stream)
            needed = study.blocks * study.block_tokens
            what = f"{study.blocks} blocks of {study.block_tokens:,} tokens need {needed:,}"
            if tokens >= needed:
                what += ", and more, because blocks are spread evenly and begin where a line does"
            fits = max(0, int(0.9 * tokens / study.blocks))
            raise InputError(
                f"corpus {corpus.name!r} ({corpus.source}) has only {tokens:,} tokens, but {what}; "
                f"give more text, or ask for fewer blocks or for blocks of at most {fits:,} tokens"
            )
        blocks.append(part)
    return blocks


def block_passages(loaded: LoadedModel, text: str, study: DomainsStudy) -> list[Passage]:
    """Return the passages of a block; fewer than it needs if its text is too short."""
    documents = read_text([text])
    if study.sequences is None:
        return list(passages(loaded, documents, tokens=study.block_tokens, context=study.context))
    whole = passages(loaded, documents, context=study.context, keep_short=False)
    return list(islice(whole, study.sequences))


def _enough(loaded: LoadedModel, text: str, study: DomainsStudy) -> str | None:
    """The beginning of a text that fills a block; None if all of it does not."""
    length = FIRST_GUESS * study.block_tokens
    while True:
        part = text[:length]
        if part.strip():
            read = block_passages(loaded, part, study)
            if study.sequences is not None and len(read) == study.sequences:
                return part
            if study.sequences is None and sum(p.text_tokens for p in read) >= study.block_tokens:
                return part
        if length >= len(text):
            return None
        length *= 2


def measure_block(model: AnyModel, text: str, block: int, study: DomainsStudy) -> Cell:
    """Measure every head on one block: a table with one row per head, one column per statistic.

    Parameters
    ----------
    model
        The model as tasks take it.
    text
        Text of the block.
    block
        Its number in its corpus, which decides on the random numbers. Blocks of the same number
        share them between corpora: what differs between corpora is then due to the text alone.
    study
        What to measure.
    """
    seed = int(random_stream(study.seed, "corpus block seed", block).integers(2**31))
    with opened_model(model) as loaded:
        read = block_passages(loaded, text, study)
        if study.mode == "pooled":
            rows = _pooled(loaded, text, read, study, seed)
        else:
            rows = _context(loaded, read, study, seed)
        unknown = getattr(loaded.tokenizer, "unk_token_id", None)
    ids = np.concatenate([passage.ids[~passage.is_delimiter] for passage in read])
    about = BlockCell(
        tokens=len(ids),
        distinct=len(np.unique(ids)) / len(ids),
        unknown=0.0 if unknown is None else float(np.mean(ids == unknown)),
    )
    return Cell(about, pd.DataFrame(rows))


def _pooled(
    loaded: LoadedModel, text: str, read: list[Passage], study: DomainsStudy, seed: int
) -> list[dict[str, float]]:
    """Numbers of every head on the tokens of a block as one set."""
    tokens = study.block_tokens
    moments = PassageMoments(read, tokens)
    cloud = collect_cloud(
        loaded,
        [text],
        tokens=tokens,
        context=study.context,
        layers=study.layers,
        heads=study.heads,
        watch=moments.take,
    )
    rows = []
    for layer in study.layers:
        measured, numbers = measure_pooled(cloud, layer, (2,), 0, seed, "with")
        for h, head in enumerate(measured.heads):
            row = {"layer": layer, "head": head} | head_numbers(numbers[h], None, seed)
            row["delimiters"] = float(moments.delimiters[layer][head])
            rows.append(row)
    return rows


def _context(
    loaded: LoadedModel, read: list[Passage], study: DomainsStudy, seed: int
) -> list[dict[str, float]]:
    """Numbers of every head on the sequences of a block: their mean."""
    tables: list[list[dict[str, float]]] = []

    def measure(passage: Passage, capture: LayerInputs) -> None:
        rng = random_stream(seed, "probe queries", passage.number)
        queries, keys = split(len(passage.ids), passage.is_delimiter, loaded.causal, rng)
        with torch.inference_mode():
            _, numbers, sinks = measure_context(
                capture, queries, keys, (2,), 0, seed, passage.number
            )
            shares = delimiter_shares(capture, passage.is_delimiter)
        for head in study.heads:
            row: dict[str, float] = {"layer": capture.layer, "head": head}
            row |= head_numbers(numbers[head], sinks[head], seed)
            tables[-1].append(row | {"delimiters": float(shares[head])})

    for passage in read:
        tables.append([])
        visit_passages(loaded, [passage], measure, layers=study.layers)
    return [
        {
            name: value
            if name in ("layer", "head")
            else float(np.mean([row[name] for row in same]))
            for name, value in same[0].items()
        }
        for same in zip(*tables, strict=True)
    ]


def head_numbers(
    numbers: HeadNumbers, apart: NDArray[np.int64] | None, seed: int
) -> dict[str, float]:
    """One-pass statistics of a head; the same definitions as in a probe.

    Parameters
    ----------
    numbers
        One pass of the head.
    apart
        Keys that are sinks and have been set apart already; found here if left out.
    seed
        Seed of the choice of queries for the number of tokens.
    """
    moments = numbers.coupled
    received = numbers.received * len(numbers.tilts)
    sinks = find_sinks(received) if apart is None else apart
    try:
        k = received_exponent(received, sinks=sinks).k
    except InputError:  # too many equal values, or too few: there is no tail
        k = float("nan")
    return {
        "horizon": moments.horizon,
        "frobenius": moments.frobenius,
        "tau": moments.tau,
        "khat": k,
        "ess": float(np.median(numbers.participation)),
        "sinks": float(numbers.received[sinks].sum()),
        "tokens": min(tokens_for(numbers, TOLERANCE, seed), MOST),
    }


def tokens_for(numbers: HeadNumbers, tolerance: float, seed: int) -> float:
    """Tokens from which the relative map error is at most ``tolerance``; infinite beyond 1e8.

    A query that attends n tokens drawn with replacement from N has the mean square error ``D/n``
    for large n, ``D = N sum_j p_j^2 |v_j - y|^2``, and ``S = (1/N) sum_j |v_j - y|^2`` at n = 1.
    Between them ``1/((n - 1)/D + 1/S)`` is close, and costs one pass for all queries. What it
    misses is measured at a few queries by the exact formula and divided out. Queries differ
    widely: 16 of them, with the exact formula alone, give the number of tokens of a head of MiniLM
    with a standard deviation of 7 to 37%; all of them with 8 exact ones, to 0.3%.

    Parameters
    ----------
    numbers
        One pass of a head.
    tolerance
        Root mean square error over the queries, relative to that of the outputs themselves.
    seed
        Seed of the choice of the queries with the exact formula.
    """
    wanted = (tolerance * numbers.norm) ** 2
    if wanted <= 0:
        return np.inf
    large, small = _square_errors(numbers)

    def between(rows: Any, n: Array) -> Array:
        """``1/((n - 1)/D + 1/S)``, mean over some queries; 0 where D or S is."""
        d, s = large[rows, None], small[rows, None]
        bottom = (n - 1) * s + d
        square = np.divide(d * s, bottom, out=np.zeros_like(bottom), where=bottom > 0)
        return np.asarray(square.mean(axis=0))

    every = slice(None)
    guess = _first_below(lambda n: between(every, n), wanted, 2.0, MOST)
    rng = random_stream(seed, "tokens needed")
    count = min(EXACT, len(numbers.tilts))
    rows = rng.choice(len(numbers.tilts), size=count, replace=False)
    logits = np.asarray(numbers.tilts[rows], dtype=np.float64) @ numbers.keys.T
    exact_errors = map_errors(logits, numbers.values, numbers.outputs[rows], 2.0, MOST)

    def corrected(n: Array) -> Array:
        exact, known = exact_errors(n).mean(axis=0), between(rows, n)
        # All weights on identical values: no error, and nothing to correct.
        ratio = np.divide(exact, known, out=np.ones_like(exact), where=known > 0)
        return np.asarray(between(every, n) * ratio)

    middle = min(guess, MOST)
    low, high = max(2.0, middle / AROUND), min(MOST, max(middle * AROUND, 4.0))
    tokens = _first_below(corrected, wanted, low, high)
    if (tokens <= low and low > 2) or (tokens >= high and high < MOST):
        tokens = _first_below(corrected, wanted, 2.0, MOST)
    return tokens


def _square_errors(numbers: HeadNumbers) -> tuple[Array, Array]:
    """D and S of every query; see :func:`tokens_for`."""
    keys, values = (
        torch.from_numpy(np.asarray(rows, dtype=np.float32))
        for rows in (numbers.keys, numbers.values)
    )
    count = len(keys)
    squares = values.square().sum(1)
    large, small = [], []
    for start in range(0, len(numbers.tilts), QUERY_BLOCK):
        rows = slice(start, start + QUERY_BLOCK)
        tilts = torch.from_numpy(np.asarray(numbers.tilts[rows], dtype=np.float32))
        outputs = torch.from_numpy(np.asarray(numbers.outputs[rows], dtype=np.float32))
        weights = torch.softmax(tilts @ keys.T, dim=-1).square_()
        norms = outputs.square().sum(1)
        # sum_j p_j^2 |v_j - y|^2, the square multiplied out
        cross = ((weights @ values) * outputs).sum(1)
        large.append(count * (weights @ squares - 2 * cross + norms * weights.sum(1)))
        small.append(squares.mean() - 2 * outputs @ values.mean(0) + norms)
    first, second = (torch.cat(parts).clamp_min(0).double().numpy() for parts in (large, small))
    return first, second


def _first_below(curve: Callable[[Array], Array], wanted: float, low: float, high: float) -> float:
    """Where a falling curve reaches ``wanted``, by interpolation in logarithms on a grid."""
    count = max(8, int(np.ceil(3 * np.log(high / low))))
    n = np.unique(np.geomspace(low, high, count).round())
    values = curve(n)
    below = np.flatnonzero(values <= wanted)
    if not below.size:
        return np.inf if high >= MOST else high
    i = int(below[0])
    if i == 0 or values[i] <= 0:
        return float(n[i])
    x = np.interp(-np.log(wanted), -np.log(values[[i - 1, i]]), np.log(n[[i - 1, i]]))
    return float(np.exp(x))
