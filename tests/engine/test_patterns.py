"""Patterns: which keys they choose, with which chances, and against a dense computation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.patterns import PATTERNS, Selection, View, as_patterns

KEYS = 200


def seen_keys(sight: Selection, row: int) -> np.ndarray:
    """Positions that a query really sees, in a selection that heads share."""
    keys = sight.keys if sight.keys.ndim == 1 else sight.keys[..., row, :].reshape(-1)
    if sight.log_weights is None:
        return keys.numpy()
    inside = torch.isfinite(sight.log_weights[row])
    return keys[inside].numpy()


def chosen(name: str, view: View, budget: int, seed: int = 0) -> list[set[int]]:
    sight = PATTERNS[name].select(view, budget, random_stream(seed, "choice"))
    return [set(seen_keys(sight, i).tolist()) for i in range(len(view.queries))]


ENCODER = View.of([80, 120], KEYS)
DECODER = View.of([150, 199], KEYS, causal=True)


AT_THE_EDGE = View.of([2], KEYS)
LATE = View.of([160], KEYS, causal=True)


@pytest.mark.parametrize(
    ("name", "view", "budget", "expected"),
    [
        ("window", ENCODER, 21, [{*range(70, 91)}, {*range(110, 131)}]),
        ("window", DECODER, 21, [{*range(130, 151)}, {*range(179, 200)}]),
        ("window", AT_THE_EDGE, 21, [{*range(21)}]),
        ("streaming", DECODER, 20, [{*range(4), *range(135, 151)}, {*range(4), *range(184, 200)}]),
        ("streaming", ENCODER, 20, [{*range(4), *range(72, 88)}, {*range(4), *range(112, 128)}]),
        ("longformer", DECODER, 40, [{*range(5), *range(116, 151)}, {*range(5), *range(165, 200)}]),
        ("block", ENCODER, 50, [{*range(50, 100)}, {*range(100, 150)}]),
        ("block", DECODER, 50, [{*range(125, 151)}, {*range(150, 200)}]),
        ("block", LATE, 50, [{*range(125, 161)}]),
    ],
)
def test_keys_by_their_places(name, view, budget, expected) -> None:
    assert chosen(name, view, budget) == expected


def test_global_tokens_of_longformer_see_everything() -> None:
    view = View.of([1, 4, 5, 100], KEYS)
    sight = PATTERNS["longformer"].select(view, 40, random_stream(0, "choice"))
    assert sight.complete.tolist() == [True, True, False, False]  # type: ignore[union-attr]


def test_bigbird_has_three_parts() -> None:
    for view in (ENCODER, DECODER):
        keys = chosen("bigbird", view, 64)[0]
        ends = set(range(8)) | set(range(192, 200)) if not view.causal else set(range(16))
        near = set(range(68, 92)) if not view.causal else set(range(127, 151))
        assert ends | near <= keys
        assert len(keys - ends - near) == 24
    same_block = View.of([64, 100, 127, 128], KEYS)
    keys = chosen("bigbird", same_block, 64)
    assert PATTERNS["bigbird"].select(
        View.of([0, 3, 198], KEYS), 64, random_stream(0, "choice")
    ).complete.tolist() == [True, True, True]  # type: ignore[attr-defined]
    # queries of a block share an order; how far down it they go depends on their windows
    far = [{k for k in of_query if 8 <= k < 50} for of_query in keys]
    assert far[0] <= far[1] or far[1] <= far[0]
    assert far[0] <= far[2] or far[2] <= far[0]
    assert not far[0] <= far[3]
    assert not far[3] <= far[0]


def test_strided_spreads_evenly_outside_its_window() -> None:
    keys = chosen("strided", DECODER, 40)[1]
    assert set(range(180, 200)) <= keys
    rest = np.array(sorted(keys - set(range(180, 200))))
    assert np.diff(rest).tolist() == [9] * 19
    keys = chosen("strided", ENCODER, 40)[0]
    assert set(range(70, 90)) <= keys
    assert len(keys) == 40


def test_top_k_takes_the_largest_logits() -> None:
    logits = torch.from_numpy(random_stream(0, "logits").standard_normal((2, 2, KEYS)))
    keys = PATTERNS["topk"].select(ENCODER, 10, random_stream(0, "choice"), logits).keys  # type: ignore[attr-defined]
    expected = np.sort(np.argsort(-logits.numpy(), axis=-1)[..., :10], axis=-1)
    assert np.array_equal(np.sort(keys.numpy(), axis=-1), expected)
    with pytest.raises(InputError, match="by the logits"):
        PATTERNS["topk"].select(ENCODER, 10, random_stream(0, "choice"))


def test_random_keys_are_uniform_shared_and_nested() -> None:
    draws, budget = 2000, 15
    counts = np.zeros(KEYS)
    for seed in range(draws):
        first, second = chosen("random", ENCODER, budget, seed)
        assert first == second
        counts[list(first)] += 1
    p = budget / KEYS
    deviation = (counts - draws * p) / np.sqrt(draws * p * (1 - p))
    # largest of 200 normal deviations: beyond 4.6 with probability 1e-3
    assert np.abs(deviation).max() < 4.6
    small, large = chosen("random", DECODER, 10)[0], chosen("random", DECODER, 40)[0]
    assert small < large
    # later queries keep what is still in the sample: both take the first of one random order
    early, late = chosen("random", DECODER, 40)
    assert len(early & late) > 15


def test_corrected_weights_stand_for_all_keys() -> None:
    """Sums over the keys are estimated without bias: sinks and recent ones for certain."""
    rng = random_stream(1, "logits")
    logits = torch.from_numpy(rng.standard_normal((1, 2, KEYS)))
    logits[0, 0, 151:] = -torch.inf
    pattern, budget = PATTERNS["corrected"], 30
    exact = torch.exp(logits).sum(-1)[0].numpy()
    sums = []
    for seed in range(1500):
        sight = pattern.select(DECODER, budget, random_stream(seed, "choice"))
        keys, added = sight.keys, sight.log_weights  # type: ignore[attr-defined]
        taken = torch.gather(logits[0], 1, keys) + added
        sums.append(torch.exp(taken).sum(-1).numpy())
    estimates = np.array(sums)
    error = estimates.std(axis=0, ddof=1) / np.sqrt(len(estimates))
    assert np.all(np.abs(estimates.mean(axis=0) - exact) < 4 * error)
    weights = added[0].numpy()
    others, sampled = 151 - 4 - 13, 13
    assert np.array_equal(weights[:17], np.zeros(17))
    np.testing.assert_allclose(weights[17:], np.log(others / sampled))


def test_the_error_of_corrected_selection_is_the_one_predicted() -> None:
    """E |y_n - y|^2 = (E/n - 1) sum p^2 |v - y|^2 over the sampled class, for many keys."""
    rng = random_stream(5, "test")
    keys, budget, draws = 4000, 1000, 400
    view = View.of([2000], keys)
    logits = torch.from_numpy(0.5 * rng.standard_normal((1, 1, keys)))
    values = torch.from_numpy(rng.standard_normal((1, keys, 3)))
    weights = torch.softmax(logits, -1)
    exact = (weights @ values)[0, 0]
    pattern = PATTERNS["corrected"]
    squares = []
    for seed in range(draws):
        sight = pattern.select(view, budget, random_stream(seed, "choice"))
        squares.append(float((sight.attend(logits, values)[0, 0] - exact).square().sum()))
    certain = np.r_[0:4, 2000 - 249 : 2000 + 249]
    n, others = budget - 4 - 498, keys - 4 - 498
    terms = (weights[0, 0] ** 2 * (values[0] - exact).square().sum(-1)).numpy()
    terms[certain] = 0.0
    predicted = (others / n - 1) * terms.sum()
    error = np.std(squares, ddof=1) / np.sqrt(draws)
    # next order: a relative O(1/n) of the ratio estimator
    assert abs(np.mean(squares) - predicted) < 4 * error + 2 / n * predicted


def test_budgets_that_are_too_small() -> None:
    with pytest.raises(InputError, match="needs at least 6"):
        PATTERNS["corrected"].check(5)
    with pytest.raises(InputError, match="budget is 0"):
        PATTERNS["window"].check(0)


def test_names() -> None:
    assert as_patterns("all") == tuple(PATTERNS)
    assert as_patterns("window, topk") == ("random", "topk", "window")
    assert as_patterns(["block"]) == ("random", "block")
    with pytest.raises(InputError, match="no pattern 'windows'"):
        as_patterns("windows")
    with pytest.raises(InputError, match="no patterns"):
        as_patterns([])


def test_a_query_that_sees_nothing() -> None:
    with pytest.raises(InputError, match="position 300 sees none"):
        View.of([300], KEYS, causal=True, window=10)


# Against a dense masked computation, and what is exact at full budget.

N, HEADS, DIM = 90, 3, 5
SELECTING = [name for name in PATTERNS if name not in ("pooled", "linformer")]
VIEWS = {
    "encoder": lambda: View.of(np.arange(20, 70, 3), N),
    "decoder": lambda: View.of(np.arange(10, N, 5), N, causal=True),
    "decoder window": lambda: View.of(np.arange(30, N, 4), N, causal=True, window=50),
    "encoder window": lambda: View.of(np.arange(20, 70, 3), N, window=35),
    "cache": lambda: View.of(np.arange(N, N + 8), N, causal=True),
}


def head_arrays(view: View, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    rng = random_stream(seed, "test")
    logits = torch.from_numpy(2 * rng.standard_normal((HEADS, len(view.queries), N)))
    logits = logits.masked_fill(~torch.from_numpy(view.visible()), -torch.inf)
    return logits, torch.from_numpy(rng.standard_normal((HEADS, N, DIM)))


def dense_masked(sight: Selection, logits: torch.Tensor, values: torch.Tensor) -> np.ndarray:
    """Softmax over an explicit [queries, keys] table of log-weights, head by head, in numpy."""
    heads, queries, keys = logits.shape
    output = np.empty((heads, queries, values.shape[-1]))
    for h in range(heads):
        for i in range(queries):
            added = np.full(keys, -np.inf)
            if sight.complete is not None and sight.complete[i]:
                added[:] = 0.0
            else:
                chosen = sight.keys.expand(heads, queries, -1)[h, i].numpy()
                weights = np.zeros(len(chosen))
                if sight.log_weights is not None:
                    weights = sight.log_weights[i].numpy()
                for key, weight in zip(chosen, weights, strict=True):
                    if np.isfinite(weight):
                        added[key] = weight
            total = logits[h, i].numpy() + added
            p = np.exp(total - total.max())
            output[h, i] = p @ values[h].numpy() / p.sum()
    return output


@pytest.mark.parametrize("view_name", VIEWS)
@pytest.mark.parametrize("name", SELECTING)
@pytest.mark.parametrize("budget", [9, 30, -1])
def test_outputs_are_those_of_a_dense_mask(name: str, view_name: str, budget: int) -> None:
    """Also with the largest budget that leaves something out of what every query sees."""
    view = VIEWS[view_name]()
    logits, values = head_arrays(view)
    if budget < 0:
        budget = max(int(view.counts.min()) - 1, PATTERNS[name].smallest)
    sight = PATTERNS[name].select(view, budget, random_stream(0, "choice"), logits)
    assert isinstance(sight, Selection)
    outputs = sight.attend(logits, values).numpy()
    np.testing.assert_allclose(outputs, dense_masked(sight, logits, values), rtol=1e-12, atol=1e-12)
    weights = sight.weights(logits)
    np.testing.assert_allclose(weights.sum(-1).numpy(), 1.0, rtol=1e-12)
    assert torch.all(weights[~torch.isfinite(logits)] == 0)


@pytest.mark.parametrize("view_name", VIEWS)
@pytest.mark.parametrize("name", [*SELECTING, "pooled"])
def test_all_keys_seen_is_dense_attention_exactly(name: str, view_name: str) -> None:
    view = VIEWS[view_name]()
    logits, values = head_arrays(view)
    sight = PATTERNS[name].select(view, N, random_stream(0, "choice"), logits)
    dense = torch.softmax(logits, dim=-1) @ values
    if name == "pooled":  # sums of one number in another order
        torch.testing.assert_close(sight.attend(logits, values), dense, rtol=1e-13, atol=1e-13)
    else:
        assert torch.equal(sight.attend(logits, values), dense)


@pytest.mark.parametrize("view_name", VIEWS)
@pytest.mark.parametrize("name", [n for n in SELECTING if n != "topk"])
def test_budgets_are_kept(name: str, view_name: str) -> None:
    view = VIEWS[view_name]()
    budget = 9
    sight = PATTERNS[name].select(view, budget, random_stream(0, "choice"))
    for i in range(len(view.queries)):
        keys = seen_keys(sight, i)
        if sight.complete is not None and sight.complete[i]:
            continue
        assert len(set(keys.tolist())) == len(keys) <= budget
        assert keys.min() >= view.first[i]
        assert keys.max() < view.stop[i]
        if not (name == "block" and view.causal):
            assert len(keys) == budget


@pytest.mark.parametrize("name", [n for n in PATTERNS if n != "topk"])
def test_a_choice_does_not_depend_on_the_other_queries(name: str) -> None:
    view = View.of(np.arange(30, N), N, causal=True)
    logits, values = head_arrays(view)
    some = np.arange(5, 60, 7)
    rows = torch.from_numpy(some)
    whole = PATTERNS[name].select(view, 12, random_stream(3, "choice"), logits)
    part = PATTERNS[name].select(view.take(some), 12, random_stream(3, "choice"), logits[:, rows])
    torch.testing.assert_close(
        part.attend(logits[:, rows], values),
        whole.attend(logits, values)[:, rows],
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize("budget", [7, N])
def test_linformer_is_softmax_over_mixed_keys(budget: int) -> None:
    """Also with as many mixtures as keys, which is not dense attention."""
    rng = random_stream(2, "test")
    q, k = rng.standard_normal((6, 4)), rng.standard_normal((N, 4))
    v = rng.standard_normal((N, DIM))
    sight = PATTERNS["linformer"].select(
        View.of(np.arange(30, 36), N), budget, random_stream(0, "choice")
    )
    entries = random_stream(0, "choice").standard_normal((budget, N), dtype=np.float32)
    p = np.float64(entries * np.float32(budget**-0.5))
    expected = softmax(q @ (p @ k).T) @ (p @ v)
    outputs = sight.attend(torch.from_numpy(q @ k.T)[None], torch.from_numpy(v)[None])[0].numpy()
    np.testing.assert_allclose(outputs, expected, rtol=1e-9, atol=1e-12)
    dense = softmax(q @ k.T) @ v
    assert np.linalg.norm(outputs - dense) > 0.5 * np.linalg.norm(dense)


def test_pooled_is_attention_over_averages() -> None:
    rng = random_stream(4, "test")
    q, k = rng.standard_normal((6, 4)), rng.standard_normal((N, 4))
    v = rng.standard_normal((N, DIM))
    sight = PATTERNS["pooled"].select(View.of(np.arange(30, 36), N), 9, random_stream(0, "choice"))
    groups = random_stream(0, "choice").permutation(N).reshape(-1, 9).T  # every ninth
    means = [np.stack([x[group].mean(axis=0) for group in groups]) for x in (k, v)]
    expected = softmax(q @ means[0].T) @ means[1]
    outputs = sight.attend(torch.from_numpy(q @ k.T)[None], torch.from_numpy(v)[None])[0]
    np.testing.assert_allclose(outputs.numpy(), expected, rtol=1e-10)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
