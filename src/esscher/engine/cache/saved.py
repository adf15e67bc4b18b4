"""Reduced caches in safetensors files: a context that was read once, for other processes.

A file holds the arrays of every layer, what the cache was asked to do, the budgets, the hash of the
model's weights, and a checksum of all of this, by which damage is noticed. The compiled kernel
reads lists by their addresses: shapes and places of lists are checked against each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from msgspec import Meta
from msgspec.structs import replace
from torch import Tensor

from esscher.core.atomic import write_output
from esscher.core.codec import Count, Hash, Record, as_json, as_record
from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.core.untrusted import open_regular, parse_json
from esscher.core.validation import as_path
from esscher.engine.attention.bits import coded_bytes
from esscher.engine.attention.coded import Codes
from esscher.engine.attention.ragged import Segments
from esscher.engine.cache.budgets import Score, TokenBudgets
from esscher.engine.cache.cache import ReducedCache
from esscher.engine.cache.layer import ReducedLayer, restore_sliding
from esscher.engine.cache.scores import WINDOW
from esscher.engine.cache.selection import PlannedRule
from esscher.engine.cache.storage import RecentQueries, RunningScores
from esscher.engine.models.loaded import LoadedModel, tensor_hash, wrap_model
from esscher.engine.models.transformers_library import transformers_module

#: Version of the file; another one is refused.
VERSION = 6
#: The entry of a file's metadata that says all the rest.
ENTRY = "esscher"
#: Types of the arrays of keys and values.
TYPES = (torch.float32, torch.bfloat16, torch.float16)


class SavedCache(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file says besides its arrays.

    Attributes
    ----------
    version
        Of the file.
    weight_hash
        Hash of the model's weights.
    budgets
        What each key head keeps.
    seed, length, decode, chunk, score
        As for :meth:`esscher.results.Plan.cache`.
    seen, turns
        Tokens seen, with padding, and how often what is kept was selected again.
    lengths
        Tokens of every text without padding.
    checksum
        SHA-256 of all the rest and of the arrays; see :func:`checksum`.
    """

    version: Count
    weight_hash: Hash
    budgets: TokenBudgets
    seed: Count
    length: Count | None
    decode: Literal["keep", "budget"]
    chunk: Count | None
    score: Score
    seen: Count
    turns: Count
    lengths: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=100_000)]
    checksum: Hash = ""


def checksum(record: SavedCache, arrays: Mapping[str, Tensor]) -> str:
    """SHA-256 of what a file says, and of the names, types, shapes and bits of its arrays."""
    text = as_json(replace(record, checksum=""))
    return hashlib.sha256(text + tensor_hash(arrays).encode()).hexdigest()


def save_cache(cache: ReducedCache, path: Path) -> None:
    """Write a cache; see :meth:`~esscher.engine.cache.cache.ReducedCache.save`."""
    reduced = [layer for layer in cache.reduced if layer.segments is not None]
    if not reduced or cache.rule is None:
        raise InputError("the cache is empty; hand it to the model before it is saved")
    cache.call.check_finished()
    first, rule = reduced[0], cache.rule
    assert first.lengths is not None
    arrays: dict[str, Tensor] = {}
    for number, layer in enumerate(cache.layers):
        named = {"keys": layer.keys, "values": layer.values}
        if isinstance(layer, ReducedLayer):
            assert layer.segments is not None
            # lists that beams share are written once for each
            segments = layer.segments.copied()
            named = {
                "keys": segments.keys,
                "values": segments.values,
                "log_weight": segments.log_weight,
                "start": segments.start,
                "stop": segments.stop,
                "tail_keys": layer.tail.keys,
                "tail_values": layer.tail.values,
            }
            if segments.codes is not None:
                named |= {"codes": segments.codes.data, "coded": segments.codes.table}
            if not bool(layer.tail.valid.all()):
                named["tail_valid"] = layer.tail.valid
            if layer.padding is not None:
                named["padding"] = layer.padding
            if layer.recent is not None:
                named |= {"queries": layer.recent.queries, "places": layer.recent.places}
            if layer.running is not None:
                named |= {
                    "scores": layer.running.copied(layer.segments),
                    "tail_scores": layer.running.tail,
                }
        arrays |= {f"{number}.{name}": array.cpu().contiguous() for name, array in named.items()}
    record = SavedCache(
        version=VERSION,
        weight_hash=cache.weight_hash,
        budgets=rule.budgets,
        seed=rule.seed,
        length=rule.length,
        decode=cache.decode,
        chunk=cache.chunk,
        score=rule.score,
        seen=first.seen,
        turns=first.turns,
        lengths=tuple(first.lengths.tolist()),
    )
    record = replace(record, checksum=checksum(record, arrays))
    safetensors = transformers_module("safetensors.torch")
    write_output(path, safetensors.save(arrays, {ENTRY: as_json(record).decode()}))


