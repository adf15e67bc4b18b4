"""Attention over lists of different lengths, against its definition in float64."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esscher.core.errors import InputError
from esscher.engine.attention import ragged as compiled_ragged
from esscher.engine.attention.compiled import kernel
from esscher.engine.attention.ragged import Segments, listed_attention
from tests.engine.attention.ragged_problems import Problem, check, problem

CPU = torch.device("cpu")


@pytest.fixture(params=["torch", "AVX2", "AVX512"])
def implementation(request, monkeypatch):
    """Implementation that attends for few queries."""
    monkeypatch.setenv(kernel.VARIABLE, request.param)
    try:
        kernel.kernel_for(CPU, torch.float32)
    except InputError as error:
        pytest.skip(str(error))
    return request.param


HALVES = (torch.bfloat16, torch.float16)
CASES = {
    **{f"group {group}": {"group": group, "tail": 3 * group} for group in (1, 3, 16)},
    **{
        f"widths {d_k} {d_v}": {"d_k": d_k, "d_v": d_v}
        for d_k, d_v in ((1, 3), (15, 33), (64, 64), (80, 128), (256, 17))
    },
    **{f"{dtype} {d}": {"dtype": dtype, "d_k": d, "d_v": d} for dtype in HALVES for d in (7, 64)},
    "double": {"dtype": torch.float64},
    **{
        f"codes {d_k} {d_v} {dtype} cap {cap}": {
            "coded": tuple(zip((37, 0, 300, 64, 5, 129), 3 * ((8, 8), (4, 4)), strict=True)),
            "d_k": d_k,
            "d_v": d_v,
            "dtype": dtype,
            "softcap": cap,
        }
        for d_k, d_v, dtype, cap in (
            (64, 64, torch.float32, None),
            (37, 20, torch.bfloat16, 5.0),
            (7, 5, torch.float32, 30.0),
        )
    },
    **{
        f"strength {strength} cap {cap}": {"strength": strength, "softcap": cap}
        for strength in (1.0, 150.0)
        for cap in (None, 30.0, 2.0)
    },
    **{
        f"lists {number} tail {tail}": {"lengths": lengths, "tail": tail}
        for tail in (0, 4)
        for number, lengths in enumerate([((0, 0),), ((0, 3000, 2),), ((1, 1), (1, 0), (0, 0))])
    },
}


@pytest.mark.parametrize("n_q", [1, 4, 16, 17, 40])
@pytest.mark.parametrize("case", CASES)
def test_problems(implementation, case, n_q):
    p = problem(n_q=n_q, **CASES[case])
    check(p, p.solved())
    if p.q.dtype in HALVES:  # queries may be of another type
        wide = replace(p, q=p.q.float())
        check(wide, wide.solved())


@pytest.mark.parametrize("n_q", [1, 20])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_logits_that_rise_and_fall_along_a_list(implementation, n_q, sign):
    p = problem(lengths=((400, 9),), n_q=n_q, d_k=1, tail=30)
    ramp = torch.linspace(-500 * sign, 500 * sign, len(p.segments.keys))[:, None]
    p = replace(p, q=torch.ones_like(p.q), segments=replace(p.segments, keys=ramp))
    check(p, p.solved())


@pytest.mark.parametrize("n_q", [1, 20])
def test_no_key_at_all(implementation, n_q):
    p = problem(lengths=((0, 0),), tail=0, n_q=n_q)
    none = torch.zeros(2, dtype=torch.int64)
    p = replace(p, segments=Segments(*torch.empty(2, 0, 16), torch.empty(0), none, none))
    assert (p.solved() == 0).all()


@pytest.mark.parametrize("n_q", [1, 3, 20])
def test_beams_share_their_lists(implementation, n_q):
    p = problem(lengths=((30, 70), (1, 2), (5, 90)), n_q=n_q)
    beams = torch.tensor([4, 5, 0, 1, 0, 1])
    shared = replace(p.segments, start=p.segments.start[beams], stop=p.segments.stop[beams])
    p = replace(p, segments=shared)
    check(p, p.solved())
    overlapping = replace(shared, start=shared.start - 3)
    p = replace(p, segments=overlapping)
    check(p, p.solved())


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("n_q", [1, 4, 20])
def test_masks(implementation, rows, n_q):
    g = torch.Generator().manual_seed(1)
    visible = torch.rand(rows, n_q, 33, generator=g) < 0.5
    visible[0, n_q - 1] = False  # sees its list only, or nothing
    p = problem(lengths=((5, 0), (0, 40)), n_q=n_q, tail=33, visible=visible)
    check(p, p.solved())
    turned = replace(p, visible=visible.mT.contiguous().mT)
    assert torch.equal(turned.solved(), p.solved())


@pytest.mark.parametrize("n_q", [1, 20])
@pytest.mark.parametrize("lengths", [((0, 700, 2),), ((1, 64), (65, 0), (0, 0), (5, 6))])
def test_blocks_of_queries_in_torch(n_q, lengths):
    p = problem(lengths=lengths, n_q=n_q)
    for room in (1, 20_000, 2**25):
        outputs = listed_attention(*p.arguments(), p.scaling, p.softcap, p.visible, room=room)
        check(p, outputs.transpose(1, 2))


@pytest.mark.parametrize("tail", [0, 30, 100, 333])
@pytest.mark.parametrize("masked", [False, True])
def test_more_queries_than_go_into_one_call(implementation, tail, masked):
    n_q = compiled_ragged.ROWS // 4 + 33
    g = torch.Generator().manual_seed(1)
    visible = torch.rand(1, n_q, tail, generator=g) < 0.1 if masked else None
    p = problem(lengths=((5, 0), (70, 1)), group=4, n_q=n_q, tail=tail, visible=visible)
    check(p, p.solved())


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_problem(data):
    length = st.one_of(st.integers(0, 3), st.integers(0, 200))
    batch, key_heads = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    text = st.lists(length, min_size=key_heads, max_size=key_heads)
    p = problem(
        lengths=data.draw(st.lists(text, min_size=batch, max_size=batch)),
        group=data.draw(st.integers(1, 5)),
        n_q=data.draw(st.integers(1, 18)),
        tail=data.draw(st.integers(0, 40)),
        d_k=data.draw(st.integers(1, 40)),
        d_v=data.draw(st.integers(1, 40)),
        strength=data.draw(st.sampled_from([0.1, 1.0, 50.0])),
        dtype=data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
        softcap=data.draw(st.sampled_from([None, 5.0])),
        seed=data.draw(st.integers(0, 99)),
    )
    check(p, p.solved())


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_numbers_of_threads(implementation, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for lengths in (((3000,),), ((0, 2500, 2),), ((1500, 1400), (0, 30)), ((0, 0, 0),)):
            p = problem(lengths=lengths, tail=200, n_q=2)
            check(p, p.solved())
    finally:
        torch.set_num_threads(before)


def test_calls_from_several_threads(implementation):
    problems = [problem(lengths=((2000, 5), (30, 900)), seed=seed) for seed in range(4)]
    expected = [p.solved() for p in problems]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for p, result in zip(expected, pool.map(Problem.solved, problems), strict=True):
                assert torch.equal(p, result)


def test_arrays_that_the_kernel_does_not_read_are_left_to_torch(implementation):
    p = problem(n_q=2)
    turned = replace(p, tail_keys=p.tail_keys.mT.contiguous().mT)
    check(turned, turned.solved())
    mixed = replace(p, tail_values=p.tail_values.double().float().to(torch.bfloat16))
    check(mixed, mixed.solved())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("q", torch.zeros(2, 6, 1, 15)),
        ("q", torch.zeros(2, 5, 1, 16)),
        ("q", torch.zeros(1, 6, 1, 16)),
        ("tail_values", torch.zeros(2, 3, 8, 16)),
        ("tail_keys", torch.zeros(2, 2, 7, 16)),
        ("visible", torch.ones(1, 1, 8, dtype=torch.bool)),
        ("visible", torch.ones(1, 1, 7)),
    ],
)
def test_arrays_that_do_not_belong_together(name, value):
    with pytest.raises(InputError, match=r"do not belong together: q \[|must be of torch\.bool"):
        replace(problem(), **{name: value}).solved()


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("contiguous", lambda s: {"keys": s.keys.mT.contiguous().mT}),
        ("shapes", lambda s: {"log_weight": s.log_weight[:, None]}),
        ("lengths", lambda s: {"start": s.start[1:]}),
        ("types", lambda s: {"start": s.start.int()}),
        ("types", lambda s: {"values": s.values.half()}),
    ],
)
def test_segments_that_cannot_be(message, change):
    segments = problem().segments
    with pytest.raises(InputError, match=message):
        replace(segments, **change(segments))


def test_copies_know_their_own_arrays(implementation):
    p = problem()
    expected = p.solved()
    for copied in (copy.deepcopy(p.segments), pickle.loads(pickle.dumps(p.segments))):
        assert torch.equal(replace(p, segments=copied).solved(), expected)
        copied.values.zero_()
        assert not torch.equal(replace(p, segments=copied).solved(), expected)
    assert torch.equal(p.solved(), expected)
