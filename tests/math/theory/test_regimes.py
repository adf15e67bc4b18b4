"""Regimes: boundaries against the theory page, exact curves on both sides, the chart."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from esscher import InputError, gaussian_head
from esscher.math.theory import (
    boundaries,
    exponents,
    head_regime,
    log_burn_in,
    regime,
    softmax_moments,
)
from esscher.math.theory.regimes import CONTEXT_WINDOWS, positions, regime_indices, typical_strength
from esscher.math.theory.regimes_chart import draw_regimes, edges_of
from esscher.studies.probe.regimes import (
    count_words,
    order_check,
    regime_counts,
    regime_table,
)
from esscher.studies.probe.result import Probe
from tests.show.drawn import panel_rows, texts
from tests.studies.probe.made import made_head, made_probe


def test_boundaries_are_where_the_regime_changes() -> None:
    strength = 2.5
    edges = boundaries(0.8, strength)
    assert (edges.thaw, edges.burn_in, edges.parametric) == (3.125, 6.25, 12.5)
    names = [
        regime(0.8, strength, np.exp(log)).name
        for log in (edges.thaw - 0.01, edges.thaw + 0.01, edges.parametric - 0.01, 12.51)
    ]
    assert names == ["frozen", "stable", "stable", "parametric"]
    assert boundaries(1.2, strength).parametric == float("inf")
    assert regime(1.2, strength, 1e300).name == "stable"


@pytest.mark.parametrize("horizon", [1.3, 2.0, 4.0])
def test_long_sequences_have_the_asymptotic_exponent_and_tail(horizon: float) -> None:
    found = regime(horizon, horizon, 1e300)
    sharp = exponents(horizon)
    assert found.exponent == pytest.approx(sharp.mean)
    assert found.tail_index == pytest.approx(sharp.tail_index)


def test_head_is_seen_through_its_moments() -> None:
    head = gaussian_head(spectrum=[0.9, 0.5, 0.5], tau=[0.3, 0.4, 0.0])
    strength = typical_strength(head.frobenius, float(np.linalg.norm(head.tau)))
    assert boundaries(head.horizon, strength).burn_in == pytest.approx(log_burn_in(head))
    assert head_regime(head, 1e6) == regime(0.9, strength, 1e6)


def test_exact_moments_change_where_the_boundaries_say() -> None:
    """One query: its error is parametric far beyond exp(2 s^2), frozen far below exp(s^2/2)."""
    s = 3.0
    beyond, below = np.exp(2 * s * s + 6), np.exp(s * s / 2 - 3.5)
    late = softmax_moments(np.array([beyond]), np.array([s]))
    assert regime(0.0, s, float(beyond)).name == "parametric"
    # the error is the Gaussian one, (1 + s^2) e^{s^2} / n
    assert late.squared_error[0, 0] * beyond == pytest.approx((1 + s * s) * np.exp(s * s), rel=0.02)
    early = softmax_moments(np.array([np.round(below)]), np.array([s]))
    assert regime(0.0, s, float(below)).name == "frozen"
    # more than half of the attention is on one key, 1/sum p^2 < 2
    assert early.collision[0, 0] > 0.5
    middle = softmax_moments(np.array([np.exp(s * s)]), np.array([s]))
    assert regime(0.0, s, float(np.exp(s * s))).name == "stable"
    # many keys, and far from the asymptotic formula, which would say 1 + s^2
    assert middle.collision[0, 0] < 0.25
    assert middle.squared_error[0, 0] < 0.1 * (1 + s * s)


def test_positions_broadcast_and_refuse() -> None:
    x = positions([0.5, 2.0], [1.0, 2.0], np.array([[1e3], [1e6]]))
    assert x.shape == (2, 2)
    assert x[1, 1] == pytest.approx(0.8)
    assert regime_indices(np.array([0.0, 0.5, 0.51, 1.0])).tolist() == [0, 0, 1, 2]
    assert regime(0.0, 0.0, 100).tail_index == float("inf")
    assert regime(0.0, 0.0, 100).to_dict()["tail_index"] is None
    with pytest.raises(InputError, match="at least 2"):
        positions(1.0, 1.0, 1.0)
    with pytest.raises(InputError, match="negative"):
        positions(-1.0, 1.0, 10.0)


def probe_of(strengths: list[float], horizons: list[float]) -> Probe:
    """A stored probe reduced to what the regimes read; effective keys fall with the strength."""
    return made_probe(
        [
            made_head(i, horizon=h, frobenius=s, tau=0.0, ess=1000 * np.exp(-s), n=1000)
            for i, (s, h) in enumerate(zip(strengths, horizons, strict=True))
        ]
    )


def test_heads_are_counted_per_window() -> None:
    # sqrt(2 ln n) is 4.25 at 8k, 4.85 at 128k, 5.26 at 1M, 5.68 at 10M
    probe = probe_of([1.0, 2.3, 4.5, 6.0, 1.5], [0.5, 0.9, 0.9, 2.0, 1.5])
    table = regime_table(probe)
    assert list(table["8k"]) == ["parametric", "stable", "frozen", "frozen", "stable"]
    assert list(table["10M"]) == ["parametric", "parametric", "stable", "frozen", "stable"]
    counts = regime_counts(probe)
    assert [row["n"] for row in counts] == list(CONTEXT_WINDOWS.values())
    assert (counts[0]["parametric"], counts[0]["stable"], counts[0]["frozen"]) == (1, 2, 2)
    # 4.5 lies within 6% of the boundary 4.245, 2.3 within 9% of half of it
    assert counts[0]["ranges"] == {"parametric": [1, 1], "stable": [2, 2], "frozen": [2, 2]}
    close = regime_counts(probe_of([4.4], [0.5]))[0]
    assert close["ranges"]["frozen"] == [0, 1]
    assert count_words(close, "frozen") == "1 (0 to 1)"
    check = order_check(probe)
    assert check["correlation"] == pytest.approx(-1)
    assert check["low"] <= check["correlation"] <= check["high"]
    with pytest.raises(InputError, match="at least 4 heads"):
        order_check(probe_of([1.0], [0.5]))
    with pytest.raises(InputError, match="no measurements yet"):
        regime_table(probe_of([], []))


def test_chart_shows_planes_windows_and_heads(capfd: pytest.CaptureFixture[str]) -> None:
    heads = {"one": pd.DataFrame({"H": [1.4, 0.5, 30.0], "S": [2.0, 1.0, 40.0]})}
    chart = draw_regimes(heads, (1.5, 2.5), "a title")
    written = texts(chart)
    for word in (
        *("parametric", "stable", "frozen", "burn-in", "8k", "128k", "1M", "10M", "this head"),
        *("one", "a title", "error ~ n^-0.1", "one direction (S = H)"),
    ):
        assert word in written
    for number, name, mark in ((0, "H", 1.5), (2, "S", 2.5)):
        lines = panel_rows(chart, number, "line")
        assert {row["value"] for row in lines if row["line"] == "this head"} == {mark}
        windows = {row["name"]: row["at"] for row in panel_rows(chart, number, "at")}
        assert windows == CONTEXT_WINDOWS
        shown = panel_rows(chart, number + 1, "share")
        assert [row["value"] for row in shown] == sorted(heads["one"][name])
        assert [row["hollow"] for row in shown] == [False, True, True]
    assert len(draw_regimes().to_dict()["concat"]) == 2
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["H", "S"])
def test_bands_of_the_chart_are_the_regimes(name: str) -> None:
    n = np.geomspace(1e2, 1e12, 30)
    for i, edge in enumerate(edges_of(name, n)):
        for factor, index in ((0.999, i), (1.001, i + 1)):
            horizon = factor * edge if name == "H" else 0.0
            found = regime_indices(positions(horizon, factor * edge, n))
            assert found.tolist() == [index] * len(n)


def test_lines_of_the_chart_have_their_exponent() -> None:
    for row in panel_rows(draw_regimes(), 0, "line"):
        beta = float(row["line"].partition("n^-")[2])
        found = regime(row["value"], row["value"], row["n"])
        assert found.exponent == pytest.approx(beta, abs=2e-5)
