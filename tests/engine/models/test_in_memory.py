"""Models in memory: transformers' own are taken wherever a model is, and known in every type."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import asdict

import esscher
from esscher.core.errors import InputError
from esscher.engine.models.choice import ModelChoice, opened_model
from esscher.engine.models.record import SAMPLE, compare_weights
from esscher.engine.models.transformers_library import quiet
from esscher.runs.executors import CellExecutor
from esscher.runs.folder import check_same
from tests.engine.models.folders import WORDS, decoder_tokenizer, save
from tests.engine.models.tiny import tiny_model, transformers


def text(count: int = 6000, seed: int = 0) -> list[str]:
    return [" ".join(np.random.default_rng(seed).choice(WORDS, size=count))]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory):
    """A decoder of transformers, loaded from a folder with its tokenizer."""
    folder = tmp_path_factory.mktemp("decoder")
    save(folder, "llama")
    decoder_tokenizer().save_pretrained(folder)
    with quiet():
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


COMMANDS = {
    "probe": lambda m: esscher.probe(m, text(), tokens=300, sizes=[8, 16, 32], replicates=2),
    "plan": lambda m: esscher.plan(m, text(), budget=0.5, passages=2),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_a_model_of_transformers(command: str, decoder) -> None:
    found = COMMANDS[command](decoder)
    assert found.complete
    assert found.to_dict()["configuration"]["model"]["layers"] == 3


def test_without_a_tokenizer_the_remedy_is_said() -> None:
    with pytest.raises(InputError, match=r"esscher\.wrap_model\(model, tokenizer\)"):
        esscher.probe(tiny_model("bert").model, text())
    with pytest.raises(InputError, match="it must be a hub name, a folder"):
        esscher.probe(3, text())  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_same_weights_in_another_type(dtype: torch.dtype) -> None:
    loaded = tiny_model("llama")
    other = esscher.wrap_model(copy.deepcopy(loaded.model).to(dtype), name="llama")
    assert other.weight_hash != loaded.weight_hash
    first, second = asdict(loaded.record), asdict(other.record)
    assert compare_weights(first, second) == "other type"
    assert compare_weights(second, first) == "other type"
    assert compare_weights(first, first) == "same"


def test_other_weights_are_others() -> None:
    loaded, other = tiny_model("llama"), tiny_model("llama", strength=24.0)
    half = esscher.wrap_model(copy.deepcopy(other.model).to(torch.bfloat16))
    own = asdict(loaded.record)
    assert compare_weights(own, asdict(other.record)) == "others"
    assert compare_weights(own, asdict(half.record)) == "others"
    twin = asdict(esscher.wrap_model(copy.deepcopy(loaded.model).to(torch.bfloat16)).record)
    old = {name: value for name, value in own.items() if name != SAMPLE}
    assert compare_weights(old, twin) == "others"  # runs of older versions
    assert compare_weights(own | {SAMPLE: ""}, twin | {SAMPLE: ""}) == "others"


def test_a_plan_says_that_only_the_type_differs(decoder, tmp_path: Path) -> None:
    plan = esscher.plan(decoder, text(), budget=0.5, passages=2)
    plan.save(tmp_path / "plan.json")
    half = copy.deepcopy(decoder).to(torch.bfloat16)
    again = esscher.load(tmp_path / "plan.json")
    said = "the same weights in bfloat16 instead of float32"
    ids = torch.randint(5, 40, (1, 60), generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match=said), again.apply(half):
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
