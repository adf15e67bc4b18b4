"""The folder of a cloud: names of its files, what they say about it, and how far it has got."""

from __future__ import annotations

import mmap
import shutil
import socket
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from esscher.core.codec import Hash, Name, Record, as_record
from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.untrusted import map_array, read_json
from esscher.core.validation import as_indices
from esscher.math.heads import ArrayHead, array_head

#: Version of the layout of a cloud's folder.
FORMAT = 1
#: File that describes a cloud, apart from its arrays.
MANIFEST = "cloud.json"
#: How far it has got, and what the layers said about themselves.
PROGRESS = "progress.json"
#: Names of the arrays of a layer.
KINDS = ("q", "k", "v")

_Count: TypeAlias = Annotated[int, Meta(ge=1, le=10**12)]
_Number: TypeAlias = Annotated[int, Meta(ge=1, le=100_000)]
_Numbers: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=100_000)], ...], Meta(min_length=1, max_length=100_000)
]
_Versions: TypeAlias = dict[str, Annotated[str, Meta(max_length=256)] | None]


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
    seed: Annotated[int, Meta(ge=0)]
    model: dict[str, Any] | None = None
    weight_hash: Hash = ""
    source: Name = ""
    text_hash: Hash = ""
    context: _Count = 1
    drop_delimiters: bool = False
    versions: _Versions | None = None


class LayerDetails(Record, frozen=True, kw_only=True):
    """What a layer said about itself."""

    scaling: float
    softcap: Annotated[float, Meta(gt=0)] | None
    window: Annotated[int, Meta(ge=1)] | None


class Progress(Record, frozen=True, kw_only=True):
    """What ``progress.json`` says: how far a cloud has got."""

    passages: Annotated[int, Meta(ge=0, le=10**9)]
    layers: dict[str, LayerDetails]


def array_path(folder: Path, layer: int, kind: str) -> Path:
    """File of one array of a layer, [heads or key heads, tokens, d]."""
    return folder / f"layer-{layer:03d}-{kind}.npy"


def stored_layers(folder: Path) -> list[int]:
    """Layers of the cloud that a folder holds, finished or not; none if it holds no cloud."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.get("format") != FORMAT:
        return []
    return [int(layer) for layer in manifest["layers"]]


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read the description of a cloud; None if there is no cloud."""
    return _read(folder / MANIFEST, Manifest)


def read_progress(folder: Path) -> dict[str, Any] | None:
    """Read how far a cloud has got; None if it has not begun."""
    return _read(folder / PROGRESS, Progress)


def _read(path: Path, kind: type[Record]) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = read_json(path, follow=False)
        as_record(found, kind, str(path))
        return found
    except OSError:
        return None
    except InputError as error:
        raise InputError(f"{error}; remove the folder and collect the cloud again") from error


def cloud_bytes(*, rows: int, layers: int, heads: int, key_heads: int, head_dim: int) -> int:
    """Bytes of the arrays of a cloud, in float32."""
    return 4 * rows * layers * head_dim * (heads + 2 * key_heads)


