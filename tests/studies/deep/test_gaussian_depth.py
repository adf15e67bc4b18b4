"""Gaussian stacks: the measured limit of depth 12 is the exact recursion."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import esscher
from esscher.core.errors import InputError, UndefinedError
from esscher.core.streams import random_stream
from esscher.math.laws import Gaussian
from esscher.studies.deep.combine import (
    AGREES,
    DIFFERS,
    UNDECIDED,
    compare_with_recursion,
    doubts,
    growth_factors,
)
from esscher.studies.deep.stack import (
    depth_maps,
    layer_errors,
    measure_replicate,
    moment_entries,
    push_tokens,
    random_stack,
)
from esscher.studies.deep.study import DeepStackStudy, StackData

SIZES = (256, 512)


def drawn(depth, dim, horizon, **options):
    """A stack and its limit."""
    return random_stack(DeepStackStudy(depth=depth, dim=dim, horizon=horizon, **options).known())


def compared(limits, recursion, doubt=None):
    """What the limits of some replicates say of a recursion."""
    depth, entries = limits.shape[1:]
    data = StackData.new(layer=range(depth), entry=range(entries))
    compare_with_recursion(data, limits, recursion, doubt or [None] * depth)
    return data


@pytest.fixture(scope="module")
def depth_12():
    # a mean tilt, so that means do not vanish by symmetry
    stack, limit = drawn(12, 6, 0.5, tau=0.2, seed=3)
    cells = [measure_replicate((stack, limit), SIZES, r, 3) for r in range(48)]
    return stack, limit, np.concatenate([cell["limit"].values for cell in cells])


def test_the_measured_limit_of_depth_12_is_the_recursion(depth_12):
    _, recursion, limits = depth_12
    result = compared(limits, recursion)
    # 6 means and 21 covariances; Student with 47 degrees of freedom, Bonferroni at 95%
    assert limits.shape[2] == 27
    assert result.largest_bound.values == pytest.approx(stats.t.ppf(1 - 0.05 / 54, 47))
    # one look at depth 12 at that level; all layers together at Bonferroni over layers as well
    assert result.agreement[-1] != DIFFERS
    assert result.largest.max() < stats.t.ppf(1 - 0.05 / (2 * 27 * 12), 47)


def test_another_recursion_is_refused(depth_12):
    """The comparison has power: a recursion that forgets the tilts is not confirmed."""
    _, recursion, limits = depth_12
    _, wrong = drawn(12, 6, 1e-9, tau=0.2, seed=3)
    np.testing.assert_allclose(wrong.means[1], recursion.means[1], atol=0.01)
    result = compared(limits, wrong)
    assert result.agreement[-1] == DIFFERS
    assert result.largest[-1] > 2 * result.largest_bound[-1]


def test_no_verdict_where_the_samples_are_far_from_their_limit():
    stack, _ = drawn(3, 4, 0.5, tau=0.1)
    small = [0.1, 0.1, 0.1]
    assert doubts(stack, 64, small) == [None, None, None]
    assert doubts(drawn(3, 4, 0.8)[0], 64, small)[0].startswith("layer 0 has H = 0.8")
    tilted, _ = drawn(2, 4, 0.3, tau=2.5)
    assert "below the burn-in of layer 0" in doubts(tilted, 64, small)[1]
    assert doubts(tilted, 10_000, small) == [None, None]
    result = esscher.deep_stack(depth=2, dim=2, horizon=3, sizes=[32, 64], replicates=8)
    assert result["largest"][-1] > result["largest_bound"][-1]
    assert result["agreement"][-1] == UNDECIDED
    assert "gives the limit is undecided" in result.headline


def test_noise_that_agrees_with_anything_is_no_verdict():
    """Layers of gain 2 amplify errors beyond the tokens: small deviations mean nothing then."""
    result = esscher.deep_stack(
        depth=6, dim=4, output_scale=2.0, sizes=[64, 128, 256], replicates=12
    )
    last = result.data.isel(layer=-1)
    assert last["error"].sel(curve="map", bound="value")[-2] > 1
    assert last["largest"] < last["largest_bound"]
    assert last["agreement"] == UNDECIDED
    assert "agree with anything" in str(last["doubt"].values)
    assert "agrees with the recursion" not in result.headline


def test_every_layer_has_the_horizon_and_the_size(depth_12):
    _, limit, _ = depth_12
    np.testing.assert_allclose(limit.horizons, 0.5, rtol=1e-9)
    squares = np.sum(limit.means**2, axis=1) + np.trace(limit.covariances, axis1=1, axis2=2)
    np.testing.assert_allclose(squares, 6.0, rtol=1e-9)
    assert np.linalg.norm(limit.means[-1]) > 0.1


def test_the_factor_of_a_layer_changes_no_relative_error():
    """Tokens without the normalising factors come out the same, only larger."""
    stack, limit = drawn(5, 4, 0.8, seed=1)
    tokens = random_stream(0, "test tokens").standard_normal((300, 4))
    results = [errors["map"] for errors, _ in layer_errors(stack, limit, tokens, "float64")]
    x, exact, scale, law = tokens, tokens, 1.0, Gaussian(dim=4)
    for i, layer in enumerate(stack):
        head, output = layer.head, layer.output
        factor = layer.residual
        # the same layer with residual 1, for tokens that were never scaled back
        tilts, keys, values = head.tokens(x * scale)
        weights = np.exp(tilts @ keys.T)
        weights /= weights.sum(axis=1, keepdims=True)
        x = x + weights @ values @ output.T / (factor * scale)
        exact = exact + head.with_law(law).limit_map(
            head.tokens(exact * scale).tilts
        ) @ output.T / (factor * scale)
        scale *= factor
        law = Gaussian(limit.means[i + 1], limit.covariances[i + 1])
        size = np.sqrt(np.trace(limit.covariances[i + 1])) / scale
        error = np.sqrt(np.mean(np.sum((x - exact) ** 2, axis=1))) / size
        assert error == pytest.approx(results[i], rel=1e-9)


def test_tokens_against_a_dense_softmax():
    stack, limit = drawn(3, 3, 1.0, tau=0.5, seed=2)
    x = random_stream(1, "test tokens").standard_normal((50, 3))
    pushed = x
    for layer, whole in zip(limit.maps, depth_maps(limit), strict=True):
        pushed = layer(pushed)
        np.testing.assert_allclose(whole(x), pushed, rtol=1e-10, atol=1e-12)
    for layer, pushed in zip(stack, push_tokens(stack, x.copy(), "float64"), strict=True):
        head, output = layer.head, layer.output
        logits = x @ head.A.T + head.a
        weights = np.exp(logits @ x.T)
        weights /= weights.sum(axis=1, keepdims=True)
        x = layer.residual * x + weights @ x @ head.value_weight.T @ output.T
        np.testing.assert_allclose(pushed, x, rtol=1e-10)


def test_layers_do_not_depend_on_depth():
    short, _ = drawn(2, 4, 0.7, seed=5)
    long, _ = drawn(6, 4, 0.7, seed=5)
    for a, b in zip(short, long, strict=False):
        np.testing.assert_array_equal(a.output, b.output)
        np.testing.assert_array_equal(a.head.query_weight, b.head.query_weight)


def test_a_collapse_is_said():
    with pytest.raises(UndefinedError, match=r"layer .* have collapsed.*larger residual"):
        drawn(24, 8, 0.5, residual=0.0)


def test_growth_factors_cover_the_truth():
    """Errors that grow by known factors, with independent noise: intervals hold them."""
    factors, covered = np.array([1.3, 0.8, 1.0]), 0
    level = np.concatenate([[1.0], np.cumprod(factors)])
    for trial in range(60):
        noise = random_stream(trial, "test growth").lognormal(0.0, 0.3, (24, 4))
        (first, *steps), _ = growth_factors(level * noise, 0)
        assert np.isnan(first).all()
        for factor, (_, low, high) in zip(factors, steps, strict=True):
            covered += low <= factor <= high
    # nominal 95% of 180, four binomial standard errors
    assert covered >= 180 * 0.95 - 4 * np.sqrt(180 * 0.95 * 0.05)


def test_deep_on_a_stack(tmp_path):
    out = tmp_path / "run"
    options = {"depth": 3, "dim": 3, "sizes": [32, 64, 128, 256], "replicates": 8, "seed": 1}
    result = esscher.deep_stack(out=out, **options)
    assert result.complete
    json.dumps(result.to_dict(), allow_nan=False)
    data = result.data
    assert data["error"].shape == (3, 3, 4, 3)
    assert data["growth"].sel(layer=0).isnull().all()
    assert data["growth"].sel(layer=[1, 2]).notnull().all()
    assert set(result.tables()) == {"layers", "limit", "errors"}
    assert len(result.table()) == 9
    assert len(result.table("errors")) == 3 * 3 * 4
    assert len(result.table("limit")) == 3
    xr.testing.assert_identical(esscher.load(out).data, data)
    # a replicate that is gone is computed again, to the same
    (out / "parts" / "replicate-5.safetensors").unlink()
    assert not esscher.load(out).complete
    xr.testing.assert_equal(esscher.deep_stack(out=out, **options).data, data)


def test_one_replicate_has_no_intervals():
    result = esscher.deep_stack(depth=1, dim=2, sizes=[16, 64], replicates=1)
    json.dumps(result.to_dict(), allow_nan=False)
    assert result["error"].sel(bound=["low", "high"]).isnull().all()
    assert result["agreement"][0] == UNDECIDED
    assert "is undecided: one replicate" in result.headline


def test_fewer_replicates_agree_less_often():
    """The margin is a tenth of a variance: what cannot see that far does not agree."""
    _, limit = drawn(2, 3, 0.5)
    exact = np.stack(
        [moment_entries(limit.means[i + 1], limit.covariances[i + 1]) for i in range(2)]
    )
    noise = random_stream(0, "agree").standard_normal((48, *exact.shape))
    limits = exact + 0.02 * noise
    for part, verdict in ((limits, AGREES), (limits[:4], UNDECIDED), (limits + 0.05, DIFFERS)):
        result = compared(part, limit)
        assert result.agreement.values.tolist() == [verdict] * 2
        if verdict == UNDECIDED:
            assert all("10% is the margin" in doubt for doubt in result.doubt.values)


BAD = [
    ({"depth": 0}, "depth is 0"),
    ({"sizes": [64]}, "at least 2 sizes"),
    ({"sizes": [64, 32]}, "increasing"),
    ({"dim": 10**6}, "dim is 1000000; it must be a whole number of at most 4096"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input(change, message, tmp_path):
    with pytest.raises(InputError, match=message):
        esscher.deep_stack(out=tmp_path / "run", **change)
    assert not (tmp_path / "run").exists()
