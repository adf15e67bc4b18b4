"""Run a model over a text: store what its attention layers see, or look at it as it comes."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.atomic import TEMPORARY, write_atomically
from esscher.core.codec import as_json
from esscher.core.errors import InputError
from esscher.core.untrusted import open_regular_for_writing
from esscher.core.validation import as_dim, as_indices
from esscher.engine.models.capture import run_captured
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.text.cloud import (
    FORMAT,
    KINDS,
    MANIFEST,
    PROGRESS,
    CloudFile,
    Manifest,
    Progress,
    array_path,
    cloud_bytes,
    open_cloud,
    open_mapped,
    read_record,
    remove_with,
)
from esscher.engine.text.documents import TextSource
from esscher.engine.text.packing import Passage, PassageSet, read_passages

#: Seconds between two records of how far a cloud has got.
EVERY = 5.0
#: Room to leave on the disk beyond the arrays.
MARGIN = 64 * 2**20
#: Tokens that the model reads at a time; bounds memory, and larger batches are hardly faster.
BATCH_TOKENS = 4096


class CloudWriter:
    """The open files of a cloud; closes them at the end of a ``with`` block.

    Written with plain calls rather than through a map: a disk that fills up is then an error and
    not the end of the process, and written pages do not count as the process's memory. ``durable``
    files survive a power cut; nobody continues a temporary cloud.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, durable: bool) -> None:
        self._folder, self._manifest, self._durable = folder, manifest, durable
        self._files: dict[tuple[int, str], tuple[int, int]] = {}
        progress = read_record(folder / PROGRESS, Progress) or Progress(passages=0, layers={})
        self.done, self._details = progress.passages, dict(progress.layers)

    def __enter__(self) -> CloudWriter:
        """Open the arrays' files, making them if need be."""
        try:
            for layer, kind in itertools.product(self._manifest.layers, KINDS):
                path = array_path(self._folder, layer, kind)
                shape = self._manifest.shape(kind)
                if not path.exists():
                    new = path.with_name(f"{path.name}{TEMPORARY}")
                    new.unlink(missing_ok=True)  # it may be a link to elsewhere
                    np.lib.format.open_memmap(new, "w+", np.float32, shape)
                    os.replace(new, path)  # so that a file with this name is whole
                start = path.stat().st_size - open_mapped(path, shape).nbytes
                self._files[layer, kind] = open_regular_for_writing(path), start
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise self._unwritable(error) from error
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            # After an error, what is lost by not recording is only time: the error matters more.
            with contextlib.suppress(*([InputError] if error is not None else [])):
                self.record()
        finally:
            self._close()

    def write(self, capture: LayerInputs, keep: NDArray[np.bool_], first: int) -> None:
        """Write the kept tokens [batch, n] of a layer, from row ``first`` on."""
        self._details[str(capture.layer)] = (capture.scaling, capture.softcap, capture.window)
        manifest = self._manifest
        for kind, tensor in zip(KINDS, (capture.q, capture.k, capture.v), strict=True):
            handle, start = self._files[capture.layer, kind]
            array = tensor.float().cpu().numpy()
            row = 4 * array.shape[-1]
            for place, head in enumerate(manifest.heads if kind == "q" else manifest.key_heads):
                # The last passage may hold more tokens than the cloud wants.
                room = row * (manifest.rows - first)
                data = np.ascontiguousarray(array[:, head][keep]).data.cast("B")[:room]
                at = start + row * (place * manifest.rows + first)
                try:
                    while data:
                        written = os.pwrite(handle, data, at)
                        data, at = data[written:], at + written
                except OSError as error:
                    raise self._unwritable(error) from error

    def record(self) -> None:
        """Bring the arrays to the disk, then the number of passages that are in them."""
        try:
            for handle, _ in self._files.values():
                if self._durable:
                    os.fsync(handle)
        except OSError as error:
            raise self._unwritable(error) from error
        progress = Progress(passages=self.done, layers=self._details)
        write_atomically(self._folder / PROGRESS, as_json(progress))

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(
            f"cannot write to {self._folder}: {error.strerror or error}; make room and run the "
            "same again: it continues where it stopped"
        )

    def _close(self) -> None:
        for handle, _ in self._files.values():
            os.close(handle)
        self._files.clear()


