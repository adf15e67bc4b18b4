"""Lists of keys in the compiled kernel: what PyTorch's form of it does not have."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.attention.compiled import kernel
from esscher.engine.attention.ragged import (
    attend_lists,
    pack_lists,
)
from tests.engine.attention.ragged_problems import check, needs_kernel, problem

pytestmark = pytest.mark.usefixtures("nothing_chosen")


@needs_kernel
def test_who_does_the_work(monkeypatch):
    assert problem().segments.compiled is not None
    assert problem(dtype=torch.float64).segments.compiled is None
    monkeypatch.setenv(kernel.VARIABLE, "torch")
    assert problem().segments.compiled is None


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_wide_vectors_on_any_processor(wide_kernel, dtype):
    """The layout of AVX-512 without its instructions, which has another conversion of halves."""
    for softcap in (None, 3.0):
        coded = ((40, (8, 8)), (3, (4, 4))) * 3
        p = problem(dtype=dtype, n_q=3, d_k=20, d_v=37, softcap=softcap, coded=coded)
        tiny = p.segments.values.clone()
        tiny[::2] *= 1e-6  # subnormal numbers of float16
        p = replace(p, segments=replace(p.segments, values=tiny))
        tails = (p.tail_keys, p.tail_values)
        lists = pack_lists(p.segments, wide_kernel)
        check(p, attend_lists(lists, p.q, *tails, p.scaling, softcap, None).transpose(1, 2))


@needs_kernel
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_threads_it_does_not_have():
    p = problem(lengths=((3000, 2000),), tail=20)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = p.solved()
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends a child that hangs
            close = torch.allclose(p.solved(), expected, rtol=1e-4, atol=1e-5)
            os._exit(0 if close else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(before)


@needs_kernel
def test_lists_outside_the_arrays():
    p = problem()
    for change in ({"start": p.segments.start - 99}, {"stop": p.segments.stop + 999}):
        wrong = replace(p, segments=replace(p.segments, **change))
        with pytest.raises(InputError, match="a list lies outside the"):
            wrong.solved()
