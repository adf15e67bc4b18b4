"""Charts of experiments that are no sweeps show the numbers of their tables."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from esscher.math.theory import exponents
from esscher.studies.reproduce import ball, hardmax, onepass, universality
from tests.show.drawn import panel_rows, rows, texts


def records(chart, panel, *fields):
    return pd.DataFrame(panel_rows(chart, panel, *fields))


def test_the_ball_and_its_bound(capfd):
    table = pd.DataFrame(
        [{"T": T, "n": n, "measured": T / n, "standard_error": 0.1 * T / n, "bound": 10 * T}
         for T in (1.0, 4.0, 16.0) for n in (100, 1000)]
    )  # fmt: skip
    chart = ball._draw(table)
    written = texts(chart)
    assert {"1", "4", "16", "measured", "bound", "size of the tokens", "at n = 1,000"} <= {*written}
    assert capfd.readouterr().err == ""
    for panel, part in ((0, table), (1, table[table["n"] == 1000])):
        shown = records(chart, panel, "kind").drop_duplicates(["radius", "n", "kind"])
        for kind in ("measured", "bound"):
            own = shown[shown["kind"] == kind].sort_values(["radius", "n"])
            np.testing.assert_allclose(own["error"], part[kind], rtol=1e-5)
        own = shown[shown["kind"] == "measured"].sort_values(["radius", "n"])
        np.testing.assert_allclose(own["high"], 1.2 * part["measured"], rtol=1e-5)


def test_hardmax(capfd):
    table = pd.DataFrame(
        [{"d": d, "n": n, "simulated": 1 / n, "standard_error": 0.1 / n, "exact": 1.1 / n,
          "leading": 2 / n} for d in (1, 3) for n in (1e3, 1e6)]
    )  # fmt: skip
    fits = pd.DataFrame({"d": [1, 3], "exponent": [0.5, 1.0], "low": [0.4, 0.8],
                         "high": [0.6, 1.3], "exact_on_range": [0.52, 0.9],
                         "asymptotic": [0.5, 1.0]})  # fmt: skip
    chart = hardmax._draw(table, fits)
    assert {hardmax.FITTED, hardmax.EXACT, hardmax.CONJECTURE, "exact"} <= set(texts(chart))
    assert capfd.readouterr().err == ""
    simulated = records(chart, 0, "low").sort_values(["d", "n"])
    np.testing.assert_allclose(simulated["error"], table["simulated"], rtol=1e-5)
    np.testing.assert_allclose(simulated["low"], 0.8 * table["simulated"], rtol=1e-5)
    lines = records(chart, 0, "line").sort_values(["line", "d", "n"])
    np.testing.assert_allclose(lines["error"], [*table["exact"], *table["leading"]], rtol=1e-5)
    powers = records(chart, 1, "power").sort_values(["kind", "d"])
    wanted = [*fits["asymptotic"], *fits["exact_on_range"], *fits["exponent"]]
    np.testing.assert_allclose(powers["power"], wanted, rtol=1e-5)


def test_skill_of_one_pass_has_an_interval():
    """Swept exponents known exactly, passes that all agree: an interval without width."""
    points = [(d, h) for d in (1, 8) for h in (0.5, 2.0)]
    swept = np.array([0.5, 0.4, 0.45, 0.3])
    table = pd.DataFrame(
        [{"d": d, "H": h, "n": 100, "draw": draw, "khat": 0.5, "exponent": 0.4, "swept": at,
          "swept_low": at, "swept_high": at, "khat_formula": 0.5, "predicted": at, "sharp": 0.5,
          "paper_reference": 0.2} for (d, h), at in zip(points, swept, strict=True)
         for draw in (0, 1)]
    )  # fmt: skip
    said = onepass._describe(table, np.tile(swept, (50, 1)))
    # errors of 0.1, 0, 0.05, 0.1 against 0, 0.1, 0.05, 0.2
    assert "one-pass k-hat 0.062 (0.29, 0.29 to 0.29)" in said
    assert "predicted on the same range 0.000 (1.00, 1.00 to 1.00)" in said
    noisy = swept + 0.05 * np.random.default_rng(0).standard_normal((400, 4))
    said = onepass._describe(table, noisy)
    low, high = said.partition("one-pass k-hat 0.062 (0.29, ")[2].partition(")")[0].split(" to ")
    assert float(low) < 0.2
    assert float(high) > 0.4


def test_one_pass(capfd):
    table = pd.DataFrame(
        [{"d": d, "H": h, "n": 100, "draw": draw, "khat": 0.2 * h + 0.1 * draw, "khat_low": 0.0,
          "khat_high": 1.0, "exponent": 0.5 - 0.1 * draw, "swept": 0.4 / h, "swept_low": 0.3 / h,
          "swept_high": 0.5 / h, "predicted": 0.41, "sharp": 0.45, "paper_reference": 0.3,
          "paper_bound": 0.1} for d in (1, 8) for h in (0.5, 2.0) for draw in (0, 1)]
    )  # fmt: skip
    chart = onepass._draw(table)
    assert {"d = 1", "d = 8", onepass.FORMULA, *onepass.THEORY.values()} <= set(texts(chart))
    assert capfd.readouterr().err == ""
    for row in panel_rows(chart, 0, "khat"):
        if row["what"] == onepass.FORMULA:
            assert row["khat"] == pytest.approx(exponents(row["H"]).khat, abs=1e-5)
        else:
            h = min((0.5, 2.0), key=lambda at: abs(np.log(at / row["H"])))
            assert row["khat"] == pytest.approx(0.2 * h + 0.05)
    shown = panel_rows(chart, 1, "swept", "low")
    across = [row for row in shown if row["high"] == pytest.approx(1.25 * row["swept"])]
    upright = [row for row in shown if row not in across]
    assert len(across) == len(upright) == 4
    spread = np.std([0.5, 0.4], ddof=1)
    assert all(row["exponent"] == pytest.approx(0.45) for row in shown)
    assert all(row["high"] == pytest.approx(0.45 + spread, rel=1e-5) for row in upright)
    theory = [row for row in panel_rows(chart, 1, "what", "swept") if "low" not in row]
    bound = [row["exponent"] for row in theory if row["what"] == "published bound"]
    assert bound == pytest.approx([0.1] * 4)


def test_universality(capfd):
    table = pd.DataFrame(
        [{"study": law, "H": h, "metric": metric, "exponent": 0.1 * i + h / 10, "low": 0.0,
          "high": 0.9, "predicted": 0.4, "sharp": 0.5, "paper_reference": 0.3, "paper_bound": 0.1}
         for i, law in enumerate(universality.LAWS) for h in (0.5, 1.5)
         for metric in ("mean", "cov", "map")]
    )  # fmt: skip
    chart = universality._draw(table)
    names = {name for _, name, _ in universality.THEORY}
    assert {*universality.LAWS, *names} <= set(texts(chart))
    assert capfd.readouterr().err == ""
    for row in rows(chart, "law", "low"):
        h = min((0.5, 1.5), key=lambda at: abs(np.log(at / row["H"])))
        wanted = 0.1 * universality.LAWS.index(row["law"]) + h / 10
        assert row["exponent"] == pytest.approx(wanted, rel=1e-5)
    theory = {row["law"]: row["exponent"] for row in rows(chart, "law") if row["law"] in names}
    assert sorted(theory.values()) == [0.1, 0.3, 0.4, 0.5]


def test_nothing_here_needs_matplotlib():
    code = (
        "import sys; import esscher.studies.reproduce; "
        "assert 'matplotlib' not in sys.modules, 'matplotlib'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
