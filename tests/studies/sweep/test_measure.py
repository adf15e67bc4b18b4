"""Sweeps: what is measured, and that it depends on configuration and seed alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import esscher
from esscher.math.heads import Head
from esscher.math.simulation import direct_errors
from esscher.studies.sweep import sweep
from esscher.studies.sweep.measure import METRICS, PURPOSE, scaled_head
from tests.studies.sweep.small import assert_same

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
    assert curve.study.query_count == (
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
            query_count=curve.study.query_count,
            purpose=PURPOSE,
        )
        expected = {
            "mean": np.linalg.norm(direct.mean, axis=-1),
            "cov": np.linalg.norm(direct.cov, axis=(-2, -1)),
            "map": np.sqrt(direct.map_square),
        }
        for metric, errors in expected.items():
            np.testing.assert_allclose(curve.raw(metric)[s], errors, rtol=1e-9, atol=1e-12)


def test_single_precision_is_close() -> None:
    head = esscher.gaussian_head(0.8, 3)
    single = sweep(head, SIZES, 2, 0)
    double = sweep(head, SIZES, 2, 0, dtype="float64")
    for metric in METRICS:
        np.testing.assert_allclose(single.raw(metric), double.raw(metric), rtol=1e-4)
        assert not np.array_equal(single.raw(metric), double.raw(metric))


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
    np.testing.assert_array_equal(few.raw("map"), many.raw("map")[:, :2])
    other = sweep(head, SIZES, 2, 2)
    assert not np.array_equal(few.raw("map"), other.raw("map"))
    assert len(np.unique(many.raw("map")[0, :, 0])) == 4


def test_a_sweep_prints_and_converts_itself() -> None:
    curve = sweep(esscher.gaussian_head(0.5, 2), SIZES, 3, 4, alpha=[1.0, 2.0])
    frame = curve.table()
    assert len(frame) == 6
    np.testing.assert_allclose(frame["map"].iloc[:3], curve.raw("map")[0].mean(axis=0))
    noise = curve.raw("map")[1].std(axis=0, ddof=1) / 3**0.5
    np.testing.assert_allclose(frame["map_standard_error"].iloc[3:], noise)
    raw = curve.table(raw=True)
    row = raw[(raw["alpha"] == 2.0) & (raw["replicate"] == 1) & (raw["n"] == 40)]
    assert row["cov"].item() == curve.raw("cov")[1, 1, 1]
    assert float(curve.to_xarray()["cov"].sel(alpha=2.0, replicate=1, n=40)) == row["cov"].item()
    with pytest.raises(esscher.InputError, match="median"):
        curve.raw("median")


def test_sampled_limits_carry_a_note() -> None:
    head = esscher.law_head(esscher.laws.standard_law("mixture", 2), horizon=0.5)
    curve = sweep(head, [5, 10], 1, 0)
    assert "sampling" in curve.notes[0]
    assert not sweep(head, [5, 10], 1, 0, queries="population").notes


BAD = [
    ({"sizes": [10, 5]}, "increasing"),
    ({"sizes": [1, 5]}, "n = 1"),
    ({"alpha": [1.0, -1.0]}, "each entry must be a number above 0"),
    ({"alpha": [1.0, 1.0]}, "once"),
    ({"alpha": []}, r"alpha is \[\]; it must be"),
    ({"device": "cuda"}, "'cuda'"),
    ({"precision": 0.1, "sizes": [10]}, "2 sizes"),
    ({"precision": 0.1, "max_replicates": 1}, "max_replicates is 1"),
    ({"max_replicates": 10}, "needs a precision"),
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
