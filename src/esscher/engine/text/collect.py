"""Run a model over a text: keep what its attention layers see, or look at it as it comes."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.atomic import write_atomically
from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import as_dim, as_indices
from esscher.engine.models.capture import run_captured
from esscher.engine.models.inputs import LayerCapture
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.text.cloud import CloudFile, open_cloud, remove_with
from esscher.engine.text.documents import TextSource
from esscher.engine.text.manifest import FORMAT, MANIFEST, PROGRESS, key_heads_of, read_manifest
from esscher.engine.text.packing import Passage, PassageSet, read_passages
from esscher.engine.text.writer import CloudWriter, check_room

#: Tokens that the model reads at a time; bounds memory, and larger batches are hardly faster.
BATCH_TOKENS = 4096
#: Keys of a manifest that may differ between a cloud and the request that continues it.
FREE_KEYS = ("source", "versions")


def collect_cloud(
    loaded: LoadedModel,
    source: TextSource | PassageSet,
    *,
    tokens: int,
    context: int | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    seed: int = 0,
    drop_delimiters: bool = True,
    folder: str | Path | None = None,
    column: str | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Callable[[int, int], object] | None = None,
    watch: Callable[[Sequence[Passage], LayerCapture], object] | None = None,
) -> CloudFile:
    """Collect queries, keys and values of a text's first ``tokens`` tokens, on disk.

    Passages are read independently, then pooled: position plays no more part than it has in q and
    k. The arrays take ``4 * tokens * layers * head_dim * (heads + 2 * key_heads)`` bytes (a
    million tokens of MiniLM: 28 GB), which is checked first. The same call continues a cloud that
    was interrupted.

    Parameters
    ----------
    loaded
        The model.
    source
        The text, as in :func:`read_text`, or the passages that were read of it already, with at
        least so many tokens.
    tokens
        Tokens to keep.
    context
        Tokens of a passage; as many as the model reads, but at most 512, if left out.
    layers, heads
        What to keep; everything if left out.
    seed
        Seed of :meth:`CloudFile.sample_rows`.
    drop_delimiters
        Leave delimiters out of the cloud (they are part of the passages in any case).
    folder
        Where to put the cloud; a temporary folder, gone with the result, if left out.
    column
        Column of a table that holds the text.
    batch_tokens
        Tokens that the model reads at a time.
    progress
        Called with the number of passages done and their total.
    watch
        Called with some passages and what a layer sees of them, until it has seen every layer of
        every passage; those that a continued cloud holds already are read again for it.

    Raises
    ------
    InputError
        When the text is too short, the disk too small, or the folder holds something else.
    """
    tokens, batch_tokens = as_dim(tokens, "tokens"), as_dim(batch_tokens, "batch_tokens")
    random_stream(seed, "cloud rows")  # says what is wrong with the seed before any work is done
    context = min(loaded.max_positions, 512) if context is None else context
    if isinstance(source, PassageSet):
        text = source
    else:
        text = read_passages(loaded, source, tokens=tokens, context=context, column=column)
    keep = [~p.is_delimiter if drop_delimiters else np.ones(len(p.ids), bool) for p in text]
    ends = np.cumsum([k.sum() for k in keep])
    needed = int(np.searchsorted(ends, tokens)) + 1  # delimiters that are kept may fill the cloud
    text, keep = dataclasses.replace(text, passages=text.passages[:needed]), keep[:needed]
    manifest = _manifest(loaded, text, tokens, layers, heads, seed, drop_delimiters)
    place = Path(tempfile.mkdtemp(prefix="esscher-cloud-") if folder is None else folder)
    try:
        _prepare(place, manifest, text, keep)
        with CloudWriter(place, manifest, durable=folder is not None) as writer:
            _fill(loaded, text, keep, manifest, writer, batch_tokens, progress, watch)
        cloud = open_cloud(place)
    except BaseException:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)
        raise
    if folder is None:
        remove_with(cloud)
    return cloud


def _manifest(
    loaded: LoadedModel,
    text: PassageSet,
    tokens: int,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    seed: int,
    drop_delimiters: bool,
) -> dict[str, Any]:
    shape = loaded.shape
    group = shape.heads // shape.key_heads
    return {
        "format": FORMAT,
        "model": loaded.summary | {"name": Path(loaded.name).name},
        "weight_hash": loaded.weight_hash,
        "source": text.source,
        "text_hash": text.text_hash,
        "context": text.context,
        "passages": len(text),
        "rows": tokens,
        "layers": list(as_indices(layers, shape.layers, "layers")),
        "heads": list(as_indices(heads, shape.heads, "heads")),
        "key_heads": list(key_heads_of(heads, shape.heads, group)),
        "group": group,
        "head_dim": shape.head_dim,
        "drop_delimiters": drop_delimiters,
        "seed": int(seed),
        "versions": dict(loaded.provenance["versions"]),
    }


def _prepare(
    folder: Path, manifest: dict[str, Any], text: PassageSet, keep: Sequence[NDArray[np.bool_]]
) -> None:
    """Make a cloud's folder, or check that it is the one to continue."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    stored = read_manifest(folder)
    if stored is None:
        if any(folder.iterdir()):
            raise InputError(f"the folder {folder} is not empty; choose a new or empty one")
        check_room(folder, manifest)
        write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
        stored = manifest
    for key, value in manifest.items():
        if key not in FREE_KEYS and stored.get(key) != value:
            raise InputError(
                f"the folder {folder} holds a cloud with another {key} ({stored.get(key)!r} "
                f"instead of {value!r}); choose another folder"
            )
    if not (folder / PROGRESS).exists():
        _write_tokens(folder, manifest["rows"], text, keep)


