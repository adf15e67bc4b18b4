"""Attention over lists of different lengths, against its definition in float64."""

from __future__ import annotations

import copy
import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esscher.core.errors import InputError
from esscher.engine.attention.compiled import build, kernel
from esscher.engine.attention.compiled import ragged as compiled_ragged
from esscher.engine.attention.ragged import FEW, Segments, ragged_attention
from esscher.engine.attention.torch_ragged import few_queries, many_queries

#: Rounding of one operation in float32, relative.
UNIT = 2.0**-24
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Problem:
    """Arguments of ``ragged_attention``."""

    q: Tensor
    segments: Segments
    tail_keys: Tensor
    tail_values: Tensor
    scaling: float
    softcap: float | None = None
    visible: Tensor | None = None

    def arguments(self) -> tuple[object, ...]:
        return (self.q, self.segments, self.tail_keys, self.tail_values)

    def options(self) -> dict[str, object]:
        return {"scaling": self.scaling, "softcap": self.softcap, "visible": self.visible}

    def solved(self) -> Tensor:
        return ragged_attention(*self.arguments(), **self.options())


def problem(
    *,
    lengths=((5, 0, 130), (64, 65, 1)),
    group=2,
    n_q=1,
    tail=7,
    d_k=16,
    d_v=16,
    strength=1.0,
    dtype=torch.float32,
    seed=0,
    **options,
) -> Problem:
    """Lists of given lengths per text and key head, out of order, with strangers between."""
    g = torch.Generator().manual_seed(seed)
    batch, key_heads = len(lengths), len(lengths[0])
    flat = [length for text in lengths for length in text]
    start, at = torch.zeros(len(flat), dtype=torch.int64), 3
    for i in torch.randperm(len(flat), generator=g).tolist():
        start[i] = at
        at += flat[i] + i % 3
    segments = Segments(
        torch.randn(at, d_k, generator=g).to(dtype),
        torch.randn(at, d_v, generator=g).to(dtype),
        3 * torch.rand(at, generator=g),
        start,
        start + torch.tensor(flat),
    )
    # as a model makes them: heads side by side, and the filled part of a larger array
    q = torch.randn(batch, n_q, key_heads * group, d_k, generator=g).transpose(1, 2)
    larger = torch.randn(2, batch, key_heads, tail + 9, max(d_k, d_v), generator=g).to(dtype)
    return Problem(
        (strength * q).to(dtype),
        segments,
        larger[0, ..., :tail, :d_k],
        larger[1, ..., :tail, :d_v],
        scaling=d_k**-0.5,
        **options,
    )


def seen_by(p: Problem) -> Tensor:
    batch, _, n_q, _ = p.q.shape
    tail = p.tail_keys.shape[2]
    if p.visible is not None:
        return p.visible.expand(batch, n_q, tail)
    return torch.ones(n_q, tail, dtype=torch.bool).tril(tail - n_q).expand(batch, n_q, tail)


