"""Sweeps: what is measured, and that it depends on configuration and seed alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.direct import direct_errors

import esscher
from esscher.engine.attention.outputs import attention_outputs
from esscher.math.heads import Head
from esscher.studies.sweep import SweepStudy, sweep
from esscher.studies.sweep.measure import (
    PURPOSE,
    measured_head,
    moments_of_rows,
    reference_outputs,
    scaled_head,
)
from esscher.studies.sweep.study import METRICS
from tests.studies.sweep.small import assert_same, errors

SIZES = [10, 40, 130]


def heads() -> dict[str, Head]:
    rng = np.random.default_rng(5)
    q, k, v = rng.standard_normal((60, 3)), rng.standard_normal((60, 3)), np.eye(60, 2)
    return {
        "gaussian": esscher.gaussian_head(spectrum=[1.2, 0.4, 0.1], tau=0.5),
        "sphere": esscher.law_head(esscher.laws.standard_law("sphere", 3), horizon=1.0),
        "arrays": esscher.array_head(q, k, v),
    }


@pytest.mark.parametrize("queries", ["tokens", "population"])
@pytest.mark.parametrize("name", ["gaussian", "sphere", "arrays"])
@pytest.mark.parametrize("query_count", [None, 25])
def test_errors_are_those_of_the_direct_simulator(
    queries: str, name: str, query_count: int | None
) -> None:
    """On the same tokens, to rounding, with each scale as a head of its own."""
    head, scales = heads()[name], [1.0, 0.3]
    options = {"queries": queries, "query_count": query_count, "dtype": "float64"}
    curve = sweep(head, SIZES, 2, 3, alpha=scales, **options)  # type: ignore[arg-type]
    assert curve.setup.settings.query_count == (
        1024 if (queries, query_count) == ("population", None) else query_count
    )
    for s, alpha in enumerate(scales):
        scaled = scaled_head(head, alpha)
        limit = esscher.limit_moments(scaled, seed=3)
        assert isinstance(limit, esscher.theory.OutputMoments)
        direct = direct_errors(
            scaled,
            SIZES,
            replicates=2,
            seed=3,
            queries=queries,
            limit=(limit.mean, limit.covariance),
            query_count=curve.setup.settings.query_count,
            purpose=PURPOSE,
        )
        expected = {
            "mean": np.linalg.norm(direct.mean, axis=-1),
            "cov": np.linalg.norm(direct.cov, axis=(-2, -1)),
            "map": np.sqrt(direct.map_square),
        }
        for metric, wanted in expected.items():
            np.testing.assert_allclose(errors(curve, metric)[s], wanted, rtol=1e-9, atol=1e-12)


def test_single_precision_is_close() -> None:
    head = esscher.gaussian_head(0.8, 3)
    single = sweep(head, SIZES, 2, 0)
    double = sweep(head, SIZES, 2, 0, dtype="float64")
    for metric in METRICS:
        np.testing.assert_allclose(errors(single, metric), errors(double, metric), rtol=1e-4)
        assert not np.array_equal(errors(single, metric), errors(double, metric))


def test_workers_agree_to_the_bit(tmp_path: Path) -> None:
    # more than one block of queries and of keys
    head, sizes = esscher.gaussian_head(1.1, 4), [100, 1700]
    alone = sweep(head, sizes, 3, 1, alpha=[0.5, 1.0])
    many = sweep(head, sizes, 3, 1, alpha=[0.5, 1.0], workers=2, out=tmp_path / "run")
    assert_same(alone, many)


def test_replicates_do_not_depend_on_their_number_but_on_the_seed() -> None:
    head = esscher.gaussian_head(1.1, 2)
    few = sweep(head, SIZES, 2, 1)
    many = sweep(head, SIZES, 4, 1)
    np.testing.assert_array_equal(errors(few, "map"), errors(many, "map")[:, :2])
    other = sweep(head, SIZES, 2, 2)
    assert not np.array_equal(errors(few, "map"), errors(other, "map"))
    assert len(np.unique(errors(many, "map")[0, :, 0])) == 4


def test_means_of_replicates() -> None:
    curve = sweep(esscher.gaussian_head(0.5, 2), SIZES, 3, 4, alpha=[1.0, 2.0])
    raw, at = errors(curve, "map")[1], {"metric": "map", "alpha": 2.0}
    np.testing.assert_allclose(curve["error"].sel(at | {"bound": "value"}), raw.mean(axis=0))
    frame = curve.table("errors")
    assert frame["size"].tolist() == SIZES * 2
    np.testing.assert_allclose(frame["error_map"].iloc[3:], raw.mean(axis=0))
    rows = curve.table("replicates")
    row = rows[(rows["alpha"] == 2.0) & (rows["replicate"] == 1) & (rows["size"] == 40)]
    assert row["replicate_error_cov"].item() == errors(curve, "cov")[1, 1, 1]


def test_rates_are_fits_of_the_replicates() -> None:
    """With the published exponents beside them, and the predicted one if there is one."""
    head = esscher.gaussian_head(0.9, 2)
    curve = sweep(head, [16, 32, 64, 128], 8, alpha=(0.5, 1.0), predict=True)
    frame = curve.table().set_index(["alpha", "metric"])
    for alpha, metric in frame.index:
        rate, row = curve.rate(metric, alpha), frame.loc[(alpha, metric)]
        raw = curve["replicate_error"].sel(metric=metric, alpha=alpha)
        known = curve["predicted_error"].sel(metric=metric, alpha=alpha, tokens=[16, 32, 64, 128])
        alone = esscher.fit_rate(raw, raw["size"], seed=0, predicted=known)
        assert rate.exponent == alone.exponent == row["exponent"]
        assert rate.interval == (row["exponent_low"], row["exponent_high"])
        assert rate.predicted == alone.predicted == row["predicted"]
        assert rate.verdict == alone.verdict == row["verdict"]
        assert rate.predicted_curve[0][-1] == 128 * 4**6
    assert curve.rate("map", 1.0, level=0.5).level == 0.5
    for arguments, words in ((("median", 1.0), "metric is 'median'"), (("map",), "alpha is None")):
        with pytest.raises(esscher.InputError, match=words):
            curve.rate(*arguments)


def test_sampled_limits_carry_a_note() -> None:
    head = esscher.law_head(esscher.laws.standard_law("mixture", 2), horizon=0.5)
    curve = sweep(head, [5, 10], 1, 0)
    assert "Note: the limit is known by sampling: its mean to 0." in curve.headline
    assert "Note" not in sweep(head, [5, 10], 1, 0, queries="population").headline


# -- finite references: attention over tokens that were drawn once and stand for a law


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("shape", [(3, 3), (5, 2), (2, 5)])
def test_outputs_are_those_of_dense_attention(
    dtype: str, tolerance: float, shape: tuple[int, int]
) -> None:
    rng = np.random.default_rng(0)
    tilts, keys = rng.standard_normal((2, 70, shape[0]))
    values = 10 + rng.standard_normal((70, shape[1]))
    outputs = attention_outputs(tilts, keys, values, scales=[0.3, 2.0], dtype=dtype)
    for s, alpha in enumerate([0.3, 2.0]):
        logits = alpha * tilts @ keys.T
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        dense = weights @ values / weights.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(outputs[s], dense, atol=10 * tolerance)


def test_moments_of_a_finite_reference_are_exact() -> None:
    rng = np.random.default_rng(1)
    head = esscher.array_head(*rng.standard_normal((3, 50, 2)))
    outputs = reference_outputs(head, SweepStudy(head, (50,), dtype="float64").known())
    assert outputs is not None
    means, covariances = moments_of_rows(outputs)
    exact = esscher.limit_moments(head)
    np.testing.assert_allclose(means[0], exact.mean, atol=1e-13)
    np.testing.assert_allclose(covariances[0], exact.covariance, atol=1e-13)


@pytest.mark.parametrize("law", ["laplace", "student"])
@pytest.mark.parametrize("queries", ["tokens", "population"])
def test_laws_without_a_limit_are_compared_with_tokens(
    law: str, queries: str, tmp_path: Path
) -> None:
    head = esscher.law_head(esscher.laws.standard_law(law, 2), horizon=0.5)
    curve = sweep(head, SIZES, 4, 0, queries=queries, out=tmp_path / "run")
    settings = curve.setup.settings
    assert settings.reference_tokens == 4 * SIZES[-1]
    assert "no infinite-token limit" in curve.headline
    assert "520 tokens drawn once" in curve.headline
    assert esscher.load(tmp_path / "run").headline == curve.headline
    # it is the sweep of a head from those tokens
    same = sweep(measured_head(head, settings), SIZES, 4, 0, queries=queries)
    assert curve["replicate_error"].equals(same["replicate_error"])
    assert (curve["error"] > 0).all()


def test_a_reference_can_be_asked_for_where_there_is_a_limit() -> None:
    """Against its own tokens the error falls on; it is no longer the error against the law."""
    head = esscher.gaussian_head(0.5, 2)
    assert sweep(head, SIZES, 3, 0).setup.settings.reference_tokens is None
    curve = sweep(head, SIZES, 3, 0, reference_tokens=200)
    assert curve.setup.settings.reference_tokens == 200
    assert "Note: errors are against attention over 200 tokens drawn once" in curve.headline


BAD = [
    ({"sizes": [10, 5]}, "increasing"),
    ({"sizes": [1, 5]}, "n = 1"),
    ({"alpha": [1.0, -1.0]}, "each entry must be a number above 0"),
    ({"alpha": [1.0, 1.0]}, "once"),
    ({"alpha": []}, r"alpha is \[\]; it must be"),
    ({"device": "cuda"}, "'cuda'"),
    ({"head": "gaussian"}, "gaussian_head"),
    ({"reference_tokens": 9}, "below the largest size"),
    ({"head": heads()["arrays"], "reference_tokens": 100}, "all its rows"),
]


@pytest.mark.parametrize(("change", "words"), BAD)
def test_bad_input_is_refused(change: dict[str, object], words: str, tmp_path: Path) -> None:
    arguments = {
        "head": esscher.gaussian_head(0.5),
        "sizes": [5, 10],
        "replicates": 2,
        "out": tmp_path / "run",
    }
    with pytest.raises(esscher.InputError, match=words):
        sweep(**(arguments | change))  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
