"""Models in memory: transformers' own are taken wherever a model is, and known in every type."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec.structs import asdict

import esscher
from esscher.core.errors import InputError
from esscher.engine.models.choice import ModelChoice, opened_model
from esscher.engine.models.loaded import computed_once, wrap_model
from esscher.engine.models.outline import SAMPLE, compare_weights
from esscher.engine.models.transformers_library import quiet
from esscher.runs.executors import CellExecutor
from esscher.runs.folder import check_same
from tests.engine.models.folders import decoder_tokenizer, random_words, save
from tests.engine.models.tiny import tiny_model, transformers

TEXT = [random_words(6000)]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory):
    """A decoder of transformers, loaded from a folder with its tokenizer."""
    folder = tmp_path_factory.mktemp("decoder")
    save(folder, "llama")
    decoder_tokenizer().save_pretrained(folder)
    with quiet():
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_without_a_tokenizer_the_remedy_is_said() -> None:
    with pytest.raises(InputError, match=r"esscher\.wrap_model\(model, tokenizer\)"):
        esscher.probe(tiny_model("bert").model, TEXT)
    with pytest.raises(InputError, match="it must be a hub name, a folder"):
        esscher.probe(3, TEXT)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_in_another_type_and_other_weights(dtype: torch.dtype) -> None:
    loaded, other = tiny_model("llama"), tiny_model("llama", strength=24.0)
    stored = asdict(loaded.record)
    same, others = (
        asdict(esscher.wrap_model(copy.deepcopy(each.model).to(dtype), name="llama").record)
        for each in (loaded, other)
    )
    assert same["weight_hash"] != stored["weight_hash"]
    assert compare_weights(stored, same) == compare_weights(same, stored) == "other type"
    assert compare_weights(stored, stored) == "same"
    assert compare_weights(stored, others) == "others"
    assert compare_weights(stored, asdict(other.record)) == "others"
    # runs of older versions have no sample
    del stored[SAMPLE]
    assert compare_weights(stored, same) == "others"
    assert compare_weights(stored | {SAMPLE: ""}, same | {SAMPLE: ""}) == "others"


def test_a_plan_says_that_only_the_type_differs(decoder, tmp_path: Path) -> None:
    plan = esscher.plan(decoder, TEXT, budget=0.5, passages=2)
    assert plan.complete
    plan.save(tmp_path / "plan.json")
    half = copy.deepcopy(decoder).to(torch.bfloat16)
    again = esscher.load(tmp_path / "plan.json")
    message = "the same weights in bfloat16 instead of float32"
    ids = torch.randint(5, 40, (1, 60), generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match=message), again.apply(half):
        written = half.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert written.shape == (1, 64)
    with again.apply(copy.deepcopy(decoder)):
        pass


def test_a_run_says_that_only_the_type_differs(tmp_path: Path) -> None:
    loaded = tiny_model("llama")
    half = esscher.wrap_model(copy.deepcopy(loaded.model).to(torch.bfloat16), name="llama")
    with pytest.raises(InputError, match="the same weights in bfloat16 instead of float32"):
        check_same(tmp_path, {"model": asdict(loaded.record)}, {"model": asdict(half.record)})
    old = asdict(loaded.record)
    del old[SAMPLE]
    # runs of older versions resume
    check_same(tmp_path, {"model": old}, {"model": asdict(loaded.record)})


def test_tasks_get_a_model_by_name_or_shared(tmp_path, capsys):
    save(tmp_path, "llama")
    decoder_tokenizer().save_pretrained(tmp_path)
    choice = ModelChoice(str(tmp_path))
    loaded, model = choice.for_tasks(True, True, CellExecutor().share)
    assert capsys.readouterr() == ("", f"Loading {tmp_path} ...\n")
    assert model == replace(choice, weight_hash=loaded.weight_hash)
    with opened_model(model) as first, opened_model(model) as second:
        assert first is second
        assert first.weight_hash == loaded.weight_hash
    wrong = replace(model, weight_hash="0" * 64)
    with pytest.raises(InputError, match="other weights on the worker"), opened_model(wrong):
        pass
    lost = replace(model, model=str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"worker on .* there is no folder"), opened_model(lost):
        pass
    here = ModelChoice(loaded)
    assert here.for_tasks(False, True, lambda model: "handle") == (loaded, loaded)
    assert here.for_tasks(True, True, lambda model: "handle") == (loaded, "handle")
    assert capsys.readouterr() == ("", "")


# Models whose weights were looked at before, and have changed since.


def test_hashes_follow_the_weights():
    model = tiny_model("llama").model
    first = wrap_model(model).weight_hash
    assert wrap_model(model).weight_hash == first
    # written to behind PyTorch's back: all weights, as training does
    for weight in model.parameters():
        weight.data.mul_(1.5)
    second = wrap_model(model).weight_hash
    assert second != first
    with torch.no_grad():
        weight = next(model.parameters())
        weight[0, 0] += 1.0
    assert wrap_model(model).weight_hash not in (first, second)
    with torch.no_grad():
        weight[0, 0] = torch.nan
    with pytest.raises(InputError, match="not finite"):
        wrap_model(model)


def test_models_are_not_kept_alive():
    model = tiny_model("llama").model
    computed_once(model, "a", lambda given: 1)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