def key_heads_of(heads: Sequence[int] | None, count: int, group: int) -> tuple[int, ...]:
    """Key heads that serve the chosen query heads."""
    return tuple(sorted({head // group for head in as_indices(heads, count, "heads")}))


# A cloud of tokens on disk: queries, keys and values of many tokens, by layer and head.
#
# The arrays are mapped, not read: what is looked at is what is loaded.

#: Rows that are read before memory is given back.
ROWS_AT_A_TIME = 1024

Mapped = NDArray[Any]

#: In a worker, the cloud that it opened last.
_SEEN: dict[str, CloudFile] = {}


class Rows(NamedTuple):
    """Some tokens of a head, in memory: one row per token."""

    q: NDArray[np.float32]
    k: NDArray[np.float32]
    v: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class HeadCloud:
    """The tokens of one head, as views of the files.

    Attributes
    ----------
    q, k, v
        [tokens, d], mapped; as they enter the softmax.
    scaling
        Factor of the logits.
    softcap
        Bound of the logits, or None.
    """

    layer: int
    head: int
    key_head: int
    q: Mapped
    k: Mapped
    v: Mapped
    scaling: float
    softcap: float | None

    def take(self, rows: NDArray[np.int64] | slice) -> Rows:
        """Load some tokens, in the order given."""
        if isinstance(rows, slice):
            return Rows(*(np.array(x[rows]) for x in (self.q, self.k, self.v)))
        return Rows(*(read_rows(x, np.asarray(rows)) for x in (self.q, self.k, self.v)))

    def as_head(self, rows: NDArray[np.int64] | slice = slice(None)) -> ArrayHead:
        """The empirical law of the tokens as a head of the theory (in float64, in memory)."""
        q, k, v = self.take(rows)
        return array_head(q, k, v, scale=self.scaling)


@dataclass(frozen=True, eq=False)
class LayerCloud:
    """The tokens of one layer, as views of the files."""

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

    def let_go(self) -> None:
        """Give back the memory of what was read so far; the files stay mapped.

        The system takes it back when it needs it in any case, but until then it counts as the
        process's own, which batch systems hold against it.
        """
        for array in (self.q, self.k, self.v):
            let_go(array)

    def head(self, head: int) -> HeadCloud:
        """The tokens of a query head."""
        if head not in self.heads:
            raise InputError(
                f"the cloud holds no head {head!r}; it holds {', '.join(map(str, self.heads))}"
            )
        key_head = head // self.group
        j = self.key_heads.index(key_head)
        q = self.q[self.heads.index(head)]
        return HeadCloud(
            self.layer, head, key_head, q, self.k[j], self.v[j], self.scaling, self.softcap
        )


@dataclass(frozen=True, eq=False)
class CloudFile:
    """Tokens of a text as the attention layers of a model see them, pooled over passages.

    Attributes
    ----------
    folder
        Where the arrays are. A temporary one is removed with the object.
    manifest
        What the cloud is made of: model, text, options.
    """

    folder: Path
    manifest: dict[str, Any] = field(repr=False)
    details: dict[str, Any] = field(repr=False)

    @property
    def rows(self) -> int:
        """Number of tokens."""
        return int(self.manifest["rows"])

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers it holds."""
        return tuple(self.manifest["layers"])

    @property
    def heads(self) -> tuple[int, ...]:
        """Query heads it holds."""
        return tuple(self.manifest["heads"])

    @cached_property
    def token_ids(self) -> Mapped:
        """Token id of each row."""
        return self._array("token_ids")

    @cached_property
    def passage(self) -> Mapped:
        """Number of the passage of each row."""
        return self._array("passage")

    @cached_property
    def position(self) -> Mapped:
        """Position of each row in its passage, delimiters counted."""
        return self._array("position")

    @cached_property
    def is_delimiter(self) -> Mapped:
        """Whether a row is a delimiter; never, unless delimiters were kept."""
        return self._array("is_delimiter")

    def layer(self, layer: int) -> LayerCloud:
        """The tokens of a layer."""
        if layer not in self.layers:
            raise InputError(
                f"the cloud holds no layer {layer!r}; it holds {', '.join(map(str, self.layers))}"
            )
        q, k, v = (self._layer_array(layer, kind) for kind in KINDS)
        details = self.details[str(layer)]
        return LayerCloud(
            layer=layer,
            heads=self.heads,
            key_heads=tuple(self.manifest["key_heads"]),
            group=int(self.manifest["group"]),
            q=q,
            k=k,
            v=v,
            scaling=float(details["scaling"]),
            softcap=details["softcap"],
            window=details["window"],
        )

    def sample_rows(
        self, n: int, replicate: int = 0, *, replace: bool = False
    ) -> NDArray[np.int64]:
        """Draw ``n`` rows, the same for all layers and heads; a function of (seed, replicate)."""
        if not replace and n > self.rows:
            raise InputError(
                f"n is {n}, but the cloud has {self.rows} tokens; draw with replacement, or fewer"
            )
        rng = random_stream(int(self.manifest["seed"]), "cloud rows", int(replace), replicate)
        return np.asarray(rng.choice(self.rows, size=n, replace=replace), dtype=np.int64)

    def _array(self, name: str) -> Mapped:
        return self._checked(self.folder / f"{name}.npy", (self.rows,))

    def _layer_array(self, layer: int, kind: str) -> Mapped:
        count = len(self.manifest["heads" if kind == "q" else "key_heads"])
        shape = (count, self.rows, int(self.manifest["head_dim"]))
        return self._checked(array_path(self.folder, layer, kind), shape)

    def _checked(self, path: Path, shape: tuple[int, ...]) -> Mapped:
        """An array of the cloud, of the shape that its manifest says."""
        array = open_mapped(path)
        if array.shape != shape:
            raise InputError(
                f"{path} is damaged: its shape is {array.shape}, not {shape}; remove the folder "
                "and collect the cloud again"
            )
        return array


def read_rows(
    array: Mapped, rows: NDArray[np.int64], at_a_time: int = ROWS_AT_A_TIME
) -> NDArray[np.float32]:
    """Some tokens of an array [..., tokens, d], in memory, in the order given.

    With each row the system maps its neighbourhood (64 kB), so that a few thousand rows of many
    heads would take gigabytes; here it is given back after ``at_a_time`` of them.
    """
    out = np.empty((*array.shape[:-2], len(rows), array.shape[-1]), array.dtype)
    order = np.argsort(rows, kind="stable")  # from front to back
    for index in np.ndindex(*array.shape[:-2]):
        for start in range(0, len(rows), at_a_time):
            part = order[start : start + at_a_time]
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
    manifest, progress = read_manifest(place), read_progress(place)
    if manifest is None or manifest.get("format") != FORMAT:
        raise InputError(f"{str(folder)!r} does not hold a token cloud of this version")
    if progress is None or progress["passages"] < manifest["passages"]:
        done = 0 if progress is None else progress["passages"]
        raise InputError(
            f"the cloud in {str(folder)!r} is not finished ({done} of {manifest['passages']} "
            "passages); collect it again with the same options to continue"
        )
    for layer in manifest["layers"]:
        if str(layer) not in progress["layers"]:
            raise InputError(f"{place / PROGRESS} is damaged: layers has no {str(layer)!r}")
    if {head // manifest["group"] for head in manifest["heads"]} - set(manifest["key_heads"]):
        raise InputError(f"{place / MANIFEST} is damaged: key_heads lacks some that heads need")
    return CloudFile(place, manifest, progress["layers"])


def seen_cloud(folder: str) -> CloudFile:
    """Open a cloud that another machine has collected; the last one stays open.

    Raises
    ------
    InputError
        When this machine does not see it.
    """
    manifest = read_manifest(Path(folder))
    if manifest is None:
        raise InputError(
            f"the worker on {socket.gethostname()} does not see {folder}; let --out be a "
            "directory that all machines of the cluster see under the same name"
        )
    if folder not in _SEEN or _SEEN[folder].manifest != manifest:  # other layers come later
        _SEEN.clear()
        _SEEN[folder] = open_cloud(folder)
    return _SEEN[folder]


def open_mapped(path: Path) -> Mapped:
    """Map an array's file for reading.

    Raises
    ------
    InputError
        When it is missing or damaged.
    """
    try:
        return map_array(path)
    except (OSError, InputError) as error:
        raise InputError(
            f"{path} is missing or damaged ({error}); remove the folder and collect the cloud again"
        ) from error


def remove_with(cloud: CloudFile) -> None:
    """Remove a cloud's folder when the object goes; views that are in use stay valid."""
    weakref.finalize(cloud, shutil.rmtree, cloud.folder, ignore_errors=True)
