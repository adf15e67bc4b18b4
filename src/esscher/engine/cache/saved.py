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
from esscher.engine.attention.ragged import Segments
from esscher.engine.cache.budgets import Score, TokenBudgets
from esscher.engine.cache.cache import ReducedCache
from esscher.engine.cache.layer import ReducedLayer, restore_sliding
from esscher.engine.cache.scores import WINDOW
from esscher.engine.cache.selection import Kept, PlannedRule
from esscher.engine.cache.storage import Carried, RecentQueries, one_list, packed
from esscher.engine.models import LoadedModel, wrap_model
from esscher.engine.models.record import tensor_hash
from esscher.engine.models.transformers_library import transformers_module

#: Version of the file; another one is refused. Files before version 4 have no checksum.
VERSION = 4
#: The entry of a file's metadata that says all the rest.
ENTRY = "esscher"
#: Types of the arrays of keys and values.
TYPES = (torch.float32, torch.bfloat16, torch.float16)


class SavedCache(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file says beside its arrays.

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
        Tokens seen, with padding, and how often what is kept was judged again.
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


def checksum(about: SavedCache, arrays: Mapping[str, Tensor]) -> str:
    """SHA-256 of what a file says, and of the names, types, shapes and bits of its arrays."""
    said = as_json(replace(about, checksum=""))
    return hashlib.sha256(said + tensor_hash(arrays).encode()).hexdigest()


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
    about = SavedCache(
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
    arrays: dict[str, Tensor] = {}
    for number, layer in enumerate(cache.layers):
        found = _arrays(layer) if isinstance(layer, ReducedLayer) else _sliding_arrays(layer)
        arrays |= {f"{number}.{name}": array.cpu().contiguous() for name, array in found.items()}
    about = replace(about, checksum=checksum(about, arrays))
    safetensors = transformers_module("safetensors.torch")
    write_output(path, safetensors.save(arrays, {ENTRY: as_json(about).decode()}))


def _arrays(layer: ReducedLayer) -> dict[str, Tensor]:
    assert layer.segments is not None
    held, everything = layer.segments, range(len(layer.segments.start))
    # lists that beams share are written once for each
    lists = [one_list(held, number) for number in everything]
    held = packed([(k, v, Kept(torch.arange(len(k)), w.cpu())) for k, v, w in lists])
    out = {
        "keys": held.keys,
        "values": held.values,
        "log_weight": held.log_weight,
        "start": held.start,
        "stop": held.stop,
        "tail_keys": layer.tail.keys,
        "tail_values": layer.tail.values,
    }
    if layer.tail.valid is not None:
        out["tail_valid"] = layer.tail.valid
    if layer.padding is not None:
        out["padding"] = layer.padding
    if layer.recent is not None:
        out |= {"queries": layer.recent.queries, "places": layer.recent.places}
    if layer.carried is not None:
        listed = [layer.carried.of(layer.segments, number, 0) for number in everything]
        out |= {"scores": torch.cat(listed), "tail_scores": layer.carried.held}
    return out


def _sliding_arrays(layer: Any) -> dict[str, Tensor]:
    return {"keys": layer.keys, "values": layer.values}


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
    about, arrays = _read(path)
    loaded = model if isinstance(model, LoadedModel) else wrap_model(model)
    _check_model(path, about, loaded)
    rule = PlannedRule.of(loaded, about.budgets, about.seed, about.length, about.score)
    cache = ReducedCache(loaded, rule, decode=about.decode, chunk=about.chunk)
    wanted: set[str] = set()
    for number, layer in enumerate(cache.layers):
        own = _Arrays(path, number, arrays)
        if isinstance(layer, ReducedLayer):
            _fill(layer, own, about, loaded)
        else:
            _fill_sliding(layer, own, about, loaded)
        wanted |= own.taken
    if set(arrays) != wanted:
        raise _damaged(path, f"it has an array {shortened(min(set(arrays) - wanted))} too many")
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
            about = as_record(parse_json(text.encode(), str(path)), SavedCache, str(path))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, str(error).split("\n")[0][:200]) from error
    if about.version != VERSION:
        raise InputError(
            f"{path} has version {about.version}; this version of Esscher reads {VERSION}: read "
            "the context again and save it"
        )
    if about.checksum != checksum(about, arrays):
        raise _damaged(path, "its checksum is not that of what it holds")
    if about.plan_hash != plan_hash(about.budgets):
        raise _damaged(path, "its budgets are not those of its plan")
    return about, arrays


def _check_model(path: Path, about: SavedCache, loaded: LoadedModel) -> None:
    name, shape = about.budgets.model.name, loaded.shape
    if about.weight_hash != loaded.weight_hash:
        raise InputError(
            f"{path} was made with {name!r} with weights {about.weight_hash[:12]}, not with "
            f"{loaded.name!r} with weights {loaded.weight_hash[:12]}; read the context again"
        )
    if (about.budgets.model.layers, about.budgets.model.key_heads) != (
        shape.layers,
        shape.key_heads,
    ):
        raise _damaged(path, "its budgets are for another number of layers or key heads")


class _Arrays:
    """The arrays of one layer of a file, each checked when it is taken."""

    def __init__(self, path: Path, number: int, arrays: Mapping[str, Tensor]) -> None:
        self._path, self._number, self._arrays = path, number, arrays
        self.taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return f"{self._number}.{name}" in self._arrays

    def take(self, name: str, shape: tuple[int | None, ...], *types: torch.dtype) -> Tensor:
        """An array of this shape, None standing for any length, and of one of these types."""
        key = f"{self._number}.{name}"
        array = self._arrays.get(key)
        if array is None:
            raise self.damaged(f"has no array {name!r}")
        fits = len(array.shape) == len(shape) and all(
            wanted in (None, found) for wanted, found in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype not in types:
            raise self.damaged(f"has {name!r} as {array.dtype} {list(array.shape)}")
        if array.dtype.is_floating_point and not bool(torch.isfinite(array).all()):
            raise self.damaged(f"has numbers in {name!r} that are not finite")
        self.taken.add(key)
        return array

    def damaged(self, what: str) -> InputError:
        """Say what is wrong with the layer."""
        return _damaged(self._path, f"layer {self._number} {what}")


def _fill(layer: ReducedLayer, own: _Arrays, about: SavedCache, loaded: LoadedModel) -> None:
    batch, key_heads, width = len(about.lengths), loaded.shape.key_heads, loaded.shape.head_dim
    keys = own.take("keys", (None, width), *TYPES)
    count, kind = len(keys), keys.dtype
    values = own.take("values", (count, width), kind)
    weight = own.take("log_weight", (count,), torch.float32)
    start = own.take("start", (batch * key_heads,), torch.int64)
    stop = own.take("stop", (batch * key_heads,), torch.int64)
    tail_keys = own.take("tail_keys", (batch, key_heads, None, width), kind)
    tail_values = own.take("tail_values", tuple(tail_keys.shape), kind)
    held = stop - start
    ends = held.cumsum(0)
    if bool((held < 0).any()) or not torch.equal(stop, ends) or (count and int(stop[-1]) != count):
        raise own.damaged("has lists that do not fit together")
    longest = int(held.max()) + tail_keys.shape[2]
    if longest > about.seen or max(about.lengths) > about.seen or bool((weight < 0).any()):
        raise own.damaged("holds more tokens than were seen")
    device, listed = loaded.device, about.seen - tail_keys.shape[2]
    padding = own.take("padding", (batch, listed), torch.bool) if "padding" in own else None
    layer.restore(
        Segments(*(x.to(device) for x in (keys, values, weight, start, stop))),
        np.array(about.lengths),
        about.seen,
        about.turns,
        padding,
    )
    layer.tail.start(tail_keys.to(device), tail_values.to(device))
    layer.tail.append(tail_keys.to(device), tail_values.to(device))
    if "tail_valid" in own:
        layer.tail.hide(~own.take("tail_valid", (batch, tail_keys.shape[2]), torch.bool).to(device))
    counts = (0 if padding is None else -padding.sum(1).numpy()) + listed
    if np.any(counts + layer.tail.valid_counts(layer.tail.length) != layer.lengths):
        raise own.damaged("has padding that does not fit the lengths of its texts")
    if "queries" in own:
        shape = (batch, loaded.shape.heads, WINDOW, width)
        queries = own.take("queries", shape, kind).to(device)
        places = own.take("places", (WINDOW,), torch.int64)
        if bool((places >= about.seen).any()):
            raise own.damaged("has queries at places that were not seen")
        layer.recent = RecentQueries(queries)
        layer.recent.restore(queries, places)
    elif layer.bounded:
        raise own.damaged("has no queries, by which tokens are judged again")
    if layer.bounded and about.score != "last":
        scores = own.take("scores", (count,), torch.float32)
        tail_scores = own.take("tail_scores", (batch, key_heads, None), torch.float32)
        if tail_scores.shape[2] > tail_keys.shape[2]:
            raise own.damaged("has scores of tokens that it does not hold")
        if bool((scores < 0).any()) or bool((tail_scores < 0).any()):
            raise own.damaged("has scores below 0")
        layer.carried = Carried(scores, tail_scores)


def _fill_sliding(layer: Any, own: _Arrays, about: SavedCache, loaded: LoadedModel) -> None:
    batch, key_heads, width = len(about.lengths), loaded.shape.key_heads, loaded.shape.head_dim
    keys = own.take("keys", (batch, key_heads, None, width), *TYPES)
    values = own.take("values", tuple(keys.shape), keys.dtype)
    if keys.shape[2] != min(about.seen, layer.sliding_window - 1):
        raise own.damaged("does not hold what its window sees")
    restore_sliding(layer, keys.to(loaded.device), values.to(loaded.device), about.seen)


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path} is damaged: {what}; read the context again and save it")
