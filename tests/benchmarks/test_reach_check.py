"""A check of reach with a table of its own: its factors, its rows, and its section of the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from benchmarks.pages.reach_scales import COLUMNS, further_section, put_section, stored_cells
from benchmarks.reach_check import HEADS, check, stored_scales

import esscher
from esscher.core.errors import InputError
from esscher.studies.reach.compare import scale_checks
from esscher.studies.reach.records import ARMS
from esscher.studies.reach.study import ReachStudy
from tests.engine.models.folders import letter_decoder, random_sentences

PAGE = "# Reach\n\n## A run\n\nSome numbers.\n\n\n![one](one.png)\n\nNumbers: [a.csv](a.csv)\n"


def rows(items: int, arms: tuple[str, ...] = ARMS) -> pd.DataFrame:
    """Factors that make the text more surprising by 0.1 and change answers at random."""
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        [
            (
                *("needle", i, 10_240, arm),
                *(2.5 + 0.1 * (arm != "none") + 0.001 * rng.normal(), -0.2 + rng.normal() / 10),
                *(1, 80),
            )
            for i in range(items)
            for arm in arms
        ],
        columns=COLUMNS,
    )


def test_factors_are_those_of_the_table() -> None:
    scales = stored_scales(pd.read_csv(HEADS), 512)
    assert tuple(scales) == ARMS
    own = scales["heads"].slopes
    assert own.shape == (30, 9)
    assert np.argwhere(own).tolist() == [[18, 6], [18, 7]]
    mean = (0.417834 * 0.0370346 + 0.123841 * 0.0157246) / (0.417834 + 0.123841)
    assert scales["whole"].slopes[3, 2] == pytest.approx(mean)


def test_items_without_all_scales_are_left_out(tmp_path: Path) -> None:
    table = pd.concat([rows(4), rows(5).tail(5).head(2)])
    assert [cell.number for cell in stored_cells(table)] == [0, 1, 2, 3]
    table.to_csv(tmp_path / "check.csv", index=False)
    section = further_section(tmp_path / "check.csv", 8192, 512)
    assert "10,240 tokens (the model was trained for 8,192)" in section
    assert "4 questions (4 of needle)" in section
    assert "2 readings of items without all scales are left out" in section
    assert "The text with factors: log n: worse; yarn: worse; heads: worse" in section
    with pytest.raises(InputError, match="the columns of a check are"):
        stored_cells(table.drop(columns="right"))


def test_few_items_decide_nothing(tmp_path: Path) -> None:
    rows(3).to_csv(tmp_path / "check.csv", index=False)
    section = further_section(tmp_path / "check.csv", 8192, 512)
    assert "With fewer than 4 items nothing is decided." in section
    assert "worse" not in section
    rows(1, ("none",)).to_csv(tmp_path / "check.csv", index=False)
    section = further_section(tmp_path / "check.csv", 8192, 512)
    assert "no item was read with every scale" in section
    assert "| 10,240 | needle | 0 | none |" in section


def test_the_section_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    page = tmp_path / "reach.md"
    page.write_text(PAGE)
    rows(4).to_csv(tmp_path / "check.csv", index=False)
    put_section(page, further_section(tmp_path / "check.csv", 8192, 512))
    once = page.read_text()
    assert once.replace(once[once.index("## Further") : once.index("![one]")], "") == PAGE.replace(
        "\n\n\n!", "\n\n!"
    )
    put_section(page, further_section(tmp_path / "check.csv", 8192, 512))
    assert page.read_text() == once
    page.write_text("# Nothing\n")
    with pytest.raises(InputError, match="has no figures"):
        put_section(page, "")


def test_a_check_is_that_of_the_study_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, text = letter_decoder(640), [random_sentences(1200)]
    monkeypatch.setattr("benchmarks.reach_check.load_model", lambda name: decoder)
    asked = {"lengths": (200, 320), "tasks": ("needle",), "items": 2, "check_lengths": (700,),
             "check_items": 2}  # fmt: skip
    found = esscher.reach(decoder, text, **asked)
    scales = stored_scales(found.table(), 200)
    out = tmp_path / "check.csv"
    check(ReachStudy("letters", text, **asked), scales, out, most=3)
    assert len(pd.read_csv(out)) == 3
    check(ReachStudy("letters", text, **asked), scales, out)
    table = pd.read_csv(out)
    assert not table.duplicated(["task", "number", "tokens", "scale"]).any()
    assert scale_checks(stored_cells(table)) == found.scales
    check(ReachStudy("letters", text, **asked), scales, out)
    assert len(pd.read_csv(out)) == 10
