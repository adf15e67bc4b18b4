"""The compiled kernel: its exponential, its tiles, and what happens where it cannot be used."""

from __future__ import annotations

import platform
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.attention.compiled import build, kernel
from tests.engine.attention.ragged_problems import CAPABLE, needs_kernel

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("nothing_chosen")


@pytest.fixture(scope="module", params=["this processor", "AVX512 layout"])
def compiled(request):
    """The kernel in use, and the one with 16 floats a vector, compiled for any processor."""
    if request.param == "this processor":
        result = kernel._load(torch.backends.cpu.get_cpu_capability())
        assert result is not None
        return result
    return request.getfixturevalue("wide_kernel")


def test_it_is_compiled_where_it_can_be():
    if platform.machine() != "x86_64" or sys.platform != "linux" or build.compiler() is None:
        pytest.skip("no compiler, or another kind of machine")
    assert all(build.library(target).is_file() for target in build.TARGETS)
    assert kernel.kernel_name() == ("compiled " * CAPABLE or "torch") + (
        str(torch.backends.cpu.get_cpu_capability()) if CAPABLE else ""
    )


@needs_kernel
def test_powers_of_two(compiled):
    x = torch.linspace(-124.9, 127.4, 100_003)
    tilts = torch.cat([x, torch.tensor([0.0, 1.0, -3.0])])[:, None]
    unit = torch.ones(1, 1)
    weights = kernel.attended(compiled, tilts, unit, unit)[0, 1].numpy()
    exact = np.exp2(tilts[:, 0].double().numpy())
    # polynomial 9.2e-8, and six roundings of at most 6e-8 that mostly cancel
    assert np.abs(weights / exact - 1).max() < 2.5e-7
    assert weights[-3:].tolist() == [1.0, 2.0, 0.125]


@needs_kernel
@pytest.mark.parametrize("scales", [(1.0,), (0.01, 1.0)])
def test_powers_beyond_the_range(compiled, scales):
    tilts = torch.tensor([-1e4, -200.0, -126.0, 128.5, 1e3, 1e30])[:, None]
    unit = torch.ones(1, 1)
    weights = kernel.attended(compiled, tilts, unit, unit, relative=scales)[-1, 1].numpy()
    assert (weights[:3] > 0).all()  # subnormal numbers would be slow
    assert (weights[:3] <= 2.0**-125).all()
    assert not np.isfinite(weights[3:]).any()  # which is how an overflow is found
    if len(scales) > 1:
        small = kernel.attended(compiled, tilts[:3], unit, unit, relative=scales)[0, 1].numpy()
        np.testing.assert_allclose(small, np.exp2(0.01 * tilts[:3, 0].double().numpy()), rtol=1e-5)


@needs_kernel
@pytest.mark.parametrize("width", [1, 5, 8])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 13, 50])
def test_tiles_of_all_sizes(compiled, width, rows):
    rng = np.random.default_rng(width + 10 * rows)
    for queries, keys, start in ((1, 1, 0), (3, 7, 1), (17, 41, 5), (64, 60, 6), (33, 61, 59)):
        t, k, v = (rng.normal(size=s) for s in ((queries, width), (keys, width), (keys, rows)))
        given = [torch.from_numpy(x).float() for x in (t, k, v)]
        result = kernel.attended(compiled, *given, relative=(0.3, 1.0), start=start).numpy()
        t, k, v = (x.double().numpy() for x in given)
        for s, alpha in enumerate((0.3, 1.0)):
            weights = np.exp2(np.float32(alpha) * (k[start:] @ t.T))
            expected = np.vstack([v[start:].T @ weights, weights.sum(0)])
            size = np.vstack([np.abs(v[start:].T) @ weights, weights.sum(0)])
            # rounding of logits of some ten bits, and of at most 25 sums in float32
            assert np.abs((result[s] - expected) / size).max() < 5e-6


def test_what_is_left_to_torch(monkeypatch):
    assert kernel.kernel_for(CPU, torch.float64) is None
    assert kernel.kernel_for(torch.device("meta"), torch.float32) is None
    monkeypatch.setenv(kernel.VARIABLE, "torch")
    assert kernel.kernel_for(CPU, torch.float32) is None
    assert kernel.kernel_name() == "torch"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("fast", "ESSCHER_KERNEL is 'fast'; choose from torch, AVX2, AVX512"),
        ("avx2", "not compiled; run python -m esscher.engine.attention.compiled"),
    ],
)
def test_choices_that_cannot_be_had(monkeypatch, value, message, tmp_path):
    monkeypatch.setattr(kernel, "library", lambda target: tmp_path / target)
    with pytest.raises(InputError, match=message):
        kernel._chosen.__wrapped__(value)


def _opens(*targets):
    """In place of ``open_library``, on a processor that has these."""

    def opens(target, path):
        return target if target in targets else None

    return opens


@needs_kernel
def test_the_widest_that_the_processor_has(monkeypatch):
    for has, chosen in (((), None), (("AVX2",), "AVX2"), (("AVX2", "AVX512"), "AVX512")):
        monkeypatch.setattr(kernel, "open_library", _opens(*has))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # another processor is no fault
            assert kernel._chosen.__wrapped__("") == chosen
    monkeypatch.setattr(kernel, "open_library", _opens("AVX2"))
    with pytest.raises(InputError, match="asks for AVX512, which cannot be used on this machine"):
        kernel._chosen.__wrapped__("avx512")


@needs_kernel
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("LAYOUT", kernel.LAYOUT + 1, "another version of the source"),
        (
            "attended",
            lambda *_, **options: np.zeros((2, 8, 1)),
            "does not compute what it should.*Compile it again with python -m",
        ),
    ],
)
def test_a_kernel_of_another_version_or_with_a_fault_is_not_used(monkeypatch, name, value, message):
    monkeypatch.setattr(kernel, name, value)
    with pytest.warns(RuntimeWarning, match=message):
        assert kernel._load("AVX2") is None


def test_a_file_that_is_no_library_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(kernel, "library", lambda target: tmp_path / target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # where there is none, that is no fault
        assert kernel._load("AVX2") is None
    (tmp_path / "AVX2").write_bytes(b"no library")
    with pytest.warns(RuntimeWarning, match="Compile it again with python -m"):
        assert kernel._load("AVX2") is None


def test_compiling_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(build, "library", lambda target: tmp_path / f"{target}.so")
    monkeypatch.setenv("CC", str(tmp_path / "absent"))
    with pytest.raises(RuntimeError, match="cannot be run"):
        build.build()
    monkeypatch.setenv("CC", "false")
    with pytest.raises(RuntimeError, match=r"false failed on step\.c"):
        build.build()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="no C compiler found"):
        build.build()
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    with pytest.raises(RuntimeError, match=r"no kernel for .* on arm64"):
        build.build()


@needs_kernel
@pytest.mark.slow
@pytest.mark.parametrize("width", [8, 16])
def test_it_stays_within_its_arrays(tmp_path, width):
    program = tmp_path / "sanitized"
    flags = [
        "-std=gnu11",
        "-O1",
        "-mavx2",
        "-mfma",
        "-Wno-psabi",
        f"-DESSCHER_WIDTH={width}",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        f"-I{build.FOLDER}",
    ]
    source = Path(__file__).with_name("sanitized.c")
    made = subprocess.run([build.compiler(), *flags, source, "-o", program, "-lm"], check=False)
    if made.returncode:
        pytest.skip("the compiler has no sanitizers")
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr
