"""Questions about texts, and rules of others, in whole plans."""

from __future__ import annotations

import hashlib
import json
import shutil

import pandas as pd
import pytest
from msgspec import structs

import esscher
from esscher.core.errors import InputError
from esscher.engine.cache.prompt import ObservedPrompt
from esscher.engine.text.tasks.asking import ask
from esscher.engine.text.tasks.items import task_items
from esscher.runs.folder import Cell
from esscher.show.tables import PlainConsole
from esscher.studies.plan.result import PUBLISHED, TaskScore
from esscher.studies.plan.view import print_result, summary, task_sentence
from tests.studies.plan.small import prose, roomy

OTHERS = ("adakv:expected", "adakv:streaming")
NAMES = {"planned", "uniform", *PUBLISHED, *OTHERS}


def test_all_configurations_keep_the_same_number(asked):
    check = asked.check
    assert set(check.configurations) == NAMES
    total = int(0.25 * 224) * 6
    assert {one.kept for one in check.configurations.values()} == {total}
    assert set(check.ratios) == NAMES - {"planned"}
    for path in sorted((asked.folder / "parts").glob("*.json")):
        kept = json.loads(path.read_bytes())["about"].get("kept")
        if path.name.startswith("calibration"):
            assert kept is None
        elif path.name.startswith("trial"):
            assert kept == {"planned": total, "uniform": total}
        else:
            assert kept == dict.fromkeys(NAMES, total)


def test_every_configuration_is_asked(asked):
    check = asked.check
    # tables have the order of the tasks, not of the request
    assert list(check.tasks) == ["needle", "values"]
    for scores in check.tasks.values():
        assert set(scores) == NAMES | {"dense"}
        assert {one.n for one in scores.values()} == {2}
        assert all(one.noise is not None and one.text is not None for one in scores.values())
    # these words are no answers to anything
    assert check.dense_cannot == ("needle", "values")
    assert check.totals == {}
    assert "the dense model itself fails them" in asked.headline
    assert esscher.load(asked.folder).to_dict() == asked.to_dict()


def test_an_item_is_answered_from_a_cache_of_its_text(asked):
    loaded = roomy()
    stored = json.loads((asked.folder / "parts" / "needle-0.json").read_bytes())["about"]
    table = pd.read_parquet(asked.folder / "parts" / "needle-0.parquet")
    (item,) = task_items(loaded, "needle", 1, 224, seed=0)
    assert (stored["task"], stored["haystack"], stored["answer"]) == (
        "needle",
        "noise",
        item.answer,
    )
    prompt = ObservedPrompt(loaded, item.context, asked.keeping)
    found = ask(loaded, prompt.cache, item)
    assert stored["answers"]["dense"] == found.text
    row = table[(table["configuration"] == "dense") & (table["measure"] == "log_probability")]
    assert row["value"].item() == pytest.approx(found.log_probability, abs=1e-5)


def test_retrieval_passages_have_a_prediction_of_their_own(asked):
    assert asked.study.kinds == ["prose", "prose", "retrieval"]
    assert asked.predicted.retrieval > 0
    assert asked.predicted.retrieval != asked.predicted.effect


