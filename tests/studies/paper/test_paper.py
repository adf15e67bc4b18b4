"""The ledger: what is run, stored, judged and shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import esscher
from esscher.cli.program import main
from esscher.core.errors import InputError
from esscher.studies.paper import claims, synthetic
from esscher.studies.paper.claims import Check, Judgement
from esscher.studies.paper.study import CELLS, NAMES


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims limit and moments, at a scale of a second."""
    law = {"law": synthetic.LAWS, "sizes": [100, 1_000], "replicates": 60}
    support = {"radii": [0.5, 2.0, 8.0], "sizes": [50, 200], "first": [0], "replicates": 8}
    scales = {"limit": law, "moments": support | {"law": synthetic.SUPPORT_LAWS}}
    for name, options in scales.items():
        few = replace(claims.MEASUREMENTS[name], scales={"quick": options})
        monkeypatch.setitem(claims.MEASUREMENTS, name, few)


def test_claims_are_judged_stored_and_shown(small: None, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = esscher.paper(("limit",), out=run, progress=False)
    assert first.complete
    assert first["claim"].values.tolist() == ["limit"]
    verdicts = first.table("checks")["check_verdict"].tolist()
    assert first["verdict"].item() == claims.joint_verdict(verdicts)
    # more claims, in any order: what is stored is not measured again
    times = {path: path.stat().st_mtime_ns for path in (run / "parts").iterdir()}
    both = esscher.paper("moments,limit", out=run, progress=False)
    assert both.table()["claim"].tolist() == ["limit", "moments"]
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    again = esscher.load(run)
    assert again.data.identical(both.data)
    assert again["limit.error"].identical(first["limit.error"])
    page = esscher.report(run, tmp_path / "page.html").read_text("utf-8")
    for claim in ("limit", "moments"):
        assert claims.CLAIMS[claim].title in page
        assert f"esscher paper {claim}" in page
    for rule in both.table("checks")["check_rule"]:
        assert rule[:40].replace("&", "&amp;") in page.replace("&#39;", "'")
    shown = CliRunner().invoke(main, ["show", str(run)], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    with pytest.raises(InputError, match="the claim ball was not judged"):
        both.plot("ball")


def test_a_claim_of_which_a_cell_is_missing_is_not_judged(small: None, tmp_path: Path) -> None:
    whole = esscher.paper(("limit", "moments"), out=tmp_path / "run", progress=False)
    (tmp_path / "run" / "parts" / "moments-1.safetensors").unlink()
    part = esscher.load(tmp_path / "run")
    assert not part.complete
    assert part["claim"].values.tolist() == ["limit"]
    assert not [name for name in part.data.variables if str(name).startswith("moments.")]
    (tmp_path / "run" / "parts" / "limit-3.safetensors").unlink()
    assert esscher.load(tmp_path / "run").headline == "Nothing has been measured yet."
    # resumed: the same file
    esscher.paper(("limit", "moments"), out=tmp_path / "run", workers=2, progress=False)
    assert esscher.load(tmp_path / "run").data.identical(whole.data)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "there is no claim 'nothing'; choose from limit, ball"),
        (["heads", "--model", "no-such-folder/model"], "no-such-folder"),
        (["heads", "--text", "no-such-file.txt"], "no-such-file.txt"),
        (["limit", "--scale", "huge"], "huge"),
        (["limit", "--seed", "-1"], "-1"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    words: list[str], message: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(main, ["paper", *words, "--out", str(tmp_path / "run")])
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert not (tmp_path / "run").exists()


def test_every_claim_has_its_measurements_and_units(settings) -> None:
    assert tuple(claims.CLAIMS) == NAMES
    used = {name for claim in claims.CLAIMS.values() for name in claim.uses}
    assert used == set(claims.MEASUREMENTS) == set(CELLS)
    for scale in ("quick", "standard", "paper"):
        at = msgspec.structs.replace(settings, scale=scale, long=scale == "paper")
        for name in used:
            units = claims.MEASUREMENTS[name].units(at)
            assert units
            assert json.loads(json.dumps(units)) == units


@pytest.mark.parametrize(
    ("verdicts", "joint"),
    [
        ("holds holds (contradicted)", "holds"),
        ("holds undecided", "undecided"),
        ("undecided contradicted holds", "contradicted"),
        ("(holds)", "undecided"),
    ],
)
def test_verdicts_come_from_the_checks_that_count(verdicts: str, joint: str) -> None:
    checks = [Check("x", v.strip("()"), "", "", "(" not in v) for v in verdicts.split()]
    assert Judgement("", checks, "").verdict == joint