def load_cache(path: str | Path, model: Any) -> ReducedCache:
    """Read a cache that was saved, for the model it was made with.

    Parameters
    ----------
    path
        The file, as :meth:`~esscher.engine.cache.cache.ReducedCache.save` writes it.
    model
        The model: transformers' own, or as :func:`esscher.load_model` returns.

    Raises
    ------
    InputError
        If the file is damaged or is not such a file, or was made with other weights.
    """
    path = as_path(path, "path")
    record, arrays = _read(path)
    loaded = model if isinstance(model, LoadedModel) else wrap_model(model)
    planned, shape = record.budgets.model, loaded.shape
    if record.weight_hash != loaded.weight_hash:
        raise InputError(
            f"{path} was made with {planned.name!r} with weights {record.weight_hash[:12]}, not "
            f"with {loaded.name!r} with weights {loaded.weight_hash[:12]}; read the context again"
        )
    if (planned.layers, planned.key_heads) != (shape.layers, shape.key_heads):
        raise _damaged(path, "its budgets are for another number of layers or key heads")
    rule = PlannedRule(loaded, record.budgets, record.seed, record.length, record.score)
    cache = ReducedCache(loaded, rule, decode=record.decode, chunk=record.chunk)
    for number, layer in enumerate(cache.layers):
        names = [name for name in arrays if name.startswith(f"{number}.")]
        stored = {name.partition(".")[2]: arrays.pop(name) for name in names}
        try:
            if isinstance(layer, ReducedLayer):
                _fill(layer, stored, record, loaded)
            else:
                _fill_sliding(layer, stored, record, loaded)
        except ValueError as error:
            raise _damaged(path, f"layer {number} {error}") from None
        if stored:
            raise _damaged(path, f"layer {number} has an array {shortened(min(stored))} too many")
    if arrays:
        raise _damaged(path, f"it has an array {shortened(min(arrays))} too many")
    return cache


def _read(path: Path) -> tuple[SavedCache, dict[str, Tensor]]:
    try:
        open_regular(path).close()
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}; save one with cache.save(path)") from error
    safetensors = transformers_module("safetensors")
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            text = (file.metadata() or {}).get(ENTRY)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, str(error).split("\n")[0][:200]) from error
    if text is None:
        raise InputError(f"{path} is no cache that Esscher saved")
    tree = parse_json(text.encode(), str(path))
    version = tree.get("version") if isinstance(tree, dict) else None
    if version != VERSION:
        raise InputError(
            f"{path} has version {shortened(version)}; this version of Esscher reads {VERSION}: "
            "read the context again and save it"
        )
    record = as_record(tree, SavedCache, str(path))
    if record.checksum != checksum(record, arrays):
        raise _damaged(path, "its checksum is not that of what it holds")
    return record, arrays


def _take(
    stored: dict[str, Tensor], name: str, shape: tuple[int | None, ...], *types: torch.dtype
) -> Tensor:
    """Take out an array of this shape, None standing for any length, and of one of these types."""
    array = stored.pop(name, None)
    if array is None:
        raise ValueError(f"has no array {name!r}")
    fits = len(array.shape) == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype not in types:
        raise ValueError(f"has {name!r} as {array.dtype} {list(array.shape)}")
    return array