def drop(rows):
    return lambda about, table: table.drop(index=table.index[rows])


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("needle-0", drop([0]), "its table is not of all configurations"),
        ("values-1", lambda about, table: pd.concat([table, table[:1]]), "not of all"),
        ("values-0", lambda about, table: table.drop(columns="measure"), "not of all"),
        ("needle-1", lambda about, table: about.pop("task"), "does not say what was asked"),
        ("needle-1", lambda about, table: about.update(haystack="hay"), "what was asked"),
        ("needle-1", lambda about, table: about.pop("kept"), "does not say what was kept"),
        ("check-0", lambda about, table: about["kept"].pop("adakv"), "what dense attention gives"),
        ("check-0", lambda about, table: table.astype({"value": str}), "not of all"),
        ("calibration-0", lambda about, table: table.assign(value="much"), "has no effects"),
        ("calibration-0", drop([-1]), "its norm is not one per"),
    ],
)
def test_damaged_cells_are_named(name, damage, said, asked, tmp_path):
    run = shutil.copytree(asked.folder, tmp_path / "run")
    (run / "results.json").unlink()
    part, file = (run / "parts" / f"{name}.{kind}" for kind in ("json", "parquet"))
    stored = json.loads(part.read_bytes())
    table = pd.read_parquet(file)
    changed = damage(stored["about"], table)
    data = Cell(None, changed if isinstance(changed, pd.DataFrame) else table).parquet()
    stored["sha256"] = hashlib.sha256(data).hexdigest()
    part.write_text(json.dumps(stored))
    file.write_bytes(data)
    with pytest.raises(InputError, match=rf"{name}\.json is damaged \(.*{said}"):
        esscher.load(run)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda c: c["tasks"]["needle"].pop("dense"), "does not score what it measured"),
        (lambda c: c["tasks"]["needle"].pop("kvzip"), "does not score what it measured"),
        (lambda c: c.update(totals={"dense": c["tasks"]["needle"]["dense"]}), "does not score"),
        (lambda c: c.update(dense_cannot=["riddle"]), "does not score what it measured"),
        (lambda c: c["measures"].update(kvzip2=c["measures"]["planned"]), "rule 'kvzip2', which"),
        (lambda c: renamed(c, "adakv:oracle"), "has a rule 'adakv:oracle', which is not known"),
        (lambda c: renamed(c, "oracle"), "has a rule 'oracle', which is not known"),
        (lambda c: c["measures"].pop("kvzip"), "does not compare what it measured"),
    ],
)
def test_files_with_scores_of_something_else(damage, said, asked, tmp_path):
    tree = asked.to_dict()
    damage(tree["check"])
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(tree))
    with pytest.raises(InputError, match=said):
        esscher.load(path)


def renamed(check, name):
    """Give a rule another name, wherever it is."""
    for part in ("measures", "ratios", "over_best", *check["tasks"]):
        names = check["tasks"].get(part) or check[part]
        if "adakv:expected" in names:
            names[name] = names.pop("adakv:expected")
    check["best"] = [name if one == "adakv:expected" else one for one in check["best"]]


def test_answers_are_printed(asked, capsys):
    print_result(asked, PlainConsole())
    output = capsys.readouterr().out
    assert "Right answers to questions about texts, 2 items of each task" in output
    rows = [line.split() for line in output.splitlines()]
    (dense,) = [row for row in rows if row[:1] == ["dense"]]
    assert dense == ["dense", "dense", "cannot", "dense", "cannot"]
    found = asked.check.tasks["values"]["adakv:expected"]
    cell = f"({found.log_probability:.2f})"
    assert any(row[:1] == ["adakv:expected"] and cell in row for row in rows)


def test_answers_are_said_in_the_headline(asked):
    def score(share):
        return TaskScore(score=share, interval=(0.0, 1.0), n=40, log_probability=-1.0)

    totals = dict.fromkeys(NAMES | {"dense"}, score(0.1))
    totals |= {"dense": score(0.95), "planned": score(0.8), "adakv:expected": score(0.6)}
    check = structs.replace(asked.check, totals=totals, dense_cannot=("values",))
    assert task_sentence(check) == (
        " Questions about texts: 80% right with the plan, 95% dense, of 40 (left out, the dense "
        "model itself fails: values); AdaKV (Expected Attention) 60%."
    )
    assert task_sentence(structs.replace(check, tasks={}, totals={})) == ""


@pytest.mark.parametrize("selection", ["sample", "topk"])
def test_the_selection_of_a_plan_is_that_of_its_cache(selection, tmp_path, capsys):
    loaded = roomy()
    small = {"prefix": 100, "query_count": 12, "passages": 1, "budget": 0.3}
    found = esscher.plan(loaded, prose(0), selection=selection, score="last", **small)
    # powers are of samples alone
    assert ("power" in found.table()) == (selection == "sample")
    print_result(found, PlainConsole())
    assert ("power" in capsys.readouterr().out) == (selection == "sample")
    shown = [column.key for column in summary(found, "a").tables[0].columns]
    assert ("power" in shown) == (selection == "sample")
    found.save(tmp_path / "plan.json")
    again = esscher.load(tmp_path / "plan.json")
    assert (again.selection, again.score) == (selection, "last")
    assert found.token_budgets.selection == selection
    rule = again.cache(loaded.model).rule
    assert (rule.budgets.selection, rule.score) == (selection, "last")
    assert again.cache(loaded.model, score="all").rule.score == "all"
    with pytest.raises(InputError, match="score is 'first'; choose 'all', 'last' or 'repeat'"):
        again.cache(loaded.model, score="first")
