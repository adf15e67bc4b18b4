"""One pass beyond its numbers: threads, memory, inputs, overflow."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from esscher.engine.attention import attention_statistics, statistics
from esscher.engine.attention.arrays import Workers
from esscher.engine.attention.compiled.kernel import kernel_for
from esscher.engine.attention.stream import CompiledStream

needs_kernel = pytest.mark.skipif(
    kernel_for("cpu", "float32") is None, reason="the kernel is not compiled"
)


def tokens(*shape, seed=0, strength=1.0):
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(*shape, generator=g) for _ in range(3))
    return strength * q, k, v


def test_centring_protects_mean_and_covariance():
    q, k, v = tokens(1000, 4)
    near = attention_statistics(q, k, v, sizes=(1000,))
    far = attention_statistics(q, k.double() + 50, v.double() + 1e6, sizes=(1000,))
    np.testing.assert_allclose(far.covariance, near.covariance, atol=1e-8)
    np.testing.assert_allclose(far.mean - 1e6, near.mean, atol=1e-6)


def test_result_does_not_depend_on_the_number_of_threads():
    """Run where the number may be changed: in another process."""
    script = (
        "import hashlib, torch\n"
        "from esscher.engine.attention import attention_statistics\n"
        "x = torch.randn(3, 1700, 8, generator=torch.Generator().manual_seed(0))\n"
        "o = {'sizes': (50, 1700), 'scales': (1.0, 9.0)}\n"
        "for threads in 1, 3:\n"
        "    torch.set_num_threads(threads)\n"
        "    assert torch.get_num_threads() == threads\n"
        "    s = attention_statistics(*x, **o)\n"
        "    arrays = (s.mean, s.covariance)\n"
        "    print(hashlib.sha256(b''.join(a.tobytes() for a in arrays)).hexdigest())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    single, several = done.stdout.splitlines()
    assert single == several


def test_thread_settings_of_the_caller_stay():
    before = torch.get_num_threads(), torch.get_num_interop_threads()
    q, k, v = tokens(2, 1000, 4)
    attention_statistics(q, k, v, sizes=(1000,))
    assert before == (torch.get_num_threads(), torch.get_num_interop_threads())
    seen = []
    fresh = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    fresh.start()
    fresh.join()
    assert seen == [before[0]], "threads started later must not see another number"
    assert not [t for t in threading.enumerate() if t.name.startswith("esscher-attention")]


def test_workers_keep_the_order_and_pass_errors_on():
    def slow_first(i):
        time.sleep(0.02 if i == 0 else 0)
        if i == 30:
            raise ZeroDivisionError
        return i

    with Workers(torch.zeros(1)) as workers:
        assert list(workers.map(slow_first, range(30))) == list(range(30))
        with pytest.raises(ZeroDivisionError):
            list(workers.map(slow_first, range(40)))


def test_inputs_are_not_modified_and_need_no_gradient():
    x = [t.requires_grad_() for t in tokens(2, 300, 4)]
    copies = [t.detach().clone() for t in x]
    attention_statistics(*x, sizes=(300,), limit=x[2])
    assert all(torch.equal(a, b) for a, b in zip(x, copies, strict=True))
    assert all(t.grad is None for t in x)


def test_memory_is_bounded_by_blocks():
    """At 20,000 tokens a square of logits would take 1.6 GB; a pass adds less than 100 MB."""
    script = (
        "import resource, torch\n"
        "from esscher.engine.attention import attention_statistics\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "x = torch.randn(3, 20_000, 8)\n"
        "attention_statistics(*x[:, :800], sizes=(800,))\n"
        "before = peak()\n"
        "attention_statistics(*x, sizes=(50, 20_000))\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert float(done.stdout) < 100


@pytest.mark.parametrize("strength", [0.3, 4.0, 60.0])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_numpy_arrays_and_tensors(strength, kind):
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 1300, 7)).astype(kind) for _ in range(3))
    mask = rng.random(1300) < 0.7
    mask[0] = True
    arrays = [strength * q, k, v, mask]
    for dtype in ("float32", "float64"):
        ours, theirs = (
            attention_statistics(
                *given[:3],
                sizes=(3, 400, 1300),
                scales=(2.0, 0.5),
                limit=given[2],
                query_mask=given[3],
                dtype=dtype,
            )
            for given in (arrays, [torch.from_numpy(x) for x in arrays])
        )
        # the centre of float32 arrays is rounded to that type, and logits of many bits move with it
        rtol = 1e-10 if kind == "float64" else 2e-5
        for name in ("mean", "covariance", "map_square"):
            # sums are rounded in another order by another library
            left, right = getattr(ours, name), getattr(theirs, name)
            np.testing.assert_allclose(left, right, rtol=rtol, atol=rtol)


def test_overflows_are_found_without_a_warning():
    q, k, v = (np.random.default_rng(0).normal(size=(400, 4)) for _ in range(3))
    result = attention_statistics(1e4 * q, k, v, sizes=(10, 400))
    assert np.isfinite(result.covariance).all()


@needs_kernel
def test_a_sweep_does_not_import_torch(tmp_path):
    script = (
        "import sys, esscher\n"
        "from esscher.math.heads import gaussian_head\n"
        "esscher.sweep(gaussian_head(1.0, 4), (50, 100, 200, 400), 3, predict=True, "
        f"out={str(tmp_path / 'run')!r}, progress=False).headline\n"
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
    result = attention_statistics(x, x, x, **options)
    assert begun == [True] * 3
    begun.clear()
    # of queries that may be anybody nothing is known before
    expected = attention_statistics(x, x, x, queries="separate", **options)
    assert sorted(begun) == [False] * 3 + [True] * 3  # workers begin in any order
    np.testing.assert_array_equal(result.covariance, expected.covariance)
