"""The kernel with 16 floats a vector, compiled for any processor."""

from __future__ import annotations

import subprocess

import pytest

from esscher.engine.attention.compiled import build, kernel


@pytest.fixture
def nothing_chosen(monkeypatch):
    """Whatever kernel the tests are run with."""
    monkeypatch.delenv(kernel.VARIABLE, raising=False)


@pytest.fixture(scope="session")
def wide_kernel(tmp_path_factory):
    """The layout of AVX-512 without its instructions. Compiling it takes 5 s."""
    path = tmp_path_factory.mktemp("kernel") / "wide.so"
    flags = [*build.FLAGS, "-mavx2", "-mfma", "-DESSCHER_WIDTH=16", "-Wno-psabi"]
    subprocess.run([build.compiler(), *flags, build.SOURCE, "-o", path, "-lm"], check=True)
    return kernel.open_library("AVX512", path)