def check(p: Problem, found: Tensor) -> None:
    """Compare with the definition in float64, up to the rounding of float32.

    A logit's sum of d products and its few other operations err by (d + 8) units of their absolute
    sum, and by 8 units of the logit where it is shifted, capped and turned into powers of two.
    Logits off by e change a weighted mean of values by 2 e times the largest. The weights (3 units
    each) and sums of n terms err by n + 8 units at worst, twice: above and below the line.
    """
    batch, heads, n_q, d_k = p.q.shape
    key_heads = p.tail_keys.shape[1]
    group = heads // key_heads
    seen = seen_by(p)
    assert found.shape == (batch, heads, n_q, p.tail_values.shape[-1])
    assert found.dtype == p.q.dtype
    assert found.transpose(1, 2).is_contiguous()
    for b in range(batch):
        for h in range(heads):
            number = b * key_heads + h // group
            at = slice(int(p.segments.start[number]), int(p.segments.stop[number]))
            keys = torch.cat([p.segments.keys[at], p.tail_keys[b, h // group]]).double()
            values = torch.cat([p.segments.values[at], p.tail_values[b, h // group]]).double()
            weight = torch.zeros(len(keys), dtype=torch.float64)
            weight[: at.stop - at.start] = p.segments.log_weight[at].double()
            for i in range(n_q):
                query = p.q[b, h, i].double() * p.scaling
                keep = torch.cat([torch.ones(at.stop - at.start).bool(), seen[b, i]])
                if not keep.any():
                    assert (found[b, h, i] == 0).all()
                    continue
                logits = keys[keep] @ query
                sizes = keys[keep].abs() @ query.abs()
                if p.softcap is not None:
                    logits = p.softcap * torch.tanh(logits / p.softcap)
                logits = logits + weight[keep]
                expected = torch.softmax(logits, 0) @ values[keep]
                off = ((d_k + 8) * sizes + 8 * (logits.abs() + logits.abs().max())).max()
                error = 2 * UNIT * (off + len(logits) + 8) * values[keep].abs().max()
                error = error + expected.abs() * torch.finfo(p.q.dtype).eps
                assert ((found[b, h, i].double() - expected).abs() <= error).all()


@pytest.fixture(params=["torch", "AVX2", "AVX512"])
def implementation(request, monkeypatch):
    """What few queries are done with."""
    monkeypatch.setenv(kernel.VARIABLE, request.param)
    try:
        kernel.kernel_for(CPU, torch.float32)
    except InputError as error:
        pytest.skip(str(error))
    return request.param


@pytest.mark.parametrize("n_q", [1, 2, 5, 16, 17, 40])
@pytest.mark.parametrize("group", [1, 3, 16])
def test_numbers_of_queries(implementation, n_q, group):
    for tail in (0, 3, 50):
        p = problem(n_q=n_q, group=group, tail=tail)
        check(p, p.solved())


@pytest.mark.parametrize(("d_k", "d_v"), [(1, 3), (15, 33), (64, 64), (80, 128), (256, 17)])
@pytest.mark.parametrize("n_q", [1, 20])
def test_widths(implementation, d_k, d_v, n_q):
    p = problem(d_k=d_k, d_v=d_v, n_q=n_q)
    check(p, p.solved())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n_q", [1, 6, 20])
@pytest.mark.parametrize("width", [64, 7])
def test_half_precision(implementation, dtype, n_q, width):
    p = problem(dtype=dtype, n_q=n_q, d_k=width, d_v=width)
    check(p, p.solved())
    wide = replace(p, q=p.q.float())  # queries may be of another type
    check(wide, wide.solved())


@pytest.mark.parametrize("n_q", [1, 20])
def test_double_precision_is_kept(n_q):
    p = problem(dtype=torch.float64, n_q=n_q)
    check(p, p.solved())


@pytest.mark.parametrize("strength", [1.0, 150.0])
@pytest.mark.parametrize("softcap", [None, 30.0, 2.0])
@pytest.mark.parametrize("n_q", [1, 4, 20])
def test_large_logits_and_caps(implementation, strength, softcap, n_q):
    p = problem(strength=strength, softcap=softcap, n_q=n_q)
    check(p, p.solved())
    if strength > 1:
        assert (p.q.abs().max() * p.segments.keys.abs().max()) > 500


@pytest.mark.parametrize("n_q", [1, 20])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_logits_that_rise_and_fall_along_a_list(implementation, n_q, sign):
    p = problem(lengths=((400, 9),), n_q=n_q, d_k=1, tail=30)
    ramp = torch.linspace(-500 * sign, 500 * sign, len(p.segments.keys))[:, None]
    p = replace(p, q=torch.ones_like(p.q), segments=replace(p.segments, keys=ramp))
    check(p, p.solved())


@pytest.mark.parametrize("n_q", [1, 20])
@pytest.mark.parametrize("lengths", [((0, 0),), ((0, 3000, 2),), ((1, 1), (1, 0), (0, 0))])
def test_uneven_and_empty_lists(implementation, n_q, lengths):
    for tail in (0, 4):
        p = problem(lengths=lengths, n_q=n_q, tail=tail)
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
    one = replace(p.segments, start=p.segments.start[beams], stop=p.segments.stop[beams])
    p = replace(p, segments=one)
    check(p, p.solved())
    overlapping = replace(one, start=one.start - 3)
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
def test_both_ways_of_torch(n_q, lengths):
    p = problem(lengths=lengths, n_q=n_q)
    for way in (few_queries, many_queries):
        found = way(*p.arguments(), p.scaling, p.softcap, p.visible)
        check(p, found.transpose(1, 2))


@pytest.mark.parametrize("tail", [0, 30, 100, 333])
@pytest.mark.parametrize("masked", [False, True])
def test_more_queries_than_go_into_one_call(implementation, tail, masked):
    n_q = compiled_ragged.ROWS // 4 + 33
    g = torch.Generator().manual_seed(1)
    visible = torch.rand(1, n_q, tail, generator=g) < 0.1 if masked else None
    p = problem(lengths=((5, 0), (70, 1)), group=4, n_q=n_q, tail=tail, visible=visible)
    check(p, p.solved())


def test_blocks_of_queries_do_not_matter():
    p = problem(n_q=40, tail=50)
    numbers = (p.scaling, p.softcap, p.visible)
    for room in (1, 20_000, 10**9):
        check(p, many_queries(*p.arguments(), *numbers, room=room).transpose(1, 2))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_problem(data):
    length = st.one_of(st.integers(0, 3), st.integers(0, 200))
    batch, key_heads = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    one = st.lists(length, min_size=key_heads, max_size=key_heads)
    p = problem(
        lengths=data.draw(st.lists(one, min_size=batch, max_size=batch)),
        group=data.draw(st.integers(1, 5)),
        n_q=data.draw(st.integers(1, FEW + 2)),
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
            for p, found in zip(expected, pool.map(Problem.solved, problems), strict=True):
                assert torch.equal(p, found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_threads_it_does_not_have(implementation):
    p = problem(lengths=((3000, 2000),), tail=20)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = p.solved()
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends a child that hangs
            if implementation == "torch":
                torch.set_num_threads(1)  # PyTorch's own threads hang
            close = torch.allclose(p.solved(), expected, rtol=1e-4, atol=1e-5)
            os._exit(0 if close else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(before)


def test_arrays_that_the_kernel_does_not_read_are_left_to_torch(implementation):
    p = problem(n_q=2)
    turned = replace(p, tail_keys=p.tail_keys.mT.contiguous().mT)
    check(turned, turned.solved())
    mixed = replace(p, tail_values=p.tail_values.double().float().to(torch.bfloat16))
    check(mixed, mixed.solved())


def test_lists_outside_the_arrays(implementation):
    if implementation == "torch":
        pytest.skip("PyTorch says so in its own words")
    p = problem()
    for change in ({"start": p.segments.start - 99}, {"stop": p.segments.stop + 999}):
        wrong = replace(p, segments=replace(p.segments, **change))
        with pytest.raises(InputError, match="a list lies outside the"):
            wrong.solved()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("q", torch.zeros(2, 6, 1, 15)),
        ("q", torch.zeros(2, 5, 1, 16)),
        ("q", torch.zeros(1, 6, 1, 16)),
        ("tail_values", torch.zeros(2, 3, 8, 16)),
        ("tail_keys", torch.zeros(2, 2, 7, 16)),
        ("visible", torch.ones(1, 1, 8, dtype=torch.bool)),
    ],
)
def test_shapes_that_do_not_belong_together(name, value):
    with pytest.raises(InputError, match=r"do not belong together: q \["):
        replace(problem(), **{name: value}).solved()


def test_masks_are_true_or_false():
    with pytest.raises(InputError, match=r"visible is of type torch\.float32"):
        problem(visible=torch.ones(1, 1, 7)).solved()


def test_segments_that_cannot_be():
    s = problem().segments
    with pytest.raises(InputError, match="contiguous"):
        replace(s, keys=s.keys.mT.contiguous().mT)
    with pytest.raises(InputError, match="shapes"):
        replace(s, log_weight=s.log_weight[:, None])
    with pytest.raises(InputError, match="lengths"):
        replace(s, start=s.start[1:])
    with pytest.raises(InputError, match="types"):
        replace(s, start=s.start.int())
    with pytest.raises(InputError, match="types"):
        replace(s, values=s.values.half())


def test_copies_know_their_own_arrays(implementation):
    p = problem()
    expected = p.solved()
    for copied in (copy.deepcopy(p.segments), pickle.loads(pickle.dumps(p.segments))):
        assert torch.equal(replace(p, segments=copied).solved(), expected)
        copied.values.zero_()
        assert not torch.equal(replace(p, segments=copied).solved(), expected)
    assert torch.equal(p.solved(), expected)


def test_the_struct_is_that_of_the_source():
    """A field more or less on one side would make the kernel read elsewhere."""
    source = (build.FOLDER / "block.h").read_text()
    body = source.split("struct ragged {")[1].split("};")[0].splitlines()
    statements = [line.split("/*")[0].strip() for line in body]
    fields = sum(
        1 if "(" in line else line.count(",") + 1 for line in statements if line.endswith(";")
    )
    doubles = sum(line.count(",") + 1 for line in statements if line.startswith("double"))
    lists = statements.index("int64_t type;") + 1
    of_lists = sum(line.count(",") + 1 for line in statements[:lists] if line.endswith(";"))
    assert compiled_ragged.LISTS.format == f"@{of_lists}q"
    assert compiled_ragged.CALL.format == f"@{fields - of_lists - doubles}q{doubles}d"
