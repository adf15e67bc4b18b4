"""The ledger: what is run, stored, judged and shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import esscher
from esscher.cli.program import main
from esscher.core.errors import InputError
from esscher.studies.paper import claims, sweeps, synthetic
from esscher.studies.paper.ledger import Check, Measurement, Setting, joint_verdict, judged
from esscher.studies.paper.study import NAMES

SETTING = Setting("quick", 0, "demo:minilm", "demo:smollm2", "demo:docs")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims limit and moments, at a scale of a second."""

    def limit(scale: str) -> list[dict]:
        return [{"law": law, "sizes": [100, 1_000], "replicates": 60} for law in synthetic.LAWS]

    def moments(scale: str) -> list[dict]:
        return [
            {"law": law, "radii": [0.5, 2.0, 8.0], "sizes": [50, 200], "first": 0, "replicates": 8}
            for law in synthetic.SUPPORT_LAWS
        ]

    for name, units in (("limit", limit), ("moments", moments)):
        own = Measurement(units, claims.MEASUREMENTS[name].measure)
        monkeypatch.setitem(claims.MEASUREMENTS, name, own)


def test_claims_are_judged_stored_and_shown(small: None, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = esscher.paper(("limit",), out=run, progress=False)
    assert first.complete
    assert [one.claim for one in first.entries] == ["limit"]
    assert first["limit"].verdict == joint_verdict([c.verdict for c in first["limit"].checks])
    # more claims, in any order: what is stored is not measured again
    times = {path: path.stat().st_mtime_ns for path in (run / "parts").iterdir()}
    both = esscher.paper(("moments", "limit"), out=run, progress=False)
    assert [one.claim for one in both.entries] == ["limit", "moments"]
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert both["limit"] == first["limit"]
    again = esscher.load(run)
    assert again.entries == both.entries
    assert both.table()["verdict"].tolist() == [one.verdict for one in both.entries]
    assert set(both.checks()["claim"]) == {"limit", "moments"}
    page = esscher.report(run, tmp_path / "page.html").read_text("utf-8")
    for one in both.entries:
        assert claims.CLAIMS[one.claim].title in page
        assert f"esscher paper {one.claim}" in page
        for check in one.checks:
            assert check.rule[:40].replace("&", "&amp;") in page.replace("&#39;", "'")
    shown = CliRunner().invoke(main, ["show", str(run)], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.output.splitlines()[2:])) <= 80
    with pytest.raises(InputError, match="'ball' was not judged; judged are: limit, moments"):
        both["ball"]


