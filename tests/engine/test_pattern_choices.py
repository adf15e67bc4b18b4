"""Which keys each pattern chooses, and with which chances."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.patterns import PATTERNS, View, as_patterns
from tests.engine.seen import seen_keys

KEYS = 200


def chosen(name: str, view: View, budget: int, seed: int = 0) -> list[set[int]]:
    sight = PATTERNS[name].select(view, budget, random_stream(seed, "choice"))
    return [set(seen_keys(sight, i).tolist()) for i in range(len(view.queries))]


ENCODER = View.of([80, 120], KEYS)
DECODER = View.of([150, 199], KEYS, causal=True)


def test_windows_are_the_nearest_keys() -> None:
    assert chosen("window", ENCODER, 21) == [set(range(70, 91)), set(range(110, 131))]
    assert chosen("window", DECODER, 21) == [set(range(130, 151)), set(range(179, 200))]
    at_the_edge = View.of([2], KEYS)
    assert chosen("window", at_the_edge, 21) == [set(range(21))]


def test_streaming_keeps_four_sinks() -> None:
    assert chosen("streaming", DECODER, 20)[0] == {0, 1, 2, 3} | set(range(135, 151))
    assert chosen("streaming", ENCODER, 20)[0] == {0, 1, 2, 3} | set(range(72, 88))


def test_longformer_has_a_window_and_global_tokens_that_see_everything() -> None:
    assert chosen("longformer", DECODER, 40)[0] == set(range(5)) | set(range(116, 151))
    view = View.of([1, 4, 5, 100], KEYS)
    sight = PATTERNS["longformer"].select(view, 40, random_stream(0, "choice"))
    assert sight.complete.tolist() == [True, True, False, False]  # type: ignore[attr-defined]


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
    far = [{k for k in own if 8 <= k < 50} for own in keys]
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


def test_blocks() -> None:
    assert chosen("block", ENCODER, 50) == [set(range(50, 100)), set(range(100, 150))]
    assert chosen("block", DECODER, 50) == [set(range(125, 151)), set(range(150, 200))]
    assert chosen("block", View.of([160], KEYS, causal=True), 50) == [set(range(125, 161))]


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
