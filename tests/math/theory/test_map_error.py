"""The predicted map error: exact constants, direct simulation, symmetries, range."""

from __future__ import annotations

import numpy as np
import pytest

import esscher
from tests.math.theory.simulation import simulate

DECAY = 1 / np.sqrt(np.arange(1, 51))


@pytest.mark.parametrize(
    ("spectrum", "tau"), [([0.5], None), ([0.6, 0.3, 0.1], 0.4), ([0.3] * 8, None)]
)
@pytest.mark.parametrize("queries", ["population", "tokens"])
def test_it_reaches_the_exact_constant(
    spectrum: list[float], tau: float | None, queries: str
) -> None:
    head = esscher.gaussian_head(spectrum=spectrum, tau=tau)
    # the next order falls slowly, 1.4% are still missing at n = 1e15 for H = 0.6
    curve = esscher.theory.map_curve(head, [1e30], queries)
    assert 1e30 * curve.error[-1] ** 2 == pytest.approx(esscher.theory.map_constant(head), rel=1e-4)


@pytest.mark.parametrize("queries", ["population", "tokens"])
@pytest.mark.parametrize(
    "spectrum",
    [[0.5], [-0.8], [3.0], [0.7] * 8, [2.0] * 8, list(1.5 * DECAY[:8]), list(DECAY), [1.2] * 50],
    ids=["0.5", "-0.8", "3", "8x0.7", "8x2", "8 decaying", "50 decaying", "50x1.2"],
)
def test_within_five_percent_of_simulation(spectrum: list[float], queries: str) -> None:
    head = esscher.gaussian_head(spectrum=spectrum)
    sizes = [20, 200, 1500]
    measured, error = simulate(head, sizes, 40, queries, query_count=200).map_rms()
    curve = esscher.theory.map_curve(head, sizes, queries)
    noise = np.hypot(error, curve.standard_error)
    # 48 comparisons
    assert np.all(np.abs(curve.error - measured) < 4 * noise)
    assert np.all(curve.standard_error < 0.02 * curve.error)


@pytest.mark.parametrize(
    ("spectrum", "truth"),
    [([1.5, 0.75], (0.6461, 0.0005)), ([3.0, 1.5], (1.9006, 0.0008))],
)
def test_of_small_rank_the_own_key_is_integrated(
    spectrum: list[float], truth: tuple[float, float]
) -> None:
    """The truth: n = 30 tokens, 60,000 times, in plain numpy."""
    curve = esscher.theory.map_curve(esscher.gaussian_head(spectrum=spectrum), [30], "tokens")
    assert curve.standard_error[0] == 0
    assert abs(curve.error[0] - truth[0]) < 4 * truth[1]


def test_values_that_the_keys_do_not_determine() -> None:
    rng = np.random.default_rng(1)
    head = esscher.weight_head(
        esscher.laws.Gaussian(dim=6),
        query=0.9 * rng.standard_normal((2, 6)),
        key=0.5 * rng.standard_normal((2, 6)),
        value=rng.standard_normal((3, 6)),
        query_bias=[0.3, -0.2],
    )
    for queries in ("population", "tokens"):
        measured, error = simulate(head, [60, 600], 150, queries, query_count=150).map_rms()
        curve = esscher.theory.map_curve(head, [60, 600], queries)
        noise = np.hypot(error, curve.standard_error)
        assert np.all(np.abs(curve.error - measured) < 4 * noise)


def test_from_ten_tokens_to_a_trillion_it_falls() -> None:
    curve = esscher.theory.map_curve(esscher.gaussian_head(1.5, dim=3), 10.0 ** np.arange(1, 13))
    assert np.all(np.diff(curve.error) < 0)
    assert np.all(curve.standard_error == 0)
    slopes = curve.local_slopes()
    assert curve.slope() == pytest.approx(slopes.mean(), abs=0.02)


def test_a_head_without_tilt_is_the_sample_mean() -> None:
    curve = esscher.theory.map_curve(esscher.gaussian_head(0.0, dim=4), [10, 1000])
    np.testing.assert_allclose(curve.error, np.sqrt(4 / curve.sizes), rtol=1e-6)


def test_what_is_refused() -> None:
    head = esscher.gaussian_head(0.5)
    for sizes, words in (([1, 10], "n = 1"), ([10, 10], "increasing"), ([2.5, 3], "whole")):
        with pytest.raises(esscher.InputError, match=words):
            esscher.theory.map_curve(head, sizes)
    with pytest.raises(esscher.InputError, match="queries"):
        esscher.theory.map_curve(head, [10], "everyone")
    with pytest.raises(esscher.InputError, match="at least 2"):
        esscher.theory.map_curve(head, [10]).slope()
