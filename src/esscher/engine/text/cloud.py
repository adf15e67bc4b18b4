"""A cloud of tokens on disk: queries, keys and values of many tokens, by layer and head.

The arrays are mapped, not read: what is looked at is what is loaded.
"""

from __future__ import annotations

import mmap
import shutil
import socket
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from esscher.core.codec import Hash, Name, Record, as_record
from esscher.core.errors import InputError
from esscher.core.untrusted import map_array, read_json

#: Version of the layout of a cloud's folder.
FORMAT = 2
#: File that describes a cloud, apart from its arrays.
MANIFEST = "cloud.json"
#: How many passages are written, and the scaling, soft cap and window of each layer.
PROGRESS = "progress.json"
#: Names of the arrays of a layer.
KINDS = ("q", "k", "v")
#: Rows that are read before memory is given back.
ROWS_AT_A_TIME = 1024

_Count: TypeAlias = Annotated[int, Meta(ge=1, le=10**12)]
_Number: TypeAlias = Annotated[int, Meta(ge=1, le=100_000)]
_Numbers: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=100_000)], ...], Meta(min_length=1, max_length=100_000)
]
_LayerDetails: TypeAlias = tuple[
    float, Annotated[float, Meta(gt=0)] | None, Annotated[int, Meta(ge=1)] | None
]
Mapped: TypeAlias = NDArray[Any]
_R = TypeVar("_R", bound=Record)


class Manifest(Record, frozen=True, kw_only=True):
    """What ``cloud.json`` says: where tokens come from, and which arrays there are."""

    format: int
    passages: Annotated[int, Meta(ge=1, le=10**9)]
    rows: _Count
    layers: _Numbers
    heads: _Numbers
    key_heads: _Numbers
    group: _Number
    head_dim: _Number
    model: Name
    weight_hash: Hash
    source: Name
    text_hash: Hash
    context: _Count
    drop_delimiters: bool

    def shape(self, kind: str) -> tuple[int, int, int]:
        """Shape of an array of a layer: heads or key heads, tokens, dimension."""
        return len(self.heads if kind == "q" else self.key_heads), self.rows, self.head_dim


class Progress(Record, frozen=True, kw_only=True):
    """What ``progress.json`` says: passages that are written, and details of each layer."""

    passages: Annotated[int, Meta(ge=0, le=10**9)]
    layers: dict[str, _LayerDetails]


def array_path(folder: Path, layer: int, kind: str) -> Path:
    """File of one array of a layer, [heads or key heads, tokens, d]."""
    return folder / f"layer-{layer:03d}-{kind}.npy"


def read_record(path: Path, kind: type[_R]) -> _R | None:
    """Read a cloud's description or its progress; None if there is no such file."""
    try:
        return as_record(read_json(path, follow=False), kind, str(path))
    except OSError:
        return None
    except InputError as error:
        raise InputError(f"{error}; remove the folder and collect the cloud again") from error


def stored_layers(folder: Path) -> Sequence[int]:
    """Layers of the cloud that a folder holds, finished or not; none if it holds no cloud."""
    manifest = read_record(folder / MANIFEST, Manifest)
    return () if manifest is None or manifest.format != FORMAT else manifest.layers


def cloud_bytes(*, rows: int, layers: int, heads: int, key_heads: int, head_dim: int) -> int:
    """Bytes of the arrays of a cloud, in float32."""
    return 4 * rows * layers * head_dim * (heads + 2 * key_heads)


