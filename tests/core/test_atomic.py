"""Files that are written whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from esscher.core.atomic import check_writable, write_atomically, write_output
from esscher.core.errors import InputError


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: original(handle, bytes(data)[:7]))
    write_atomically(tmp_path / "file", bytes(range(100)))
    assert (tmp_path / "file").read_bytes() == bytes(range(100))


def make(kind: str, path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(path.with_name("elsewhere"))
    elif kind == "directory":
        path.mkdir()
    elif os.geteuid() == 0:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 7))  # as /dev/full
    else:
        pytest.skip("only root can make a device")


@pytest.mark.parametrize("kind", ["pipe", "link", "directory", "device"])
@pytest.mark.parametrize(
    "write",
    [
        lambda path: check_writable(path, f"--save {path}"),
        lambda path: write_output(path, b"new"),
        lambda path: write_atomically(path, b"new"),
    ],
)
def test_only_regular_files_are_replaced(tmp_path: Path, kind: str, write) -> None:
    path = tmp_path / "there"
    make(kind, path)
    before = path.lstat()
    with pytest.raises(InputError, match=rf"there is a .*{kind}.*; give"):
        write(path)
    assert path.lstat() == before
    assert list(tmp_path.iterdir()) == [path]
