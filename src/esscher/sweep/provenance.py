"""Where numbers come from: a head as text and hash, versions, revision of the source."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import subprocess
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from esscher.heads import Head, WeightHead
from esscher.laws import Law


def describe_head(head: Head) -> dict[str, Any]:
    """What a configuration says about a head; the hash covers every number in it."""
    return {
        "kind": type(head).__name__,
        "law": head.law.name if isinstance(head, WeightHead) else None,
        "key_dim": head.key_dim,
        "value_dim": head.value_dim,
        "horizon": head.horizon,
        "frobenius": head.frobenius,
        "sha256": hash_of(head),
    }


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


def versions() -> dict[str, str | None]:
    """Versions of what takes part in a measurement; None for what is not installed."""
    from esscher import __version__  # not at the top: the package may still be loading

    return {
        "esscher": __version__,
        "numpy": np.__version__,
        "torch": _installed("torch"),
        "python": platform.python_version(),
    }


@cache
def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_revision() -> str | None:
    """Revision of the checkout this package runs from (with "-dirty" if changed), if it is one."""
    here = Path(__file__).parent
    # The second command alone would name the revision of whatever project an environment lies in.
    if _git(here, "ls-files", "--error-unmatch", "direct.py") is None:
        return None
    return _git(here, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
