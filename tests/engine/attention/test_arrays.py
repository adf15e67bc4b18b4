"""A pass over numpy arrays is that over tensors, and does not wait for torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.attention import attention_statistics, statistics
from esscher.engine.attention.arrays import ALIGNMENT, address, empty, numbers, type_name, zeros
from esscher.engine.attention.compiled.kernel import kernel_for
from esscher.engine.attention.compiled.stream import CompiledStream

needs_kernel = pytest.mark.skipif(
    kernel_for("cpu", "float32") is None, reason="the kernel is not compiled"
)


def tokens(*shape, seed=0, strength=1.0):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=shape) for _ in range(3))
    return strength * q, k, v


def same(one, other, rtol):
    """Sums are rounded in another order by another library."""
    for name in ("mean", "covariance", "map_square", "received"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=rtol, atol=rtol)
    for name in ("participation", "largest"):
        left, right = getattr(one, name), getattr(other, name)
        np.testing.assert_allclose(left.mean, right.mean, rtol=rtol)
        np.testing.assert_allclose(left.quantiles, right.quantiles, rtol=rtol)


@pytest.mark.parametrize("strength", [0.3, 4.0, 60.0])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_numpy_arrays_and_tensors(strength, kind, causal):
    q, k, v = (x.astype(kind) for x in tokens(2, 1300, 7, strength=strength))
    mask = np.random.default_rng(1).random(1300) < 0.7
    mask[0] = True
    options = {
        "sizes": (3, 400, 1300),
        "scales": (2.0, 0.5),
        "causal": causal,
        "weights": ("participation", "largest"),
        "received_sizes": (400, 1300),
    }
    ours = attention_statistics(q, k, v, limit=v, key_mask=mask, query_mask=mask, **options)
    given = [torch.from_numpy(x) for x in (q, k, v, v, mask, mask)]
    theirs = attention_statistics(
        *given[:3], limit=given[3], key_mask=given[4], query_mask=given[5], **options
    )
    # the centre of float32 arrays is rounded to that type, and logits of many bits move with it
    same(ours, theirs, 1e-10 if kind is np.float64 else 2e-5)


def test_float64_is_left_to_torch():
    q, k, v = tokens(300, 5)
    found = attention_statistics(q, k, v, sizes=(20, 300), dtype="float64")
    given = (torch.from_numpy(x) for x in (q, k, v))
    expected = attention_statistics(*given, sizes=(20, 300), dtype=torch.float64)
    np.testing.assert_array_equal(found.covariance, expected.covariance)
    assert found.dtype == "float64"


def test_arrays_of_both_kinds_are_refused():
    q, k, v = tokens(20, 3)
    with pytest.raises(InputError, match="v is Tensor; it must be a numpy array of floats"):
        attention_statistics(q, k, torch.from_numpy(v), sizes=(20,))
    with pytest.raises(InputError, match="k is int64; it must be a numpy array of floats"):
        attention_statistics(q, k.astype(np.int64), v, sizes=(20,))


@needs_kernel
def test_overflows_are_found_without_a_warning():
    q, k, v = tokens(400, 4, strength=1e4)
    found = attention_statistics(q, k, v, sizes=(10, 400), weights=("participation",))
    assert np.isfinite(found.covariance).all()
    with pytest.raises(InputError, match=r"entry \(7, 2\) is nan"):
        attention_statistics(
            q, k, np.where(np.arange(400)[:, None] == 7, [0, 1, np.nan, 2], v), sizes=(400,)
        )


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


def test_arrays_are_aligned_and_of_the_type_asked_for():
    like = np.zeros(3)
    for count in (1, 17, 1000):
        assert address(empty(like, count, 3, dtype="float32")) % ALIGNMENT == 0
        assert (zeros(like, count, dtype="float64") == 0).all()
    assert numbers(like, [1, 2], "int32").dtype == np.int32
    assert [type_name(x) for x in ("float32", np.float32, np.dtype("int8"), torch.bfloat16)] == [
        "float32",
        "float32",
        "int8",
        "bfloat16",
    ]
