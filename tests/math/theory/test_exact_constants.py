"""Exact constants: the formulas of the theory page, the linear part, and direct simulation."""

from __future__ import annotations

import numpy as np
import pytest

import esscher
from esscher.core.validation import Array


def page_formula(m: Array, tau: Array, queries: str) -> Array:
    """``G + M + M' + C``, written with matrices as in the documentation."""
    g, identity = m @ m.T, np.eye(len(m))
    inverse = np.linalg.inv(identity - g)
    c = np.linalg.inv(identity - g @ g) + inverse @ np.outer(tau, tau) @ inverse
    c *= np.linalg.det(identity - g @ g) ** -0.5 * np.exp(tau @ inverse @ tau)
    return g + m + m.T + c if queries == "tokens" else c


@pytest.mark.parametrize("queries", ["tokens", "population"])
@pytest.mark.parametrize("with_tau", [False, True])
def test_mean_constant_is_the_page_formula(queries: str, with_tau: bool) -> None:
    rng = np.random.default_rng(3)
    m = 0.15 * rng.standard_normal((4, 4))
    tau = 0.3 * rng.standard_normal(4) if with_tau else np.zeros(4)
    sigma = rng.standard_normal((4, 4))
    sigma = sigma @ sigma.T / 4 + 0.2 * np.eye(4)
    values, vectors = np.linalg.eigh(sigma)
    root = vectors @ np.diag(np.sqrt(values)) @ vectors.T
    inverse = np.linalg.inv(root)
    v = rng.standard_normal((3, 4))
    head = esscher.weight_head(
        esscher.laws.Gaussian(mean=rng.standard_normal(4), covariance=sigma),
        query=inverse @ m @ inverse,
        key=np.eye(4),
        value=v,
        scale=1.0,
    )
    mean_tilt = inverse @ tau - head.A @ head.law.mean  # so that E[t] whitens to tau
    head = esscher.weight_head(
        head.law, query=head.A, key=np.eye(4), value=v, query_bias=mean_tilt, scale=1.0
    )
    expected = v @ root @ page_formula(m, tau, queries) @ root @ v.T
    constant = esscher.theory.mean_constant(head, queries)
    np.testing.assert_allclose(constant, expected, rtol=1e-9)


@pytest.mark.parametrize("h", [-0.7, -0.5, 0.3, 0.5, 0.7])
def test_one_dimension(h: float) -> None:
    head = esscher.gaussian_head(spectrum=[h])
    constant = esscher.theory.constants(head, "tokens")
    assert constant.mean == pytest.approx(h * h + 2 * h + (1 - h**4) ** -1.5)
    assert constant.mean_norm == pytest.approx(np.sqrt(2 / np.pi * constant.mean), rel=1e-9)


def test_map_constant_is_the_page_formula() -> None:
    s = np.array([0.5, 0.3, 0.1])
    expected = np.prod((1 - 2 * s**2) ** -0.5) * (3 + np.sum(s**2 / (1 - 2 * s**2)))
    assert esscher.theory.map_constant(esscher.gaussian_head(spectrum=s)) == pytest.approx(expected)


def _heads() -> dict[str, esscher.theory.WeightHead]:
    rng = np.random.default_rng(11)
    law = esscher.laws.Gaussian(rng.standard_normal(4), np.diag([1.0, 0.6, 0.4, 0.2]))
    weights = {
        name: 0.35 * rng.standard_normal((rows, 4))
        for name, rows in (("query", 3), ("key", 3), ("value", 2))
    }
    return {
        "values not in the span of the keys": esscher.weight_head(
            law, **weights, query_bias=0.2 * rng.standard_normal(3), key_bias=rng.standard_normal(3)
        ),
        "non-symmetric": esscher.gaussian_head(matrix=[[0.1, 0.35], [-0.2, 0.05]], tau=[0.2, 0.3]),
        "negative": esscher.gaussian_head(spectrum=[-0.4, -0.2, -0.1]),
    }


@pytest.mark.parametrize("queries", ["tokens", "population"])
@pytest.mark.parametrize("name", list(_heads()))
def test_constants_are_the_variance_of_the_linear_part(name: str, queries: str) -> None:
    """Sample the i.i.d. terms whose average the error is to first order (see ``constants``)."""
    head = _heads()[name]
    c, m = head.coupling, head.moments
    rng = np.random.default_rng(2)
    count = 400_000
    tokens = head.sample(count, rng)
    g, tau, b = c.variances, c.tau, c.loading
    # whitened keys and tilts, by the coupling's own coordinates: B eta is the regression on keys
    values, vectors = np.linalg.eigh(m.cov_kk)
    root, inverse = vectors * np.sqrt(values), vectors / np.sqrt(values)
    turn = np.linalg.eigh(root.T @ m.cov_tt @ root)[1][:, ::-1]
    eta, a = (tokens.keys - m.mean_k) @ inverse @ turn, tokens.tilts @ root @ turn
    signs = np.sign(np.sum(b * (m.cov_kv.T @ inverse @ turn), axis=0))  # eigenvectors' free signs
    eta, a = eta * signs, a * signs
    eps = tokens.values - m.mean_v - eta @ b.T
    z, ac = eta - tau, a - tau
    rho = np.exp(0.5 * np.sum(eta**2 - z**2 / (1 + g), axis=1)) / np.sqrt(np.prod(1 + g))
    k = g / (1 + g)
    term = rho[:, None] * (z / (1 + g) @ b.T + eps)
    pull, lean = (z * k) @ b.T, (z * (1 - k)) @ b.T + eps
    outer = rho[:, None, None] * (lean[:, :, None] * pull[:, None, :])
    square = outer + outer.transpose(0, 2, 1) - 2 * rho[:, None, None] * ((b * k) @ b.T)
    if queries == "tokens":
        term = term + ac @ b.T
        square = square + (ac @ b.T)[:, :, None] * (ac @ b.T)[:, None, :] - (b * g) @ b.T
    for sample, exact in (
        (np.sum(term**2, axis=1), np.trace(esscher.theory.mean_constant(head, queries))),
        (np.sum(square**2, axis=(1, 2)), esscher.theory.cov_constant(head, queries)),
    ):
        error = sample.std() / np.sqrt(count)
        assert error < 0.05 * exact  # the comparison means something
        assert abs(sample.mean() - exact) < 4 * error


def test_there_is_no_constant_beyond_the_parametric_regime() -> None:
    head = esscher.gaussian_head(1.2)
    with pytest.raises(esscher.UndefinedError, match=r"H = 1\.2"):
        esscher.theory.mean_constant(head, "tokens")
    with pytest.raises(esscher.UndefinedError, match=r"H = 1\.2"):
        esscher.theory.cov_constant(head, "tokens")
    with pytest.raises(esscher.UndefinedError, match="needs H"):
        esscher.theory.map_constant(esscher.gaussian_head(0.8))
    assert esscher.theory.constants(head).mean is None
    with pytest.raises(esscher.InputError, match="population"):
        esscher.theory.mean_constant(head, "keys")