def _write_tokens(
    folder: Path, rows: int, text: PassageSet, keep: Sequence[NDArray[np.bool_]]
) -> None:
    """Store which token each row is."""
    both = list(zip(text, keep, strict=True))
    arrays = {
        "token_ids": [passage.ids[kept] for passage, kept in both],
        "passage": [np.full(kept.sum(), passage.number) for passage, kept in both],
        "position": [np.flatnonzero(kept) for kept in keep],
        "is_delimiter": [passage.is_delimiter[kept] for passage, kept in both],
    }
    for name, parts in arrays.items():
        buffer = io.BytesIO()
        np.save(buffer, np.concatenate(parts)[:rows])
        write_atomically(folder / f"{name}.npy", buffer.getvalue())


def _fill(
    loaded: LoadedModel,
    text: Sequence[Passage],
    keep: Sequence[NDArray[np.bool_]],
    manifest: dict[str, Any],
    writer: CloudWriter,
    batch_tokens: int,
    progress: Callable[[int, int], object] | None,
    watch: Callable[[Sequence[Passage], LayerCapture], object] | None,
) -> None:
    """Run the model over the passages that are not done yet, or over all that are watched."""
    firsts = np.concatenate([[0], np.cumsum([k.sum() for k in keep])])
    done = writer.done
    for start, stop in _batches(text, done if watch is None else 0, batch_tokens):
        part, kept, first = text[start:stop], np.stack(keep[start:stop]), int(firsts[start])
        missing = stop > done

        def sink(
            capture: LayerCapture,
            part: Sequence[Passage] = part,
            kept: NDArray[np.bool_] = kept,
            first: int = first,
            missing: bool = missing,
        ) -> None:
            if missing:
                writer.write(capture, kept, first)
            if watch is not None:
                watch(part, capture)

        run_captured(loaded, batch_ids(part), sink, layers=manifest["layers"])
        if missing:
            writer.finish(stop)
        if progress is not None:
            progress(stop, len(text))


def _batches(text: Sequence[Passage], start: int, batch_tokens: int) -> Iterator[tuple[int, int]]:
    """Ranges of passages of the same length that the model reads at a time."""
    while start < len(text):
        length = len(text[start].ids)
        stop = start + 1
        while (
            stop < len(text)
            and len(text[stop].ids) == length
            and (stop + 1 - start) * length <= batch_tokens
        ):
            stop += 1
        yield start, stop
        start = stop


def batch_ids(text: Sequence[Passage]) -> Tensor:
    """Token ids of passages of the same length, [batch, n]."""
    return torch.from_numpy(np.stack([passage.ids for passage in text]))


def visit_passages(
    loaded: LoadedModel,
    text: Iterable[Passage],
    sink: Callable[[Passage, LayerCapture], object],
    *,
    layers: Sequence[int] | None = None,
) -> None:
    """Run the model over passages one by one; hand every layer to ``sink`` while it runs.

    Holds one layer of one passage at a time.
    """
    for passage in text:
        run_captured(
            loaded,
            batch_ids([passage]),
            lambda capture, passage=passage: sink(passage, capture),  # type: ignore[misc]
            layers=layers,
        )


def iterate_passages(
    loaded: LoadedModel, text: Iterable[Passage], *, layers: Sequence[int] | None = None
) -> Iterator[tuple[Passage, LayerCapture]]:
    """Yield every chosen layer of every passage, layer after layer within a passage.

    Holds the chosen layers of one passage at a time; :func:`visit_passages` holds only one layer.
    """
    for passage in text:
        captured: list[LayerCapture] = []
        run_captured(loaded, batch_ids([passage]), captured.append, layers=layers)
        captured.reverse()
        while captured:
            yield passage, captured.pop()
