"""Deep Gaussian stacks: the recursion against simulation and against brute composition."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.errors import InputError, UndefinedError
from esscher.math.heads import weight_head
from esscher.math.laws import Gaussian, Signs
from esscher.math.limits import AttentionLayer, gaussian_stack

DIM, KEY = 6, 3


def _layer(rng, residual):
    """Random weights and biases, small enough for the covariance to stay of order 1."""
    parts = {}
    for name in ("query", "key", "value"):
        parts[name] = rng.standard_normal((KEY, DIM)) / np.sqrt(DIM)
        parts[f"{name}_bias"] = 0.3 * rng.standard_normal(KEY)
    output = rng.standard_normal((DIM, KEY)) / DIM
    return AttentionLayer(weight_head(Gaussian(dim=DIM), **parts), output, residual)


def test_depth_12_against_brute_composition():
    """Write every layer out with numpy from the raw weights."""
    rng = np.random.default_rng(1)
    stack = [_layer(rng, residual=0.95) for _ in range(12)]
    factor = rng.standard_normal((DIM, DIM)) / 2
    entering = Gaussian(rng.standard_normal(DIM), factor @ factor.T)
    result = gaussian_stack(stack, entering)
    m, sigma = entering.mean, entering.covariance
    for layer in stack:
        head, o = layer.head, layer.output
        a_matrix = head.key_weight.T @ head.query_weight / np.sqrt(KEY)
        a = head.key_weight.T @ head.query_bias / np.sqrt(KEY)
        slope = layer.residual * np.eye(DIM) + o @ head.value_weight @ sigma @ a_matrix
        offset = o @ (head.value_weight @ (m + sigma @ a) + head.value_bias)
        m, sigma = slope @ m + offset, slope @ sigma @ slope.T
    np.testing.assert_allclose(result.means[-1], m, rtol=1e-10)
    np.testing.assert_allclose(result.covariances[-1], sigma, rtol=1e-10)


def test_scalar_recursion_at_depth_30():
    """d = 1: s -> s (r + o A s)^2 with s the variance; the horizon of each layer is A s."""
    head = weight_head(Gaussian(dim=1), query=[[0.4]], key=[[1.0]], scale=1.0)
    layer = AttentionLayer(head, np.array([[0.5]]), residual=0.9)
    result = gaussian_stack([layer] * 30, Gaussian(covariance=[[0.2]]))
    s = 0.2
    for i in range(30):
        assert result.covariances[i, 0, 0] == pytest.approx(s, rel=1e-12)
        assert result.horizons[i] == pytest.approx(0.4 * s, rel=1e-12)
        s = s * (0.9 + 0.5 * 0.4 * s) ** 2


def test_growth_beyond_floating_point_names_the_layer():
    """Without a brake s -> s (1 + s)^2 ~ s^3: doubly exponential in depth."""
    head = weight_head(Gaussian(dim=1), query=[[1.0]], key=[[1.0]], scale=1.0)
    stack = [AttentionLayer(head, np.eye(1))] * 24
    s, last = 1.0, 0
    while s < 1e154:  # the horizon squares the variance
        s, last = s * (1 + s) ** 2, last + 1
    with pytest.raises(UndefinedError, match=f"layer {last} overflows"):
        gaussian_stack(stack, Gaussian(dim=1))


def test_layers_that_do_not_fit_are_refused():
    head = weight_head(Gaussian(dim=2), query=np.eye(2), key=np.eye(2))
    good = AttentionLayer(head, np.eye(2))
    for build, message in (
        (lambda: AttentionLayer(head, np.eye(3)), r"must be \(2, 2\)"),
        (lambda: gaussian_stack([good], Signs(2)), "Gaussian tokens only"),
        (lambda: gaussian_stack([good], Gaussian(dim=3)), r"live in R\^3"),
    ):
        with pytest.raises(InputError, match=message):
            build()
