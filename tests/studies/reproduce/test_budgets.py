"""Plans at several budgets on several texts: the same as single plans, and their page."""

from __future__ import annotations

import pytest

from esscher.core.errors import InputError
from esscher.studies.plan import plan
from esscher.studies.reproduce.budgets import budget_study, load_budget_study
from esscher.studies.reproduce.findings.budgets import budgets_finding
from tests.studies.plan.test_plan import DECODER, ENCODER, prose, tiny


@pytest.mark.parametrize(
    ("name", "options"),
    [("llama", DECODER), pytest.param("bert", ENCODER, marks=pytest.mark.slow)],
)
def test_a_study_is_many_plans(name, options, tmp_path):
    given = {k: v for k, v in options.items() if k != "budget"}
    texts = {"one": prose(1), "other": prose(2)}
    out = tmp_path / "run"
    found = budget_study(tiny(name), prose(0), texts, budgets=(0.5, 0.75), out=out, **given)
    for row in found["found"]:
        single = plan(
            tiny(name), prose(0), check=texts[row["text"]], budget=row["budget"], **given
        ).to_dict()
        assert row["check"] == single["check"]
        assert row["predicted"] == single["predicted"]["effect"]
        assert found["budgets"][f"{row['budget']:g}"]["tokens"] == single["budgets"]
    # nothing is computed again
    assert budget_study(tiny(name), prose(0), texts, budgets=(0.5, 0.75), out=out, **given) == found
    page = budgets_finding([out])
    table = page.tables["run"]
    assert set(table["text"]) == {"one", "other"}
    planned = table[(table["configuration"] == "planned") & (table["budget"] == 0.5)].iloc[0]
    measures = found["found"][0]["check"]["planned"]
    expected = measures["kl"]["mean"] if name == "llama" else 1 - measures["cosine"]["mean"]
    assert planned["distance"] == pytest.approx(expected)
    page.write(tmp_path / "page", formats=("png",))
    assert (tmp_path / "page" / "run.png").exists()


def test_bad_studies(tmp_path):
    with pytest.raises(InputError, match="at least one budget"):
        budget_study(tiny(), prose(0), {"one": prose(1)}, budgets=(), out=tmp_path / "run")
    with pytest.raises(InputError, match="no runs"):
        budgets_finding([])
    with pytest.raises(InputError):
        load_budget_study(tmp_path)