@dataclass(frozen=True, eq=False)
class LayerCloud:
    """The tokens of one layer, as views of the files.

    Attributes
    ----------
    layer, heads, key_heads, group
        Number of the layer, its stored query and key heads, and query heads of a key head.
    q, k, v
        [heads or key heads, tokens, d], mapped; as they enter the softmax.
    scaling, softcap, window
        Factor and bound of the logits, and the sliding window of the layer.
    """

    layer: int
    heads: tuple[int, ...]
    key_heads: tuple[int, ...]
    group: int
    q: Mapped
    k: Mapped
    v: Mapped
    scaling: float
    softcap: float | None
    window: int | None

    @property
    def served_by(self) -> list[int]:
        """Index of the array of keys and values that each query head uses."""
        return [self.key_heads.index(head // self.group) for head in self.heads]

    def head(self, head: int) -> tuple[Mapped, Mapped, Mapped]:
        """Queries, keys and values of a query head, [tokens, d], mapped."""
        if head not in self.heads:
            raise InputError(
                f"the cloud holds no head {head!r}; it holds {', '.join(map(str, self.heads))}"
            )
        at = self.heads.index(head)
        key_head = self.served_by[at]
        return self.q[at], self.k[key_head], self.v[key_head]

    def let_go(self) -> None:
        """Give back the memory of what was read so far; the files stay mapped.

        The system takes it back when it needs it in any case, but until then it counts as the
        process's own, which batch systems hold against it.
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
    manifest
        What the cloud is made of: model, text, options.
    details
        Scaling, soft cap and window by the number of the layer.
    """

    folder: Path
    manifest: Manifest = field(repr=False)
    details: dict[str, _LayerDetails] = field(repr=False)

    @property
    def rows(self) -> int:
        """Number of tokens."""
        return self.manifest.rows

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers it holds."""
        return self.manifest.layers

    @property
    def heads(self) -> tuple[int, ...]:
        """Query heads it holds."""
        return self.manifest.heads

    @cached_property
    def token_ids(self) -> Mapped:
        """Token id of each row."""
        return open_mapped(self.folder / "token_ids.npy", (self.rows,))

    @cached_property
    def passage(self) -> Mapped:
        """Number of the passage of each row."""
        return open_mapped(self.folder / "passage.npy", (self.rows,))

    def layer(self, layer: int) -> LayerCloud:
        """The tokens of a layer."""
        if layer not in self.layers:
            raise InputError(
                f"the cloud holds no layer {layer!r}; it holds {', '.join(map(str, self.layers))}"
            )
        manifest = self.manifest
        q, k, v = (
            open_mapped(array_path(self.folder, layer, kind), manifest.shape(kind))
            for kind in KINDS
        )
        details = self.details[str(layer)]
        return LayerCloud(
            layer, manifest.heads, manifest.key_heads, manifest.group, q, k, v, *details
        )


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


def open_cloud(folder: str | Path) -> CloudFile:
    """Open a cloud that :func:`collect_cloud` has finished.

    Raises
    ------
    InputError
        When the folder holds none, or one that is not finished.
    """
    place = Path(folder)
    manifest = read_record(place / MANIFEST, Manifest)
    progress = read_record(place / PROGRESS, Progress)
    if manifest is None or manifest.format != FORMAT:
        raise InputError(f"{str(folder)!r} does not hold a token cloud of this version")
    if progress is None or progress.passages < manifest.passages:
        done = 0 if progress is None else progress.passages
        raise InputError(
            f"the cloud in {str(folder)!r} is not finished ({done} of {manifest.passages} "
            "passages); collect it again with the same options to continue"
        )
    for layer in manifest.layers:
        if str(layer) not in progress.layers:
            raise InputError(f"{place / PROGRESS} is damaged: layers has no {str(layer)!r}")
    if {head // manifest.group for head in manifest.heads} - set(manifest.key_heads):
        raise InputError(f"{place / MANIFEST} is damaged: key_heads lacks some that heads need")
    return CloudFile(place, manifest, progress.layers)


#: In a worker, the cloud that it opened last.
_SEEN: dict[str, CloudFile] = {}


def seen_cloud(folder: str) -> CloudFile:
    """Open a cloud that another machine has collected; the last one stays open.

    Raises
    ------
    InputError
        When this machine does not see it.
    """
    manifest = read_record(Path(folder) / MANIFEST, Manifest)
    if manifest is None:
        raise InputError(
            f"the worker on {socket.gethostname()} does not see {folder}; let --out be a "
            "directory that all machines of the cluster see under the same name"
        )
    if folder not in _SEEN or _SEEN[folder].manifest != manifest:  # other layers come later
        _SEEN.clear()
        _SEEN[folder] = open_cloud(folder)
    return _SEEN[folder]


def open_mapped(path: Path, shape: tuple[int, ...]) -> Mapped:
    """Map an array's file for reading.

    Raises
    ------
    InputError
        When it is missing, damaged or of another shape.
    """
    try:
        array = map_array(path)
        if array.shape != shape:
            raise InputError(f"its shape is {array.shape}, not {shape}")
    except (OSError, InputError) as error:
        raise InputError(
            f"{path} is missing or damaged ({error}); remove the folder and collect the cloud again"
        ) from error
    return array


def remove_with(cloud: CloudFile) -> None:
    """Remove a cloud's folder when the object goes; views that are in use stay valid."""
    weakref.finalize(cloud, shutil.rmtree, cloud.folder, ignore_errors=True)