def collect_cloud(
    loaded: LoadedModel,
    source: TextSource | PassageSet,
    *,
    tokens: int,
    context: int | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    drop_delimiters: bool = True,
    folder: str | Path | None = None,
    column: str | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Callable[[int, int], object] | None = None,
    watch: Callable[[Sequence[Passage], LayerInputs], object] | None = None,
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
    context = min(loaded.max_positions, 512) if context is None else context
    if isinstance(source, PassageSet):
        text = source
    else:
        text = read_passages(loaded, source, tokens=tokens, context=context, column=column)
    keep = [~p.is_delimiter if drop_delimiters else np.ones(len(p.ids), bool) for p in text]
    ends = np.cumsum([k.sum() for k in keep])
    needed = int(np.searchsorted(ends, tokens)) + 1  # delimiters that are kept may fill the cloud
    text, keep = dataclasses.replace(text, passages=text.passages[:needed]), keep[:needed]
    shape = loaded.shape
    group = shape.heads // shape.key_heads
    chosen = as_indices(heads, shape.heads, "heads")
    manifest = Manifest(
        format=FORMAT,
        model=Path(loaded.name).name,
        weight_hash=loaded.weight_hash,
        source=text.source,
        text_hash=text.text_hash,
        context=text.context,
        passages=len(text),
        rows=tokens,
        layers=tuple(as_indices(layers, shape.layers, "layers")),
        heads=tuple(chosen),
        key_heads=tuple(sorted({head // group for head in chosen})),
        group=group,
        head_dim=shape.head_dim,
        drop_delimiters=drop_delimiters,
    )
    place = Path(tempfile.mkdtemp(prefix="esscher-cloud-") if folder is None else folder)
    try:
        _prepare(place, manifest, text, keep)
        with CloudWriter(place, manifest, durable=folder is not None) as writer:
            recorded, done = time.monotonic(), writer.done
            for start, stop in _batches(text, done if watch is None else 0, batch_tokens):
                part, kept = text[start:stop], np.stack(keep[start:stop])
                first, missing = int(ends[start] - keep[start].sum()), stop > done

                def sink(
                    capture: LayerInputs,
                    part: Sequence[Passage] = part,
                    kept: NDArray[np.bool_] = kept,
                    first: int = first,
                    missing: bool = missing,
                ) -> None:
                    if missing:
                        writer.write(capture, kept, first)
                    if watch is not None:
                        watch(part, capture)

                run_captured(loaded, batch_ids(part), sink, layers=manifest.layers)
                if missing:
                    writer.done = stop
                    if time.monotonic() - recorded > EVERY:
                        writer.record()
                        recorded = time.monotonic()
                if progress is not None:
                    progress(stop, len(text))
        cloud = open_cloud(place)
    except BaseException:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)
        raise
    if folder is None:
        remove_with(cloud)
    return cloud


def _prepare(
    folder: Path, manifest: Manifest, text: PassageSet, keep: Sequence[NDArray[np.bool_]]
) -> None:
    """Make a cloud's folder, or check that it is the one to continue; store its tokens."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    stored = read_record(folder / MANIFEST, Manifest)
    if stored is None:
        if any(folder.iterdir()):
            raise InputError(f"the folder {folder} is not empty; choose a new or empty one")
        needed = cloud_bytes(
            rows=manifest.rows,
            layers=len(manifest.layers),
            heads=len(manifest.heads),
            key_heads=len(manifest.key_heads),
            head_dim=manifest.head_dim,
        )
        free = shutil.disk_usage(folder).free
        if needed + MARGIN > free:
            raise InputError(
                f"the cloud needs {needed / 1e9:.1f} GB, but {folder} has only {free / 1e9:.1f} "
                "GB left; choose fewer layers, heads or tokens, or another folder"
            )
        write_atomically(folder / MANIFEST, as_json(manifest))
        stored = manifest
    for key in manifest.__struct_fields__:
        before, now = getattr(stored, key), getattr(manifest, key)
        if key not in ("model", "source") and before != now:  # names say nothing
            raise InputError(
                f"the folder {folder} holds a cloud with another {key} ({before!r} instead of "
                f"{now!r}); choose another folder"
            )
    if not (folder / PROGRESS).exists():
        pairs = list(zip(text, keep, strict=True))
        for name, parts in {
            "token_ids": [passage.ids[kept] for passage, kept in pairs],
            "passage": [np.full(kept.sum(), passage.number) for passage, kept in pairs],
        }.items():
            buffer = io.BytesIO()
            np.save(buffer, np.concatenate(parts)[: manifest.rows])
            write_atomically(folder / f"{name}.npy", buffer.getvalue())


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
    sink: Callable[[Passage, LayerInputs], object],
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
) -> Iterator[tuple[Passage, LayerInputs]]:
    """Yield every chosen layer of every passage, layer after layer within a passage.

    Holds the chosen layers of one passage at a time; :func:`visit_passages` holds only one layer.
    """
    for passage in text:
        captured: list[LayerInputs] = []
        run_captured(loaded, batch_ids([passage]), captured.append, layers=layers)
        captured.reverse()
        while captured:
            yield passage, captured.pop()
