"""What one pass promises beyond its numbers: nesting, threads, memory, nothing left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from itertools import pairwise

import numpy as np
import pytest
import torch

from esscher.engine.attention import attention_statistics
from esscher.engine.attention.arrays import Workers
from esscher.engine.attention.blocks import even_ranges, key_steps

CPU = torch.device("cpu")


def tokens(*shape, seed=0, strength=1.0):
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(*shape, generator=g) for _ in range(3))
    return strength * q, k, v


@pytest.mark.parametrize("strength", [1.0, 20.0])
@pytest.mark.parametrize("queries", ["tokens", "separate"])
def test_nested_sizes_equal_separate_runs(strength, queries):
    q, k, v = tokens(2, 3000, 8, strength=strength)
    sizes = (1, 2, 100, 777, 2048, 3000)
    nested = attention_statistics(q, k, v, sizes=sizes, queries=queries)
    for j, n in enumerate(sizes):
        some = q if queries == "separate" else q[:, :n]
        alone = attention_statistics(some, k[:, :n], v[:, :n], sizes=(n,), queries=queries)
        error = 2e-7 * (1 + strength)
        np.testing.assert_allclose(nested.mean[:, :, j], alone.mean[:, :, 0], atol=error)
        np.testing.assert_allclose(
            nested.covariance[:, :, j], alone.covariance[:, :, 0], atol=error
        )


@pytest.mark.parametrize("kernel", ["", "torch"])
@pytest.mark.parametrize(
    "scales", [(1.0, 2.0, 3.0, 4.0), (0.1, 0.2, 0.3), (3.0, 0.1, 1.0), (2.0, 2.0)]
)
def test_shared_scales_equal_separate_runs(scales, kernel, monkeypatch):
    monkeypatch.setenv("ESSCHER_KERNEL", kernel)
    q, k, v = tokens(1500, 6)
    shared = attention_statistics(q, k, v, sizes=(10, 1500), scales=scales)
    for s, scale in enumerate(scales):
        alone = attention_statistics(q, k, v, sizes=(10, 1500), scales=(scale,))
        np.testing.assert_allclose(shared.mean[s], alone.mean[0], atol=1e-6)
        np.testing.assert_allclose(shared.covariance[s], alone.covariance[0], atol=2e-6)


def test_centring_protects_mean_and_covariance():
    q, k, v = tokens(1000, 4)
    near = attention_statistics(q, k, v, sizes=(1000,))
    far = attention_statistics(q, k.double() + 50, v.double() + 1e6, sizes=(1000,))
    np.testing.assert_allclose(far.covariance, near.covariance, atol=1e-8)
    np.testing.assert_allclose(far.mean - 1e6, near.mean, atol=1e-6)


def test_one_token():
    q, k, v = tokens(1, 4, strength=1e6)
    result = attention_statistics(q, k, v, sizes=(1,), limit=v)
    np.testing.assert_allclose(result.mean[0, 0], v[0].double().numpy(), atol=1e-7)
    assert np.all(result.covariance == 0)
    assert result.map_square[0, 0] < 1e-12


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
    one, three = done.stdout.splitlines()
    assert one == three


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


def test_workers_are_single_threaded():
    def cpu_per_thread(_):
        a = torch.randn(900, 900)
        process, thread = time.process_time(), time.thread_time()
        for _ in range(10):
            a @ a
        return (time.process_time() - process) / (time.thread_time() - thread)

    with Workers(torch.zeros(1)) as workers:
        if workers._pool is None:
            pytest.skip("one thread only, or a torch without per-thread settings")
        assert next(workers.map(cpu_per_thread, [0])) < 1.3
        assert next(workers.map(lambda _: torch.get_num_threads(), [0])) == 1


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


def test_strided_inputs():
    x = tokens(2, 200, 4)
    plain = attention_statistics(*x, sizes=(200,))
    turned = (t.transpose(0, 1).contiguous().transpose(0, 1) for t in x)
    strided = attention_statistics(*turned, sizes=(200,))
    np.testing.assert_allclose(strided.mean, plain.mean, atol=1e-7)


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


def test_steps_cover_the_keys_and_end_at_the_sizes():
    steps = key_steps([1, 100, 300, 5000], [3, 3, 0, 3], 48)
    assert steps[0].start == 0
    assert steps[-1].stop == 5000
    assert all(a.stop == b.start for a, b in pairwise(steps))
    assert max(step.stop - step.start for step in steps) <= 48
    # no query belongs to the third size
    assert {step.stop: step.size for step in steps if step.flush and step.size is not None} == {
        1: 0,
        100: 1,
        5000: 3,
    }


@pytest.mark.parametrize(("length", "longest"), [(1, 5), (5, 5), (6, 5), (1000, 384), (16000, 768)])
def test_ranges_are_few_and_even(length, longest):
    pieces = even_ranges(3, 3 + length, longest, 16)
    assert pieces[0][0] == 3
    assert pieces[-1][1] == 3 + length
    assert len(pieces) == -(-length // longest)
    assert max(high - low for low, high in pieces) <= longest
    assert min(high - low for low, high in pieces) > 0


@pytest.mark.parametrize("level", [-20.0, 60.0, 120.0])
def test_logits_of_all_keys_far_from_zero(level):
    """A prefix whose logits are all very small or large: nothing vanishes."""
    q, k = torch.ones(3, 1), torch.zeros(400, 1)
    k[:10, 0] = level - 5 * torch.arange(10.0)
    v = torch.arange(400.0)[:, None]
    options = {"sizes": (10, 400), "queries": "separate", "factor": 1.0}
    result = attention_statistics(q, k, v, **options)
    p = np.exp(-5.0 * np.arange(10))
    np.testing.assert_allclose(result.mean[0, 0], p @ np.arange(10) / p.sum(), atol=400 * 1e-7)
