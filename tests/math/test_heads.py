"""Heads: conventions, invariances, the three ways to build one, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import esscher
from esscher.core.validation import Array


def random_head(seed: int, d: int = 5, d_k: int = 3, d_v: int = 2) -> esscher.theory.WeightHead:
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((d, d)) / np.sqrt(d)
    return esscher.weight_head(
        esscher.laws.Gaussian(rng.standard_normal(d), root @ root.T + 0.1 * np.eye(d)),
        query=0.4 * rng.standard_normal((d_k, d)),
        key=0.4 * rng.standard_normal((d_k, d)),
        value=rng.standard_normal((d_v, d)),
        query_bias=0.2 * rng.standard_normal(d_k),
        key_bias=rng.standard_normal(d_k),
        value_bias=rng.standard_normal(d_v),
    )


def rotation(rng: np.random.Generator, d: int) -> Array:
    return np.asarray(stats.ortho_group.rvs(d, random_state=rng))


def numbers(head: esscher.Head) -> dict[str, Array]:
    """What must not change under any of the symmetries."""
    return {
        "horizon": np.array(head.horizon),
        "frobenius": np.array(head.frobenius),
        "spectrum": head.spectrum,
        "tau": np.array(np.linalg.norm(head.tau)),
        "mean": esscher.theory.mean_constant(head, "tokens"),
        "cov": np.array(esscher.theory.cov_constant(head, "tokens")),
        "map": np.array(esscher.theory.map_constant(head)),
    }


def test_the_scale_of_the_logits_belongs_to_a() -> None:
    head = random_head(0)
    expected = head.key_weight.T @ head.query_weight / np.sqrt(3)
    np.testing.assert_allclose(head.A, expected)
    root = np.linalg.cholesky(head.law.covariance)
    m = root.T @ head.A @ root  # same singular values as Sigma^{1/2} A Sigma^{1/2}
    np.testing.assert_allclose(
        head.spectrum, np.linalg.svd(m, compute_uv=False)[: head.key_dim], rtol=1e-10
    )
    assert head.horizon == pytest.approx(np.linalg.norm(m, 2))
    assert head.frobenius == pytest.approx(np.linalg.norm(m))
    assert head.psi() == pytest.approx(head.horizon**2)
    assert head.psi("one-sided") == pytest.approx(
        np.linalg.norm(head.law.covariance, 2) * np.linalg.norm(root.T @ head.A, 2) ** 2
    )
    assert head.psi() <= head.psi("one-sided")


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_symmetries_change_nothing(seed: int) -> None:
    head = random_head(seed)
    # the constants of map and mean exist below H^2 = 1/2 only
    head = head.scaled(0.6 / head.horizon)
    rng = np.random.default_rng(seed + 1)
    turn = rotation(rng, 5)
    law = head.law
    rotated = replace(
        head,
        law=esscher.laws.Gaussian(turn @ law.mean, turn @ law.covariance @ turn.T),
        query_weight=head.query_weight @ turn.T,
        key_weight=head.key_weight @ turn.T,
        value_weight=head.value_weight @ turn.T,
    )
    mix = rng.standard_normal((3, 3)) + 2 * np.eye(3)  # q -> L'q, k -> L^{-1}k keeps every logit
    rescaled = replace(
        head,
        query_weight=mix.T @ head.query_weight,
        key_weight=np.linalg.solve(mix, head.key_weight),
        query_bias=mix.T @ head.query_bias,
        key_bias=np.linalg.solve(mix, head.key_bias),
    )
    biased = replace(
        head,
        key_bias=head.key_bias + rng.standard_normal(3),
        value_bias=head.value_bias + rng.standard_normal(2),
    )
    base = numbers(head)
    for other in (rotated, rescaled, biased):
        for name, value in numbers(other).items():
            np.testing.assert_allclose(value, base[name], rtol=1e-6, atol=1e-9, err_msg=name)


def test_key_biases_do_not_change_the_limit_but_value_biases_shift_it() -> None:
    head = random_head(4)
    moved = replace(head, key_bias=head.key_bias + 3.0, value_bias=head.value_bias + 1.0)
    tilts = np.random.default_rng(0).standard_normal((7, 3))
    np.testing.assert_allclose(moved.limit_map(tilts), head.limit_map(tilts) + 1.0)


def test_target_spectrum_over_any_law() -> None:
    rng = np.random.default_rng(9)
    root = rng.standard_normal((3, 3))
    law = esscher.laws.Gaussian(rng.standard_normal(3), root @ root.T + 0.1 * np.eye(3))
    head = esscher.law_head(law, spectrum=[1.5, 0.7, 0.2], tau=[0.5, 0.0, -0.1])
    np.testing.assert_allclose(head.spectrum, [1.5, 0.7, 0.2])
    np.testing.assert_allclose(head.tau, [0.5, 0.0, -0.1], atol=1e-12)
    np.testing.assert_allclose(
        esscher.law_head(esscher.laws.Cube(4, half_width=2.0), horizon=0.9).spectrum, [0.9] * 4
    )


def test_gaussian_head_defaults() -> None:
    head = esscher.gaussian_head(horizon=1.5, dim=8)
    assert head.key_dim == 8
    np.testing.assert_allclose(head.spectrum, np.full(8, 1.5))
    assert esscher.gaussian_head(1.5).key_dim == 1
    assert head.is_gaussian
    assert "horizon=1.5" in repr(head)
    np.testing.assert_allclose(head.scaled(0.5).spectrum, np.full(8, 0.75))


def test_array_head_is_the_empirical_law() -> None:
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal((40, d)) for d in (3, 3, 2))
    head = esscher.array_head(q, k, v)
    weights = np.exp(q @ k.T / np.sqrt(3))
    weights /= weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(head.limit_map(q / np.sqrt(3)), weights @ v, rtol=1e-12)
    np.testing.assert_allclose(head.moments.cov_tk, np.cov(q.T, k.T, bias=True)[:3, 3:] / 3**0.5)
    rows = {tuple(row) for row in k}
    assert all(tuple(row) in rows for row in head.sample(100, rng).keys)
    with pytest.raises(esscher.UndefinedError, match="two-sided"):
        head.psi("one-sided")


def test_singular_keys_live_in_their_range() -> None:
    head = esscher.weight_head(
        esscher.laws.Gaussian(dim=3), query=np.eye(3) * 0.5, key=np.diag([1.0, 1.0, 0.0]), scale=1.0
    )
    assert len(head.spectrum) == 2
    assert esscher.theory.mean_constant(head, "tokens").shape == (3, 3)


def test_what_is_refused() -> None:
    law = esscher.laws.Gaussian(dim=3)
    weight = np.eye(3)
    bad = [
        (lambda: esscher.gaussian_head(-1.0), "horizon"),
        (lambda: esscher.gaussian_head(float("nan")), "horizon"),
        (lambda: esscher.gaussian_head(), "exactly one"),
        (lambda: esscher.gaussian_head(1.0, spectrum=[1.0]), "exactly one"),
        (lambda: esscher.gaussian_head(1.0, dim=0), "dim"),
        (lambda: esscher.gaussian_head(dim=3, spectrum=[1.0, 2.0]), "dimension 2"),
        (lambda: esscher.gaussian_head(1.0, dim=3, tau=[1.0, 2.0]), "tau"),
        (lambda: esscher.gaussian_head(matrix=[[1.0, np.inf], [0.0, 1.0]]), "entry"),
        (lambda: esscher.weight_head(law, query=weight, key=weight[:2]), "key weight"),
        (lambda: esscher.weight_head(law, query=weight[:, :2], key=weight[:, :2]), "dimension 3"),
        (lambda: esscher.weight_head(law, query=weight, key=weight, key_bias=[1.0]), "key bias"),
        (lambda: esscher.weight_head(law, query=weight, key=weight, scale=np.inf), "scale"),
        (lambda: esscher.array_head(weight, weight[:2], weight), "shape"),
        (lambda: esscher.array_head(weight[:1], weight[:1], weight[:1]), "at least 2"),
        (lambda: esscher.gaussian_head(1.0).psi("three-sided"), "two-sided"),
        (
            lambda: esscher.law_head(esscher.laws.Gaussian(covariance=[[1, 1], [1, 1]]), horizon=1),
            "sing",
        ),
        (lambda: esscher.laws.Gaussian(covariance=[[1.0, 0.5], [0.2, 1.0]]), "not symmetric"),
        (lambda: esscher.laws.Gaussian(covariance=[[1.0, 2.0], [2.0, 1.0]]), "eigenvalue"),
    ]
    for build, words in bad:
        with pytest.raises(esscher.InputError, match=words):
            build()