def _fill_sliding(
    layer: Any, stored: dict[str, Tensor], record: SavedCache, loaded: LoadedModel
) -> None:
    """Give a layer with a sliding window the arrays of a file."""
    shape = loaded.shape
    rows = min(record.seen, layer.sliding_window - 1)
    wanted = (len(record.lengths), shape.key_heads, rows, shape.head_dim)
    keys = _take(stored, "keys", wanted, *TYPES)
    values = _take(stored, "values", wanted, keys.dtype)
    restore_sliding(layer, keys.to(loaded.device), values.to(loaded.device), record.seen)


def _fill(
    layer: ReducedLayer, stored: dict[str, Tensor], record: SavedCache, loaded: LoadedModel
) -> None:
    """Give a layer the arrays of a file, which must fit together."""
    batch, key_heads, width = len(record.lengths), loaded.shape.key_heads, loaded.shape.head_dim
    keys = _take(stored, "keys", (None, width), *TYPES)
    count, kind = len(keys), keys.dtype
    values = _take(stored, "values", (count, width), kind)
    weight = _take(stored, "log_weight", (count,), torch.float32)
    start = _take(stored, "start", (batch * key_heads,), torch.int64)
    stop = _take(stored, "stop", (batch * key_heads,), torch.int64)
    tail_keys = _take(stored, "tail_keys", (batch, key_heads, None, width), kind)
    tail_values = _take(stored, "tail_values", tuple(tail_keys.shape), kind)
    counts = stop - start
    fits = torch.equal(stop, counts.cumsum(0)) and (not count or int(stop[-1]) == count)
    if bool((counts < 0).any()) or not fits:
        raise ValueError("has lists that do not fit together")
    codes = _codes(stored, batch * key_heads, width) if "coded" in stored else None
    if codes is not None:
        counts, count = counts + codes.table[:, 1], count + int(codes.table[:, 1].sum())
    longest = int(counts.max()) + tail_keys.shape[2]
    if longest > record.seen or max(record.lengths) > record.seen:
        raise ValueError("holds more tokens than were seen")
    device, listed = loaded.device, record.seen - tail_keys.shape[2]
    padding = _take(stored, "padding", (batch, listed), torch.bool) if "padding" in stored else None
    layer.restore(
        Segments(
            keys=keys.to(device),
            values=values.to(device),
            log_weight=weight.to(device),
            start=start.to(device),
            stop=stop.to(device),
            codes=codes and Codes(codes.data.to(device), codes.table.to(device)),
        ),
        np.array(record.lengths),
        record.seen,
        record.turns,
        padding,
    )
    layer.tail.start(tail_keys.to(device), tail_values.to(device))
    layer.tail.append(tail_keys.to(device), tail_values.to(device))
    if "tail_valid" in stored:
        layer.tail.hide(~_take(stored, "tail_valid", (batch, tail_keys.shape[2]), torch.bool))
    if layer.bounded:
        shape = (batch, loaded.shape.heads, WINDOW, width)
        queries = _take(stored, "queries", shape, kind).to(device)
        places = _take(stored, "places", (WINDOW,), torch.int64)
        layer.recent = RecentQueries(queries)
        layer.recent.restore(queries, places)
    if layer.bounded and record.score != "last":
        scores = _take(stored, "scores", (count,), torch.float32)
        tail_scores = _take(stored, "tail_scores", (batch, key_heads, None), torch.float32)
        layer.running = RunningScores(scores, tail_scores)


def _codes(stored: dict[str, Tensor], lists: int, width: int) -> Codes:
    """Coded tokens of a file: lists one after the other."""
    table = _take(stored, "coded", (lists, 5), torch.int64)
    data = _take(stored, "codes", (None,), torch.uint8)
    byte = first = 0
    for start, tokens, key_bits, value_bits, number in table.tolist():
        bits = key_bits, value_bits
        if (start, number) != (byte, first) or tokens < 0 or not {*bits} <= {4, 8}:
            raise ValueError("has lists of codes that do not fit together")
        byte, first = byte + coded_bytes(tokens, width, width, bits), first + tokens
    if byte != len(data):
        raise ValueError("has lists of codes that do not fit together")
    return Codes(data, table)


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path} is damaged: {what}; read the context again and save it")