def test_workers_change_nothing(tmp_path: Path) -> None:
    """Also units of claims that a serial run measured in another order."""
    here = esscher.paper(("limit",), seed=3, progress=False)
    there = esscher.paper(("limit",), seed=3, workers=2, progress=False)
    assert here.entries == there.entries


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "there is no claim 'nothing'; choose from limit, ball"),
        (["heads", "--model", "no-such-folder/model"], "no-such-folder"),
        (["heads", "--text", "no-such-file.txt"], "no-such-file.txt"),
        (["limit", "--scale", "huge"], "huge"),
        (["limit", "--seed", "-1"], "-1"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    words: list[str], said: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(main, ["paper", *words, "--out", str(tmp_path / "run")])
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert not (tmp_path / "run").exists()


def test_every_claim_has_its_measurements_and_units() -> None:
    assert tuple(name for name in NAMES if name in claims.CLAIMS) == NAMES
    for claim in claims.CLAIMS.values():
        for name in claim.uses:
            for scale in ("quick", "standard", "paper"):
                units = list(claims.MEASUREMENTS[name].units(scale))
                assert units or (name, scale) in (("windows", "quick"), ("windows", "standard"))
                assert json.loads(json.dumps(units)) == units
    used = {name for claim in claims.CLAIMS.values() for name in claim.uses}
    assert used == set(claims.MEASUREMENTS)


def test_verdicts_come_from_the_checks_that_count() -> None:
    def made(*verdicts: str) -> str:
        checks = [
            Check(
                says="x",
                verdict=verdict.strip("()"),
                measured="",
                rule="",
                counts=not verdict.startswith("("),
            )
            for verdict in verdicts
        ]
        return judged("limit", "", checks, "", "more", {}).verdict

    assert made("holds", "holds", "(contradicted)") == "holds"
    assert made("holds", "undecided") == "undecided"
    assert made("undecided", "contradicted", "holds") == "contradicted"
    assert made("(holds)") == "undecided"


def swept(exponent_of, head: str = "authors", noise: float = 0.05, replicates: int = 24):
    """A made sweep whose errors fall like n to a given power of H."""
    rng = np.random.default_rng(1)
    rows = []
    for alpha in (0.5, 5.0, 50.0):
        horizon = 0.1 * alpha / 50**0.5
        for n in (200, 400, 800, 1600):
            for r in range(replicates):
                error = n ** -exponent_of(horizon) * np.exp(noise * rng.standard_normal())
                rows.append(
                    {"head": head, "alpha": alpha, "H": horizon, "n": n, "replicate": r}
                    | dict.fromkeys(sweeps.METRICS, error)
                    | {f"predicted_{m}": n**-0.5 for m in sweeps.METRICS}
                )
    return pd.DataFrame(rows)


def test_the_reference_holds_where_it_is_the_truth() -> None:
    """In one convention: in the other one it is then contradicted."""
    found = sweeps.judge_reference({"gaussian": swept(lambda h: 0.5 / (1 + h * h))}, SETTING)
    assert found.verdict == "holds"
    assert [check.verdict for check in found.checks[1:]] == ["holds", "contradicted"]
    found = sweeps.judge_reference({"gaussian": swept(lambda h: 0.5 / (1 + 50 * h * h))}, SETTING)
    assert found.verdict == "holds"
    found = sweeps.judge_reference({"gaussian": swept(lambda h: 0.25)}, SETTING)
    assert found.verdict == "contradicted"
    wide = swept(lambda h: 0.5 / (1 + h * h), noise=0.5, replicates=12)
    assert sweeps.judge_reference({"gaussian": wide}, SETTING).verdict == "undecided"


def test_the_bound_is_contradicted_by_one_slow_exponent() -> None:
    heads = pd.DataFrame(
        {"psi": [0.5, 1.0], "bound": [0.5 / 17, 0.5 / 33]}
        | {name: [0.5, 0.4] for name in ("mean", "cov")}
        | {f"{name}_low": [0.45, 0.35] for name in ("mean", "cov")}
        | {f"{name}_high": [0.55, 0.45] for name in ("mean", "cov")}
    )
    tables = {
        "gaussian": swept(lambda h: 0.6),
        "ablation": swept(lambda h: 0.6, "ablation"),
        "heads": heads,
    }
    assert sweeps.judge_bound(tables, SETTING).verdict == "holds"
    tables["ablation"] = swept(lambda h: 0.6 if h < 0.1 else 0.0, "ablation", noise=0.01)
    assert sweeps.judge_bound(tables, SETTING).verdict == "contradicted"
    tables["ablation"] = swept(lambda h: 0.6, "ablation", noise=1.0, replicates=12)
    assert sweeps.judge_bound(tables, SETTING).verdict == "undecided"


def test_exponents_on_a_ball_are_told_whatever_the_growth_of_the_constant() -> None:
    rng = np.random.default_rng(0)
    rows = [
        {
            "radius": radius,
            "n": n,
            "replicate": r,
            "bound": 9.0,
            "error": n**-0.5 * np.exp(0.3 * rng.standard_normal()),
        }
        for radius in (1.0, 4.0, 16.0)
        for n in (100, 400, 1600)
        for r in range(12)
    ]
    found = synthetic.judge_ball({"ball": pd.DataFrame(rows)}, SETTING)
    assert "falls with exponents" in found.measured
    assert "R^" in found.measured or "(undecided)" in found.measured
