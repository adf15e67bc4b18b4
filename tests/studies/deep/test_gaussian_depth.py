"""Gaussian stacks: the measured limit of depth 12 is the exact recursion."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

import esscher
from esscher.core.errors import InputError, UndefinedError
from esscher.core.streams import random_stream
from esscher.math.laws import Gaussian
from esscher.studies.deep.assemble import (
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

SIZES = (256, 512)


def moments_of(cells, depth):
    """Axes [replicate, size, layer, entry]."""
    out = []
    for cell in cells:
        rows = cell.table[cell.table["quantity"] == "moment"]
        rows = rows.sort_values(["n", "layer", "entry"])
        out.append(rows["value"].to_numpy().reshape(2, depth, -1))
    return np.stack(out)


@pytest.fixture(scope="module")
def depth_12():
    # a mean tilt, so that means do not vanish by symmetry
    stack, limit = random_stack(12, 6, 0.5, tau=0.2, seed=3)
    cells = [measure_replicate((stack, limit), SIZES, r, 3) for r in range(48)]
    return stack, limit, cells


def test_the_measured_limit_of_depth_12_is_the_recursion(depth_12):
    _, limit, cells = depth_12
    found = compare_with_recursion(moments_of(cells, 12), SIZES, limit, [None] * 12)
    for layer in found:
        # 6 means and 21 covariances; Student with 47 degrees of freedom, Bonferroni at 95%
        assert layer.entries == 27
        assert layer.bound == pytest.approx(stats.t.ppf(1 - 0.05 / 54, 47))
    # one look at depth 12 at that level; all layers together at Bonferroni over layers as well
    assert found[-1].agrees is not False
    bound = stats.t.ppf(1 - 0.05 / (2 * 27 * 12), 47)
    assert max(layer.largest for layer in found) < bound


def test_another_recursion_is_refused(depth_12):
    """The comparison has power: a recursion that forgets the tilts is not confirmed."""
    _, limit, cells = depth_12
    _, wrong = random_stack(12, 6, 1e-9, tau=0.2, seed=3)
    np.testing.assert_allclose(wrong.means[1], limit.means[1], atol=0.01)
    found = compare_with_recursion(moments_of(cells, 12), SIZES, wrong, [None] * 12)
    assert found[-1].agrees is False
    assert found[-1].largest > 2 * found[-1].bound


def test_no_verdict_where_the_samples_are_far_from_their_limit():
    stack, _ = random_stack(3, 4, 0.5, tau=0.1)
    small = [0.1, 0.1, 0.1]
    assert doubts(stack, 64, small) == [None, None, None]
    assert doubts(random_stack(3, 4, 0.8)[0], 64, small)[0].startswith("layer 0 has H = 0.8")
    tilted, _ = random_stack(2, 4, 0.3, tau=2.5)
    assert "below the burn-in of layer 0" in doubts(tilted, 64, small)[1]
    assert doubts(tilted, 10_000, small) == [None, None]
    found = esscher.deep_stack(depth=2, dim=2, horizon=3, sizes=[32, 64], replicates=8)
    assert found.limit[-1].largest > found.limit[-1].bound
    assert found.limit[-1].agrees is None
    assert "gives the limit is undecided" in found.headline


def test_noise_that_agrees_with_anything_is_no_verdict():
    """Layers of gain 2 amplify errors beyond the tokens: small deviations mean nothing then."""
    found = esscher.deep_stack(
        depth=6, dim=4, output_scale=2.0, sizes=[64, 128, 256], replicates=12
    )
    last = found.limit[-1]
    assert found.layers[-1].error["map"].mean[-2] > 1
    assert last.largest < last.bound
    assert last.agrees is None
    assert "agree with anything" in last.doubt
    assert "agrees with the recursion" not in found.headline


def test_every_layer_has_the_horizon_and_the_size(depth_12):
    _, limit, _ = depth_12
    np.testing.assert_allclose([h[0] for h in limit.horizons], 0.5, rtol=1e-9)
    squares = np.sum(limit.means**2, axis=1) + np.trace(limit.covariances, axis1=1, axis2=2)
    np.testing.assert_allclose(squares, 6.0, rtol=1e-9)
    assert np.linalg.norm(limit.means[-1]) > 0.1


def test_the_factor_of_a_layer_changes_no_relative_error():
    """Tokens without the normalising factors come out the same, only larger."""
    stack, limit = random_stack(5, 4, 0.8, seed=1)
    tokens = random_stream(0, "test tokens").standard_normal((300, 4))
    found = [errors["map"] for errors, _ in layer_errors(stack, limit, tokens, "float64")]
    x, exact, scale, law = tokens, tokens, 1.0, Gaussian(dim=4)
    for i, layer in enumerate(stack.layers):
        head, output = layer.heads[0], layer.output[0]
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
        assert error == pytest.approx(found[i], rel=1e-9)


def test_tokens_against_a_dense_softmax():
    stack, limit = random_stack(3, 3, 1.0, tau=0.5, seed=2)
    x = random_stream(1, "test tokens").standard_normal((50, 3))
    pushed = x
    for layer, whole in zip(limit.maps, depth_maps(limit), strict=True):
        pushed = layer(pushed)
        np.testing.assert_allclose(whole(x), pushed, rtol=1e-10, atol=1e-12)
    for layer, pushed in zip(stack.layers, push_tokens(stack, x.copy(), "float64"), strict=True):
        head, output = layer.heads[0], layer.output[0]
        logits = x @ head.A.T + head.a
        weights = np.exp(logits @ x.T)
        weights /= weights.sum(axis=1, keepdims=True)
        x = layer.residual * x + weights @ x @ head.value_weight.T @ output.T
        np.testing.assert_allclose(pushed, x, rtol=1e-10)


def test_layers_do_not_depend_on_depth():
    short, _ = random_stack(2, 4, 0.7, seed=5)
    long, _ = random_stack(6, 4, 0.7, seed=5)
    for a, b in zip(short.layers, long.layers, strict=False):
        np.testing.assert_array_equal(a.output[0], b.output[0])
        np.testing.assert_array_equal(a.heads[0].query_weight, b.heads[0].query_weight)


def test_a_collapse_is_said():
    with pytest.raises(UndefinedError, match=r"layer .* have collapsed.*larger residual"):
        random_stack(24, 8, 0.5, residual=0.0)


def test_growth_factors_cover_the_truth():
    """Errors that grow by known factors, with independent noise: intervals hold them."""
    factors, covered = np.array([1.3, 0.8, 1.0]), 0
    level = np.concatenate([[1.0], np.cumprod(factors)])
    for trial in range(60):
        noise = random_stream(trial, "test growth").lognormal(0.0, 0.3, (24, 4))
        (first, *steps), _ = growth_factors(level * noise, 0)
        assert first is None
        for factor, step in zip(factors, steps, strict=True):
            covered += step.interval[0] <= factor <= step.interval[1]
    # nominal 95% of 180, four binomial standard errors
    assert covered >= 180 * 0.95 - 4 * np.sqrt(180 * 0.95 * 0.05)


def test_deep_on_a_stack(tmp_path):
    out = tmp_path / "run"
    options = {"depth": 3, "dim": 3, "sizes": [32, 64, 128, 256], "replicates": 8, "seed": 1}
    found = esscher.deep_stack(out=out, **options)
    assert found.complete
    assert found.is_gaussian
    json.dumps(found.to_dict(), allow_nan=False)
    assert [layer.layer for layer in found.layers] == [0, 1, 2]
    for layer in found.layers:
        assert set(layer.error) == set(layer.fit) == {"map", "mean", "cov"}
        assert layer.fit["map"].sharp == pytest.approx(0.5)
    assert len(found.table()) == 3 * 3 * 4
    assert len(found.limit_table()) == 3
    assert found.end_table().empty
    assert esscher.load(out).to_dict() == found.to_dict()
    # a replicate that is gone is computed again, to the same
    for kind in ("json", "parquet"):
        (out / "parts" / f"replicate-5.{kind}").unlink()
    assert not esscher.load(out).complete
    again = esscher.deep_stack(out=out, **options)
    assert again.to_dict() == found.to_dict()


def test_one_replicate_has_no_intervals():
    found = esscher.deep_stack(depth=1, dim=2, sizes=[16, 64], replicates=1)
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.layers[0].error["map"].interval == (None, None)
    assert found.limit[0].agrees is None
    assert "is undecided: one replicate" in found.headline


def test_fewer_replicates_agree_less_often():
    """The margin is a tenth of a variance: what cannot see that far does not agree."""
    _, limit = random_stack(2, 3, 0.5)
    exact = np.stack(
        [moment_entries(limit.means[i + 1], limit.covariances[i + 1]) for i in range(2)]
    )
    noise = random_stream(0, "agree").standard_normal((48, 2, *exact.shape))
    # the bias of the first order is cancelled
    moments = exact + 0.02 * noise + (3.0 / np.array(SIZES))[None, :, None, None]
    for part, verdict in ((moments, True), (moments[:4], None), (moments + 0.05, False)):
        layers = compare_with_recursion(part, SIZES, limit, [None, None])
        assert [layer.agrees for layer in layers] == [verdict] * 2
        if verdict is None:
            assert all("10% is the margin" in layer.doubt for layer in layers)


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
