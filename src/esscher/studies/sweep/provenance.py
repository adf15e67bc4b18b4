"""A head as text and hash, for the configuration of a run."""

from __future__ import annotations

import dataclasses
import hashlib
from functools import cached_property
from typing import Annotated, Any, TypeAlias

import numpy as np
from msgspec import Meta

from esscher.core.codec import Hash, Name, Record
from esscher.math.heads import Head, WeightHead
from esscher.math.laws import Law

_Dim: TypeAlias = Annotated[int, Meta(ge=1, le=10**6)]
_Size: TypeAlias = Annotated[float, Meta(ge=0)]


class HeadRecord(Record, frozen=True, kw_only=True):
    """What a configuration says about a head; the hash covers every number in it."""

    kind: Name
    law: Name | None
    key_dim: _Dim
    value_dim: _Dim
    horizon: _Size
    frobenius: _Size
    sha256: Hash

    @property
    def tokens(self) -> str:
        """What its tokens are called: their law, or the kind of head."""
        return self.law or self.kind


def describe_head(head: Head) -> HeadRecord:
    """Describe a head for the configuration of a run."""
    return HeadRecord(
        kind=type(head).__name__,
        law=head.law.name if isinstance(head, WeightHead) else None,
        key_dim=head.key_dim,
        value_dim=head.value_dim,
        horizon=head.horizon,
        frobenius=head.frobenius,
        sha256=hash_of(head),
    )


def hash_of(thing: object) -> str:
    """SHA-256 of an object's class and contents, arrays bit for bit."""
    digest = hashlib.sha256()
    _feed(digest, thing)
    return digest.hexdigest()


def _feed(digest: Any, thing: object) -> None:
    """Add one object to a hash; what is cached inside it is a function of the rest and left out."""
    if thing is None or isinstance(thing, (bool, int, float, str, bytes)):
        digest.update(f"{type(thing).__name__}:{thing!r};".encode())
    elif isinstance(thing, (np.ndarray, np.generic)):
        array = np.ascontiguousarray(thing)
        digest.update(f"array:{array.dtype.str}:{np.shape(thing)};".encode())
        digest.update(array.tobytes())
    elif isinstance(thing, dict):
        _feed_items(digest, "dict", thing)
    elif isinstance(thing, (list, tuple)):
        _feed_items(digest, "list", dict(enumerate(thing)))
    elif isinstance(thing, Law):
        _feed_items(digest, type(thing).__name__, thing._parameters())
    elif dataclasses.is_dataclass(thing):
        fields = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
        _feed_items(digest, type(thing).__name__, fields)
    else:
        kind = type(thing)
        kept = {
            name: value
            for name, value in getattr(thing, "__dict__", {"repr": repr(thing)}).items()
            if not isinstance(getattr(kind, name, None), cached_property)
        }
        _feed_items(digest, kind.__name__, kept)


def _feed_items(digest: Any, kind: str, items: dict[Any, object]) -> None:
    digest.update(f"{kind}({len(items)}:".encode())
    for name, value in sorted(items.items(), key=lambda item: str(item[0])):
        digest.update(f"{name}=".encode())
        _feed(digest, value)
    digest.update(b")")
