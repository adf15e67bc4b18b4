"""One cell of a comparison: the numbers of every head on one block of one corpus."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.models import LayerCapture, LoadedModel
from esscher.engine.sampled.context import delimiter_shares, measure_context, split
from esscher.engine.sampled.layer import METRICS, HeadNumbers, LayerMeasurement
from esscher.engine.sampled.pooled import PassageMoments, measure_pooled
from esscher.engine.text import Passage, collect_cloud, visit_passages
from esscher.math.statistics import find_sinks, received_exponent
from esscher.runs.folder import Cell
from esscher.studies.domains.blocks import block_passages
from esscher.studies.domains.records import BlockCell
from esscher.studies.domains.study import DomainsStudy
from esscher.studies.domains.tokens import MOST, tokens_for

#: Relative output error for which tokens are counted.
TOLERANCE = 0.1


def measure_block(
    loaded: LoadedModel, text: str, block: int, study: DomainsStudy, sizes: tuple[int, ...]
) -> Cell:
    """Measure every head on one block: a table with one row per head, one column per statistic.

    Parameters
    ----------
    loaded
        The model.
    text
        Text of the block.
    block
        Its number in its corpus, which decides on the random numbers. Blocks of the same number
        share them between corpora: what differs between corpora is then due to the text alone.
    study
        What to measure.
    sizes
        Sizes of samples for exponents.
    """
    seed = int(random_stream(study.seed, "corpus block seed", block).integers(2**31))
    found = block_passages(loaded, text, study.shape)
    measure = _pooled if study.mode == "pooled" else _context
    rows = measure(loaded, text, found, study, sizes, seed)
    ids = np.concatenate([passage.ids[~passage.is_delimiter] for passage in found])
    unknown = getattr(loaded.tokenizer, "unk_token_id", None)
    about = BlockCell(
        tokens=len(ids),
        distinct=len(np.unique(ids)) / len(ids),
        unknown=0.0 if unknown is None else float(np.mean(ids == unknown)),
    )
    return Cell(about, pd.DataFrame(rows))


def _pooled(
    loaded: LoadedModel,
    text: str,
    found: list[Passage],
    study: DomainsStudy,
    sizes: tuple[int, ...],
    seed: int,
) -> list[dict[str, Any]]:
    tokens = study.block_tokens
    seen = PassageMoments(found, tokens)
    cloud = collect_cloud(
        loaded, [text], tokens=tokens, context=study.context,
        layers=study.layers, heads=study.heads, seed=seed, watch=seen.take,
    )  # fmt: skip
    rows = []
    for layer in study.layers:
        measured, numbers = measure_pooled(
            cloud, layer, sizes or (2,), study.replicates, seed, "with"
        )
        for h, head in enumerate(measured.heads):
            row = {"layer": layer, "head": head} | head_numbers(numbers[h], None, seed)
            row["delimiters"] = float(seen.delimiters[layer][head])
            if sizes:
                row["exponent"] = exponent(measured, h)
            rows.append(row)
    return rows


def _context(
    loaded: LoadedModel,
    text: str,
    found: list[Passage],
    study: DomainsStudy,
    sizes: tuple[int, ...],
    seed: int,
) -> list[dict[str, Any]]:
    tables = []
    for passage in found:
        rng = random_stream(seed, "probe queries", passage.number)
        asking, keys = split(len(passage.ids), passage.is_delimiter, loaded.causal, rng)
        rows: list[dict[str, Any]] = []

        def sink(
            passage: Passage,
            capture: LayerCapture,
            asking: NDArray[np.int64] = asking,
            keys: NDArray[np.int64] = keys,
            rows: list[dict[str, Any]] = rows,
        ) -> None:
            with torch.inference_mode():
                measured, numbers, sinks = measure_context(
                    capture, asking, keys, sizes or (2,), study.replicates, seed, passage.number
                )  # fmt: skip
                shares = delimiter_shares(capture, passage.is_delimiter)
            for h in study.heads:
                row: dict[str, Any] = {"layer": capture.layer, "head": h}
                row |= head_numbers(numbers[h], sinks[h], seed)
                row["delimiters"] = float(shares[h])
                if sizes:
                    row["exponent"] = exponent(measured, h)
                rows.append(row)

        visit_passages(loaded, [passage], sink, layers=study.layers)
        tables.append(rows)
    # several passages of a block: their mean
    return [
        {name: value if name in ("layer", "head") else float(np.mean([row[name] for row in same]))
         for name, value in same[0].items()}
        for same in zip(*tables, strict=True)
    ]  # fmt: skip


def head_numbers(
    numbers: HeadNumbers, apart: NDArray[np.int64] | None, seed: int
) -> dict[str, float]:
    """One-pass statistics of a head; the same definitions as in a probe.

    Parameters
    ----------
    numbers
        What one pass gave.
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


def exponent(measured: LayerMeasurement, unit: int) -> float:
    """Exponent of the mean error: least squares in logarithms of the mean over the replicates."""
    errors = measured.errors[METRICS.index("mean"), unit].mean(axis=0)
    if np.any(errors <= 0):
        return float("nan")
    x = np.log(np.asarray(measured.sizes, dtype=np.float64))
    x = x - x.mean()
    return float(-(x @ np.log(errors)) / (x @ x))
