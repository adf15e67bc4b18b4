"""Writing the arrays of a cloud, a batch of passages at a time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.atomic import TEMPORARY, write_atomically
from esscher.core.errors import InputError
from esscher.core.untrusted import open_regular_for_writing
from esscher.engine.models.inputs import LayerCapture
from esscher.engine.text.cloud import open_mapped
from esscher.engine.text.manifest import KINDS, PROGRESS, array_path, cloud_bytes, read_progress

#: Seconds between two records of how far a cloud has got.
EVERY = 5.0
#: Room to leave on the disk beyond the arrays.
MARGIN = 64 * 2**20


def check_room(folder: Path, manifest: dict[str, Any]) -> None:
    """Check that a cloud fits on the disk before anything is computed.

    Raises
    ------
    InputError
        With the room needed and the room there is.
    """
    needed = cloud_bytes(
        rows=manifest["rows"],
        layers=len(manifest["layers"]),
        heads=len(manifest["heads"]),
        key_heads=len(manifest["key_heads"]),
        head_dim=manifest["head_dim"],
    )
    free = shutil.disk_usage(folder).free
    if needed + MARGIN > free:
        raise InputError(
            f"the cloud needs {needed / 1e9:.1f} GB, but {folder} has only {free / 1e9:.1f} GB "
            "left; choose fewer layers, heads or tokens, or another folder"
        )


class CloudWriter:
    """The open files of a cloud; closes them at the end of a ``with`` block.

    Written with plain calls rather than through a map: a disk that fills up is then an error and
    not the end of the process, and written pages do not count as the process's memory. ``durable``
    files survive a power cut; nobody continues a temporary cloud.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], *, durable: bool = True) -> None:
        self._folder, self._manifest, self._durable = folder, manifest, durable
        self._files: dict[tuple[int, str], tuple[int, int]] = {}
        progress = read_progress(folder) or {"passages": 0, "layers": {}}
        self.done = int(progress["passages"])
        self._details: dict[str, Any] = progress["layers"]
        self._recorded = time.monotonic()

    def __enter__(self) -> CloudWriter:
        try:
            for layer in self._manifest["layers"]:
                for kind in KINDS:
                    self._files[layer, kind] = self._open(layer, kind)
        except BaseException:
            self._close()
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
                self._record()
        finally:
            self._close()

    def write(self, capture: LayerCapture, keep: NDArray[np.bool_], first: int) -> None:
        """Write the kept tokens [batch, n] of a layer, from row ``first`` on."""
        self._details[str(capture.layer)] = {
            "scaling": capture.scaling,
            "softcap": capture.softcap,
            "window": capture.window,
        }
        heads, key_heads = self._manifest["heads"], self._manifest["key_heads"]
        for kind, tensor, chosen in (
            ("q", capture.q, heads),
            ("k", capture.k, key_heads),
            ("v", capture.v, key_heads),
        ):
            self._write_kind(capture.layer, kind, tensor, chosen, keep, first)

    def finish(self, passages: int) -> None:
        """Note that all layers of the first ``passages`` passages are written."""
        self.done = passages
        if time.monotonic() - self._recorded > EVERY:
            self._record()

    def _write_kind(
        self,
        layer: int,
        kind: str,
        tensor: Tensor,
        chosen: Sequence[int],
        keep: NDArray[np.bool_],
        first: int,
    ) -> None:
        handle, offset = self._files[layer, kind]
        array = tensor.float().cpu().numpy()
        row = 4 * array.shape[-1]
        for place, head in enumerate(chosen):
            data = np.ascontiguousarray(array[:, head][keep]).data.cast("B")
            at = offset + row * (place * self._manifest["rows"] + first)
            # The last passage may hold more tokens than the cloud wants.
            room = row * (self._manifest["rows"] - first)
            _write_all(handle, data[:room], at, self._folder)

    def _open(self, layer: int, kind: str) -> tuple[int, int]:
        """Open an array's file, making it if need be; also the place of its first number."""
        path = array_path(self._folder, layer, kind)
        count = len(self._manifest["heads" if kind == "q" else "key_heads"])
        shape = (count, self._manifest["rows"], self._manifest["head_dim"])
        try:
            if not path.exists():
                new = path.with_name(f"{path.name}{TEMPORARY}")
                new.unlink(missing_ok=True)  # it may be a link to elsewhere
                np.lib.format.open_memmap(new, "w+", np.float32, shape)
                os.replace(new, path)  # so that a file with this name is whole
            mapped = open_mapped(path)
            if mapped.shape != shape:
                raise InputError(f"{path} does not belong to this cloud; remove the folder")
            return open_regular_for_writing(path), path.stat().st_size - mapped.nbytes
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error

    def _record(self) -> None:
        """Bring the arrays to the disk, then the number of passages that are in them."""
        try:
            for handle, _ in self._files.values():
                if self._durable:
                    os.fsync(handle)
        except OSError as error:
            raise _cannot_write(self._folder, error) from error
        progress = {"passages": self.done, "layers": self._details}
        write_atomically(self._folder / PROGRESS, json.dumps(progress, indent=1).encode())
        self._recorded = time.monotonic()

    def _close(self) -> None:
        for handle, _ in self._files.values():
            os.close(handle)
        self._files.clear()


def _write_all(handle: int, data: memoryview, at: int, folder: Path) -> None:
    try:
        while data:
            written = os.pwrite(handle, data, at)
            data, at = data[written:], at + written
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _cannot_write(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot write to {folder}: {error.strerror or error}; make room and run the same again: "
        "it continues where it stopped"
    )
