"""Reduced caches in safetensors files: a context that was read once, for other processes.

A file holds the arrays of every layer, what the cache was asked to do, the budgets, and the hashes
of the plan, of the model's weights and of all of this together, by which damage is noticed. It may
come from anybody: every array is checked against the model and the others.
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
from esscher.engine.attention.coded import Codes, decode
from esscher.engine.attention.ragged import Segments
from esscher.engine.cache.budgets import Score, TokenBudgets
from esscher.engine.cache.cache import ReducedCache
from esscher.engine.cache.layer import ReducedLayer, restore_sliding
from esscher.engine.cache.scores import WINDOW
from esscher.engine.cache.selection import PlannedRule
from esscher.engine.cache.storage import RecentQueries, RunningScores
from esscher.engine.models.loaded import LoadedModel, tensor_hash, wrap_model
from esscher.engine.models.transformers_library import transformers_module

#: Version of the file; another one is refused. Files before version 5 have no codes.
VERSION = 5
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
    plan_hash, weight_hash
        Hashes of the budgets and of the model's weights.
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
    plan_hash: Hash
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


def plan_hash(budgets: TokenBudgets) -> str:
    """SHA-256 of what a plan says about budgets."""
    return hashlib.sha256(as_json(budgets)).hexdigest()


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
        plan_hash=plan_hash(rule.budgets),
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
        stored = _LayerArrays(path, number, arrays)
        if isinstance(layer, ReducedLayer):
            _fill(layer, stored, record, loaded)
            continue
        batch = len(record.lengths)
        keys = stored.take("keys", (batch, shape.key_heads, None, shape.head_dim), *TYPES)
        values = stored.take("values", tuple(keys.shape), keys.dtype)
        if keys.shape[2] != min(record.seen, layer.sliding_window - 1):
            raise stored.damaged("does not hold what its window sees")
        restore_sliding(layer, keys.to(loaded.device), values.to(loaded.device), record.seen)
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
            if text is None:
                raise InputError(f"{path} is no cache that Esscher saved")
            record = as_record(parse_json(text.encode(), str(path)), SavedCache, str(path))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, str(error).split("\n")[0][:200]) from error
    if record.version != VERSION:
        raise InputError(
            f"{path} has version {record.version}; this version of Esscher reads {VERSION}: read "
            "the context again and save it"
        )
    if record.checksum != checksum(record, arrays):
        raise _damaged(path, "its checksum is not that of what it holds")
    if record.plan_hash != plan_hash(record.budgets):
        raise _damaged(path, "its budgets are not those of its plan")
    return record, arrays


class _LayerArrays:
    """The arrays of one layer of a file, each checked and taken out of the others."""

    def __init__(self, path: Path, number: int, arrays: dict[str, Tensor]) -> None:
        self._path, self._number, self._arrays = path, number, arrays

    def __contains__(self, name: str) -> bool:
        return f"{self._number}.{name}" in self._arrays

    def take(self, name: str, shape: tuple[int | None, ...], *types: torch.dtype) -> Tensor:
        """An array of this shape, None standing for any length, and of one of these types."""
        array = self._arrays.pop(f"{self._number}.{name}", None)
        if array is None:
            raise self.damaged(f"has no array {name!r}")
        fits = len(array.shape) == len(shape) and all(
            wanted in (None, size) for wanted, size in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype not in types:
            raise self.damaged(f"has {name!r} as {array.dtype} {list(array.shape)}")
        if array.dtype.is_floating_point and not bool(torch.isfinite(array).all()):
            raise self.damaged(f"has numbers in {name!r} that are not finite")
        return array

    def damaged(self, what: str) -> InputError:
        """Say what is wrong with the layer."""
        return _damaged(self._path, f"layer {self._number} {what}")


def _fill(
    layer: ReducedLayer, stored: _LayerArrays, record: SavedCache, loaded: LoadedModel
) -> None:
    """Give a layer the arrays of a file, which must fit together."""
    batch, key_heads, width = len(record.lengths), loaded.shape.key_heads, loaded.shape.head_dim
    keys = stored.take("keys", (None, width), *TYPES)
    count, kind = len(keys), keys.dtype
    values = stored.take("values", (count, width), kind)
    weight = stored.take("log_weight", (count,), torch.float32)
    start = stored.take("start", (batch * key_heads,), torch.int64)
    stop = stored.take("stop", (batch * key_heads,), torch.int64)
    tail_keys = stored.take("tail_keys", (batch, key_heads, None, width), kind)
    tail_values = stored.take("tail_values", tuple(tail_keys.shape), kind)
    counts = stop - start
    fits = torch.equal(stop, counts.cumsum(0)) and (not count or int(stop[-1]) == count)
    if bool((counts < 0).any()) or not fits:
        raise stored.damaged("has lists that do not fit together")
    # a sampled token stands for one at least; a fit may take off from that
    if record.budgets.selection != "fitted" and bool((weight < 0).any()):
        raise stored.damaged("holds more tokens than were seen")
    codes = _codes(stored, batch * key_heads, width) if "coded" in stored else None
    if codes is not None:
        counts, count = counts + codes.table[:, 1], count + int(codes.table[:, 1].sum())
    longest = int(counts.max()) + tail_keys.shape[2]
    if longest > record.seen or max(record.lengths) > record.seen:
        raise stored.damaged("holds more tokens than were seen")
    device, listed = loaded.device, record.seen - tail_keys.shape[2]
    padding = stored.take("padding", (batch, listed), torch.bool) if "padding" in stored else None
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
        layer.tail.hide(~stored.take("tail_valid", (batch, tail_keys.shape[2]), torch.bool))
    lengths = listed - (0 if padding is None else padding.sum(1).numpy())
    if np.any(lengths + layer.tail.valid.sum(1).numpy() != layer.lengths):
        raise stored.damaged("has padding that does not fit the lengths of its texts")
    if "queries" in stored:
        shape = (batch, loaded.shape.heads, WINDOW, width)
        queries = stored.take("queries", shape, kind).to(device)
        places = stored.take("places", (WINDOW,), torch.int64)
        if bool((places >= record.seen).any()):
            raise stored.damaged("has queries at places that were not seen")
        layer.recent = RecentQueries(queries)
        layer.recent.restore(queries, places)
    elif layer.bounded:
        raise stored.damaged("has no queries, by which tokens are selected again")
    if layer.bounded and record.score != "last":
        scores = stored.take("scores", (count,), torch.float32)
        tail_scores = stored.take("tail_scores", (batch, key_heads, None), torch.float32)
        if tail_scores.shape[2] > tail_keys.shape[2]:
            raise stored.damaged("has scores of tokens that it does not hold")
        if bool((scores < 0).any()) or bool((tail_scores < 0).any()):
            raise stored.damaged("has scores below 0")
        layer.running = RunningScores(scores, tail_scores)


def _codes(stored: _LayerArrays, lists: int, width: int) -> Codes:
    """Coded tokens of a file: lists one after the other, of finite numbers."""
    table = stored.take("coded", (lists, 5), torch.int64)
    data = stored.take("codes", (None,), torch.uint8)
    byte = first = 0
    for start, tokens, key_bits, value_bits, number in table.tolist():
        bits = key_bits, value_bits
        if (start, number) != (byte, first) or tokens < 0 or not {*bits} <= {4, 8}:
            raise stored.damaged("has lists of codes that do not fit together")
        size = coded_bytes(tokens, width, width, bits)
        if byte + size > len(data):
            raise stored.damaged("has lists of codes that do not fit together")
        arrays = decode(data[byte : byte + size], tokens, width, width, bits)
        if not all(bool(torch.isfinite(x).all()) for x in arrays):
            raise stored.damaged("has numbers in codes that are not finite")
        byte, first = byte + size, first + tokens
    if byte != len(data):
        raise stored.damaged("has lists of codes that do not fit together")
    return Codes(data, table)


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path} is damaged: {what}; read the context again and save it")
