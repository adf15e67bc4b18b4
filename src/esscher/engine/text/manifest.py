"""The folder of a cloud: names of its files, what they say about it, and how far it has got."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from esscher.core.codec import Hash, Name, Record, as_record
from esscher.core.errors import InputError
from esscher.core.untrusted import read_json
from esscher.core.validation import as_indices

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
