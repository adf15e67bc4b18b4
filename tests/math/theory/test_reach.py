"""Exact weights of a planted key against simulation, enumeration and closed forms."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.special import ndtr

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.math.laws import standard_law
from esscher.math.theory import (
    Planted,
    cloud_logits,
    law_logits,
    leading_reach,
    needle_table,
    predict_needle,
    simulate_needle,
)
from esscher.math.theory.reach import expected_weight

LAWS = ("gaussian", "laplace", "cube")
SCALES = (0.3, 1.0, 2.0, 5.0)
#: 36 comparisons with 60 replicates and more: four standard errors, widened for the few.
FACTOR = 4.5


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("scale", SCALES)
def test_weight_is_that_of_the_simulation(name: str, scale: float) -> None:
    law, z = standard_law(name, 1), 3.0
    noise = law_logits(law, scale=scale, most=1e5, advantage=z)
    for n, replicates in ((10, 2000), (1000, 1000), (100_000, 60)):
        found = simulate_needle(law, z, [n], scale=scale, replicates=replicates, seed=1)
        exact = needle_table(noise, z, scale, most=1e5).weight([n])
        assert abs(found.weight[0] - exact[0]) < FACTOR * found.standard_error[0]
        assert expected_weight(noise, z, scale, [n]) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("name", ["gaussian", "student", "mixture"])
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_everything_else_is_that_of_the_simulation(name: str, scale: float) -> None:
    law, z, n, replicates = standard_law(name, 1), 2.0, 300, 3000
    table = needle_table(law_logits(law, scale=scale, most=n, advantage=z), z, scale, most=n)
    keys = law.sample(n * replicates, random_stream(2, "reach"))[:, 0].reshape(replicates, n)
    logits = scale * np.column_stack([np.full(replicates, z), keys])
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    entropy = -np.sum(p * np.log(np.maximum(p, 1e-300)), axis=1)
    for exact, drawn in (
        (table.square([n]), p[:, 0] ** 2),
        (table.others_square([n]), (p[:, 1:] ** 2).sum(axis=1)),
        (table.entropy([n]), entropy),
        (table.largest([n]), p.max(axis=1)),
        (table.error([n]) ** 2, (1 - p[:, 0]) ** 2 + (p[:, 1:] ** 2).sum(axis=1)),
    ):
        error = drawn.std(ddof=1) / np.sqrt(replicates)
        assert abs(exact[0] - drawn.mean()) < FACTOR * error
    for probability, at in zip((0.1, 0.5, 0.9), table.quantiles(n, [0.1, 0.5, 0.9]), strict=True):
        share = float((p[:, 0] <= at).mean())
        noise = np.sqrt(probability * (1 - probability) / replicates)
        # quantiles promise the probability within 0.005
        assert abs(share - probability) < FACTOR * noise + 0.005


@pytest.mark.parametrize("scale", [0.7, 4.0])
@pytest.mark.parametrize("beside", [None, 0.4])
def test_tiny_clouds_by_enumeration(scale: float, beside: float | None) -> None:
    logits, z, n = np.array([-1.0, 0.2, 0.5, 1.9]), 1.1, 4
    noise = cloud_logits(logits)
    others = np.array(list(product(noise.values, repeat=n)))
    weights = np.exp(scale * np.column_stack([np.full(len(others), z), others]))
    extra = 0.0 if beside is None else np.exp(beside)
    p = weights / (weights.sum(axis=1, keepdims=True) + extra)
    table = needle_table(noise, z, scale, most=n, beside=-np.inf if beside is None else beside)
    assert table.weight([n])[0] == pytest.approx(p[:, 0].mean(), rel=1e-7)
    assert table.square([n])[0] == pytest.approx((p[:, 0] ** 2).mean(), rel=1e-7)
    assert table.others_square([n])[0] == pytest.approx((p[:, 1:] ** 2).sum(1).mean(), rel=1e-7)
    if beside is None:
        assert table.entropy([n])[0] == pytest.approx(-(p * np.log(p)).sum(1).mean(), rel=1e-6)
        assert table.largest([n])[0] == pytest.approx(p.max(axis=1).mean(), rel=1e-6)
        assert table.weight([0])[0] == pytest.approx(1.0, rel=1e-7)


def test_gaussian_rules() -> None:
    """Half-weight length, best scale and limit, and how far off they are."""
    z, s = 6.0, 1.2
    reach = Planted(standard_law("gaussian", 1), s, z)
    rule = reach.leading(1.0)
    assert rule.half_length == pytest.approx(z - s**2 / 2, abs=1e-9)
    assert rule.best_scale == pytest.approx(z / s**2, rel=1e-6)
    assert rule.limit == pytest.approx(z**2 / (2 * s**2), rel=1e-6)
    # where weights vary little the rule is exact; at the best scale half of the sum is missing
    assert reach.half_length(1.0) == pytest.approx(np.exp(rule.half_length), rel=0.01)
    at_best = reach.half_length(rule.best_scale) / np.exp(rule.limit)
    assert 1.5 < at_best < 2.0
    # hardmax: the needle is the largest of all in half of the cases
    assert reach.limit_length() == pytest.approx(np.log(2) / ndtr(-z / s), rel=1e-3)
    assert reach.hardmax(1e6) == pytest.approx(ndtr(z / s) ** 1e6, rel=1e-6)


def test_bounded_keys_never_beat_a_large_needle() -> None:
    rule = leading_reach(law_logits(standard_law("cube", 1)), 2.0)
    assert rule.best_scale == rule.limit == np.inf
    reach = Planted(standard_law("signs", 1), 1.0, 2.0)
    assert reach.best_scale(1e6) == (np.inf, 1.0)


def test_phases() -> None:
    reach = Planted(standard_law("gaussian", 1), 1.0, 5.0)
    assert reach.phase(1e4, 0.5) == "averaging"
    assert reach.phase(1e4, 3.5) == "retrieving"
    assert reach.phase(1e4, 8.0) == "frozen"
    assert reach.phase(1e9, 3.0) == "lost"


def test_prediction_has_everything() -> None:
    found = predict_needle(standard_law("gaussian", 1), 6, [100, 10_000], spread=1.2, scale=2.0)
    tree = found.to_dict()
    assert tree["n"] == [100.0, 10_000.0]
    assert tree["quantiles"]["0.05"][0] < tree["weight"][0] < tree["quantiles"]["0.95"][0]
    assert np.all(np.diff(found.weight) < 0)
    assert np.all(found.largest >= found.weight)
    assert np.all(found.best_weight >= found.weight)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": 0}, "scale is 0; it must be a positive"),
        ({"spread": -1}, "spread is -1; it must be a positive"),
        ({"sizes": [-5]}, "n = -5"),
        ({"advantage": np.nan}, "advantage is nan"),
    ],
)
def test_bad_input(change: dict[str, object], said: str) -> None:
    arguments = {"advantage": 3.0, "sizes": [10], "spread": 1.0, "scale": 1.0} | change
    with pytest.raises(InputError, match=said):
        predict_needle(standard_law("gaussian", 1), **arguments)
    with pytest.raises(InputError, match="logits is empty"):
        cloud_logits([])
