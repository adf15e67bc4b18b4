"""Run a model over a text: store what its attention layers see, or look at it as it comes.

A cloud is the queries, keys and values of many tokens, by layer and head, pooled over passages. Its
arrays are files that are mapped, not read: what is looked at is what is loaded.
"""

from __future__ import annotations

import itertools
import mmap
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.validation import as_indices
from esscher.engine.models.capture import run_captured
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.text.packing import Passage

#: Names of the arrays of a layer.
KINDS = ("q", "k", "v")
#: Room to leave on the disk beyond the arrays.
MARGIN = 64 * 2**20
#: Tokens that the model reads at a time; bounds memory, and larger batches are hardly faster.
BATCH_TOKENS = 4096
#: Rows that are read before memory is given back.
ROWS_AT_A_TIME = 1024

Mapped: TypeAlias = NDArray[Any]


@dataclass(frozen=True, eq=False)
class LayerCloud:
    """The tokens of one layer, as views of the files.

    Attributes
    ----------
    heads, served_by
        Its stored query heads, and the index in ``k`` and ``v`` of the key head of each.
    q, k, v
        [heads or key heads, tokens, d], mapped; as they enter the softmax.
    scaling, softcap, window
        Factor and bound of the logits, and the sliding window of the layer.
    """

    heads: tuple[int, ...]
    served_by: tuple[int, ...]
    q: Mapped
    k: Mapped
    v: Mapped
    scaling: float
    softcap: float | None
    window: int | None

    def head(self, head: int) -> tuple[Mapped, Mapped, Mapped]:
        """Queries, keys and values of a query head, [tokens, d], mapped."""
        at = self.heads.index(head)
        key_head = self.served_by[at]
        return self.q[at], self.k[key_head], self.v[key_head]

    def let_go(self) -> None:
        """Give back the memory of what was read so far; the files stay mapped.

        The system takes it back when it needs it in any case, but until then it counts as memory of
        the process, which batch systems hold against it.
        """
        for array in (self.q, self.k, self.v):
            let_go(array)


@dataclass(frozen=True, eq=False)
class CloudFile:
    """Tokens of a text as the attention layers of a model see them, pooled over passages.

    Attributes
    ----------
    folder
        Where the arrays are. A temporary one is removed with the object.
    layers, heads, served_by
        Layers and query heads it holds, and the index of each one's key head among those it holds.
    token_ids, passage
        Token id and number of the passage of each row.
    details
        Scaling, soft cap and window by the number of the layer.
    """

    folder: Path
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    served_by: tuple[int, ...]
    token_ids: NDArray[np.int64] = field(repr=False)
    passage: NDArray[np.int64] = field(repr=False)
    details: dict[int, tuple[float, float | None, int | None]] = field(repr=False)

    @property
    def rows(self) -> int:
        """Number of tokens."""
        return len(self.token_ids)

    def layer(self, layer: int) -> LayerCloud:
        """The tokens of a layer.

        Raises
        ------
        InputError
            When this machine does not see the folder.
        """
        try:
            q, k, v = (np.load(array_path(self.folder, layer, kind), "r") for kind in KINDS)
        except FileNotFoundError as error:
            raise InputError(
                f"{socket.gethostname()} does not see {self.folder}; let --out be a directory that "
                "all machines of the cluster see under the same name"
            ) from error
        return LayerCloud(self.heads, self.served_by, q, k, v, *self.details[layer])


def array_path(folder: Path, layer: int, kind: str) -> Path:
    """File of one array of a layer, [heads or key heads, tokens, d]."""
    return folder / f"layer-{layer:03d}-{kind}.npy"


def cloud_bytes(*, rows: int, layers: int, heads: int, key_heads: int, head_dim: int) -> int:
    """Bytes of the arrays of a cloud, in float32."""
    return 4 * rows * layers * head_dim * (heads + 2 * key_heads)


