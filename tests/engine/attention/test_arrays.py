"""A pass over numpy arrays is that over tensors, and does not wait for torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from esscher.engine.attention import attention_statistics, statistics
from esscher.engine.attention.arrays import ALIGNMENT, address, empty
from esscher.engine.attention.compiled.kernel import kernel_for
from esscher.engine.attention.compiled.stream import CompiledStream

needs_kernel = pytest.mark.skipif(
    kernel_for("cpu", "float32") is None, reason="the kernel is not compiled"
)


def tokens(*shape, seed=0, strength=1.0):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=shape) for _ in range(3))
    return strength * q, k, v


@pytest.mark.parametrize("strength", [0.3, 4.0, 60.0])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numpy_arrays_and_tensors(strength, kind):
    q, k, v = (x.astype(kind) for x in tokens(2, 1300, 7, strength=strength))
    mask = np.random.default_rng(1).random(1300) < 0.7
    mask[0] = True
    options = {"sizes": (3, 400, 1300), "scales": (2.0, 0.5)}
    ours = attention_statistics(q, k, v, limit=v, query_mask=mask, **options)
    given = [torch.from_numpy(x) for x in (q, k, v, mask)]
    theirs = attention_statistics(*given[:3], limit=given[2], query_mask=given[3], **options)
    # the centre of float32 arrays is rounded to that type, and logits of many bits move with it
    rtol = 1e-10 if kind is np.float64 else 2e-5
    for name in ("mean", "covariance", "map_square"):
        # sums are rounded in another order by another library
        one, other = getattr(ours, name), getattr(theirs, name)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol)


def test_float64_is_left_to_torch():
    q, k, v = tokens(300, 5)
    found = attention_statistics(q, k, v, sizes=(20, 300), dtype="float64")
    given = (torch.from_numpy(x) for x in (q, k, v))
    expected = attention_statistics(*given, sizes=(20, 300), dtype=torch.float64)
    np.testing.assert_array_equal(found.covariance, expected.covariance)
    assert found.dtype == "float64"


@needs_kernel
def test_overflows_are_found_without_a_warning():
    q, k, v = tokens(400, 4, strength=1e4)
    found = attention_statistics(q, k, v, sizes=(10, 400))
    assert np.isfinite(found.covariance).all()


@needs_kernel
def test_a_sweep_does_not_import_torch(tmp_path):
    script = (
        "import sys, esscher\n"
        "from esscher.math.heads import gaussian_head\n"
        "esscher.sweep(gaussian_head(1.0, 4), (50, 100, 200, 400), 3, predict=True, "
        f"out={str(tmp_path / 'run')!r}, progress=False).answer()\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
        "assert 'scipy.interpolate' not in sys.modules, 'scipy.interpolate'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@needs_kernel
def test_a_pass_that_would_be_in_vain_is_not_begun(monkeypatch):
    """A token's logit at its own key shows that a shift is needed; the rest does not."""
    begun = []

    class Watched(CompiledStream):
        def __init__(self, *given, shifted):
            begun.append(shifted)
            super().__init__(*given, shifted=shifted)

    monkeypatch.setattr(statistics, "CompiledStream", Watched)
    x = np.random.default_rng(0).normal(size=(3000, 50))
    x[::700] *= 9 / np.linalg.norm(x[::700], axis=1)[:, None]  # own logits of 81, others of 9 or so
    options = {"sizes": (3000,), "factor": 1.0}
    found = attention_statistics(x, x, x, **options)
    assert begun == [True] * 3
    begun.clear()
    # of queries that may be anybody nothing is known before
    expected = attention_statistics(x, x, x, queries="separate", **options)
    assert sorted(begun) == [False] * 3 + [True] * 3  # workers begin in any order
    np.testing.assert_array_equal(found.covariance, expected.covariance)


def test_arrays_are_aligned():
    for count in (1, 17, 1000):
        assert address(empty(np.zeros(3), count, 3, dtype="float32")) % ALIGNMENT == 0
