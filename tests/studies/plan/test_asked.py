"""Questions about texts, and rules of others, in whole plans."""

from __future__ import annotations

import numpy as np
import pytest

import esscher
from esscher.core.dataset_file import from_bytes
from esscher.core.errors import InputError
from esscher.engine.cache.cache import ObservedPrompt
from esscher.engine.text.items import ask, task_item
from esscher.studies.plan.study import PUBLISHED
from tests.studies.plan.small import prose, roomy

NAMES = {"planned", "uniform", *PUBLISHED}


def part(result, name):
    """A cell as it is stored."""
    return from_bytes((result.folder / "parts" / f"{name}.safetensors").read_bytes(), name)


def test_all_configurations_keep_as_many_bytes(asked):
    assert set(asked["configuration"].values) == NAMES | {"dense"}
    share = asked["bytes_share"].to_series()
    assert share.pop("dense") == 1
    # offsets of lists are a percent of so short a prompt, and half a block of a list may be empty
    assert np.all((share > 0.13) & (share < 0.17))
    assert set(asked["bits"].values) <= {"16", "8", "4", "by head"}
    others = asked["over_planned"].sel(bound="value").isnull().to_series()
    assert set(others[others].index) == {"dense", "planned"}
    # published rules were tried with 8 and 4 bits; the closer ones are left
    cells = [part(asked, f"check-{i}") for i in range(2)]
    for name in PUBLISHED:
        tried = [
            np.exp(
                np.mean([np.log(cell["kl"].sel(configuration=f"{name} {bits}")) for cell in cells])
            )
            for bits in (8, 4)
        ]
        geometric = np.exp(np.log(asked["passage_kl"].sel(configuration=name)).mean())
        assert float(geometric) == pytest.approx(min(tried))
    assert part(asked, "trial-0")["configuration"].values.tolist() == [
        "dense",
        "planned",
        "uniform",
    ]


def test_every_configuration_is_asked(asked):
    # tables have the order of the tasks, not of the request
    assert asked["task"].values.tolist() == ["needle", "values", "all"]
    assert asked["items"].values.tolist() == [2, 2, 0]
    assert asked["score"].sel(task=["needle", "values"]).notnull().all()
    # these words are no answers to anything
    assert not asked["dense_can"].any()
    assert asked["score"].sel(task="all").isnull().all()
    assert "the dense model itself fails them" in asked.headline
    assert esscher.load(asked.folder).to_dict() == asked.to_dict()


def test_an_item_is_answered_from_a_cache_of_its_text(asked):
    loaded, stored = roomy(), part(asked, "needle-0")
    item = task_item(loaded, "needle", 0, 224)
    assert (stored["haystack"].item(), stored["answer"].item()) == ("noise", item.answer)
    prompt = ObservedPrompt(loaded, item.context, asked.plan.keeping)
    ((reply, _, chance),) = ask(loaded, prompt.cache, item)
    dense = stored.sel(configuration="dense")
    assert dense["reply"].item() == reply
    assert dense["log_probability"].item() == pytest.approx(chance, abs=1e-5)


def test_retrieval_passages_have_a_prediction_of_their_own(asked):
    settings = asked.setup.settings
    assert (settings.passages, settings.retrieval) == (3, 1)
    assert 0 < asked["predicted_retrieval_kl"] != asked["predicted_kl"].sel(bound="value")


def test_cells_of_another_plan_are_refused(asked, tmp_path):
    small = {"prefix": 100, "query_count": 12, "passages": 2, "budget": 0.3}
    one, two = (
        esscher.plan(roomy(), prose(i), out=tmp_path / str(i), **small).folder for i in (0, 1)
    )
    (one / "results.safetensors").unlink()
    (two / "parts" / "trial-1.safetensors").replace(one / "parts" / "trial-1.safetensors")
    with pytest.raises(InputError, match=r"trial-1\.safetensors is damaged \(it belongs to"):
        esscher.load(one)


@pytest.mark.parametrize("selection", ["sample", "topk"])
def test_the_selection_of_a_plan_is_that_of_its_cache(selection, tmp_path):
    loaded = roomy()
    small = {"prefix": 100, "query_count": 12, "passages": 1, "budget": 0.3}
    result = esscher.plan(loaded, prose(0), selection=selection, score="last", **small)
    # powers are of samples alone
    assert ("power" in result.table()) == (selection == "sample")
    assert result["predicted_kl"].isnull().values.tolist() == [False, True, True]
    result.save(tmp_path / "plan.json")
    again = esscher.load(tmp_path / "plan.json")
    assert (again.selection, again.score) == (selection, "last")
    np.testing.assert_array_equal(again.powers, result["power"])
    rule = again.cache(loaded.model).rule
    assert (rule.budgets.selection, rule.score) == (selection, "last")
    assert again.cache(loaded.model, score="all").rule.score == "all"
    with pytest.raises(InputError, match="score is 'first'; choose 'all', 'last' or 'repeat'"):
        again.cache(loaded.model, score="first")