def read_rows(array: Mapped, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Some tokens of an array [..., tokens, d], in memory, in the order given.

    With each row the system maps its neighbourhood (64 kB), so that a few thousand rows of many
    heads would take gigabytes; here it is given back after 1,024 of them.
    """
    out = np.empty((*array.shape[:-2], len(rows), array.shape[-1]), array.dtype)
    order = np.argsort(rows, kind="stable")  # from front to back
    for index in np.ndindex(*array.shape[:-2]):
        for start in range(0, len(rows), ROWS_AT_A_TIME):
            part = order[start : start + ROWS_AT_A_TIME]
            out[index][part] = array[index][rows[part]]
            let_go(array)
    return out


def let_go(array: Mapped) -> None:
    """Give back the memory of what was read of a mapped array; it stays mapped."""
    mapping = getattr(array, "_mmap", None)
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def collect_cloud(
    loaded: LoadedModel,
    passages: Sequence[Passage],
    *,
    tokens: int,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    folder: Path | None = None,
    progress: Callable[[int, int], object] | None = None,
    watch: Callable[[Sequence[Passage], LayerInputs], object] | None = None,
) -> CloudFile:
    """Collect queries, keys and values of a text's first ``tokens`` tokens, on disk.

    Passages are read independently, then pooled: position plays no more part than it has in q and
    k. Delimiters are left out. The arrays take ``4 * tokens * layers * head_dim * (heads + 2 *
    key_heads)`` bytes (a million tokens of MiniLM: 28 GB), which is checked first.

    Parameters
    ----------
    loaded
        The model.
    passages
        Passages with at least so many tokens.
    tokens
        Tokens to keep.
    layers, heads
        What to keep; everything if left out.
    folder
        Where to put the cloud; a temporary folder, gone with the result, if left out.
    progress
        Called with the number of passages done and their total.
    watch
        Called with some passages and what a layer sees of them, for every layer of every passage.

    Raises
    ------
    InputError
        When the disk is too small.
    """
    keep = [~passage.is_delimiter for passage in passages]
    ends = np.cumsum([kept.sum() for kept in keep])
    needed = int(np.searchsorted(ends, tokens)) + 1
    passages, keep = passages[:needed], keep[:needed]
    shape = loaded.shape
    layers = as_indices(layers, shape.layers, "layers")
    heads = as_indices(heads, shape.heads, "heads")
    key_heads = sorted({shape.key_head(head) for head in heads})
    chosen = {"q": list(heads), "k": key_heads, "v": key_heads}
    place = Path(tempfile.mkdtemp(prefix="esscher-cloud-") if folder is None else folder).resolve()
    details: dict[int, tuple[float, float | None, int | None]] = {}
    try:
        place.mkdir(parents=True, exist_ok=True)
        size = cloud_bytes(
            rows=tokens,
            layers=len(layers),
            heads=len(heads),
            key_heads=len(key_heads),
            head_dim=shape.head_dim,
        )
        free = shutil.disk_usage(place).free
        if size + MARGIN > free:
            raise InputError(
                f"the cloud needs {size / 1e9:.1f} GB, but {place} has only {free / 1e9:.1f} GB "
                "left; choose fewer layers, heads or tokens, or another folder"
            )
        with ExitStack() as stack:
            # Written with plain calls rather than through a map: a disk that fills up is then an
            # error and not the end of the process.
            files = {}
            for layer, kind in itertools.product(layers, KINDS):
                path = array_path(place, layer, kind)
                whole = (len(chosen[kind]), tokens, shape.head_dim)
                start = np.lib.format.open_memmap(path, "w+", np.float32, whole).offset
                files[layer, kind] = stack.enter_context(path.open("r+b")), start

            for begin, end in _batches(passages):
                batch, kept = passages[begin:end], np.stack(keep[begin:end])
                first = int(ends[begin] - keep[begin].sum())

                def take(
                    capture: LayerInputs,
                    batch: Sequence[Passage] = batch,
                    kept: NDArray[np.bool_] = kept,
                    first: int = first,
                ) -> None:
                    details[capture.layer] = (capture.scaling, capture.softcap, capture.window)
                    for kind, tensor in zip(KINDS, (capture.q, capture.k, capture.v), strict=True):
                        file, start = files[capture.layer, kind]
                        array = tensor.float().cpu().numpy()
                        row = 4 * shape.head_dim
                        for i, head in enumerate(chosen[kind]):
                            # the last passage may hold more tokens than the cloud wants
                            rows = array[:, head][kept][: tokens - first]
                            file.seek(start + row * (i * tokens + first))
                            file.write(rows.tobytes())
                    if watch is not None:
                        watch(batch, capture)

                run_captured(loaded, batch_ids(batch), take, layers=layers)
                if progress is not None:
                    progress(end, len(passages))
    except BaseException as error:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)
        if isinstance(error, OSError):
            raise InputError(
                f"cannot write to {place}: {error.strerror or error}; make room, or choose another "
                "directory"
            ) from error
        raise
    cloud = CloudFile(
        folder=place,
        layers=layers,
        heads=heads,
        served_by=tuple(key_heads.index(shape.key_head(head)) for head in heads),
        token_ids=np.concatenate([p.ids[k] for p, k in zip(passages, keep, strict=True)])[:tokens],
        passage=np.repeat([p.number for p in passages], [k.sum() for k in keep])[:tokens],
        details=details,
    )
    if folder is None:
        # with the object; views of it that are in use stay valid
        weakref.finalize(cloud, shutil.rmtree, place, ignore_errors=True)
    return cloud


def _batches(text: Sequence[Passage]) -> Iterator[tuple[int, int]]:
    """Ranges of passages of the same length that the model reads at a time."""
    start = 0
    while start < len(text):
        length = len(text[start].ids)
        stop = start + 1
        while (
            stop < len(text)
            and len(text[stop].ids) == length
            and (stop + 1 - start) * length <= BATCH_TOKENS
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
