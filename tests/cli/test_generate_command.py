"""``esscher generate`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import esscher
from tests.cli.printed import before_next, run, table_of
from tests.engine.models.folders import decoder_tokenizer, random_words
from tests.engine.models.folders import save as save_model
from tests.runs.stack import run_stack

SMALL = ("--max-new-tokens", "12")


def save_decoder(folder: Path, **options: object) -> None:
    save_model(folder, "llama", max_position_embeddings=256, **options)
    decoder_tokenizer().save_pretrained(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder, others that are not the plan's, its plan, and prompts."""
    folder = tmp_path_factory.mktemp("generate")
    save_decoder(folder / "model")
    save_decoder(folder / "weights", strength=20.0)
    save_decoder(folder / "layers", num_hidden_layers=2)
    save_model(folder / "encoder")
    plan = esscher.plan(
        folder / "model",
        [random_words(1500, seed=1)],
        budget=0.15,
        prefix=120,
        passages=2,
        query_count=12,
        progress=False,
    )
    plan.save(folder / "plan.json")
    sweep = esscher.sweep(esscher.gaussian_head(horizon=0.5, dim=2), sizes=[10, 40], replicates=2)
    sweep.save(folder / "sweep.json")
    (folder / "prompt.txt").write_text(random_words(150))
    (folder / "long.txt").write_text(random_words(250))
    (folder / "empty.txt").write_text(" \n")
    (folder / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (folder / "broken.json").write_text("{")
    run_stack(folder / "other", 2)
    return folder


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


def asked(*options: str) -> tuple[str, ...]:
    return ("generate", "model", "--plan", "plan.json", "--prompt", "prompt.txt", *options)


def test_text_alone_on_standard_output(here: Path) -> None:
    result = run(*asked(*SMALL))
    assert result.exit_code == 0, result.output
    data = json.loads(run(*asked(*SMALL, "--json")).stdout)
    assert result.stdout == data["text"] + "\n"
    stderr = result.stderr
    assert "Prompt: 151 tokens in" in stderr
    assert "Generated: 12 tokens in" in stderr
    assert f" dense; {data['kept']:.1%} of the tokens are kept\n" in stderr
    assert "Peak memory: " in stderr
    assert len(before_next(stderr).splitlines()) == 4


def test_it_is_what_the_library_gives(here: Path) -> None:
    loaded = esscher.load_model("model")
    cache = esscher.load("plan.json").cache(loaded, seed=3, decode="budget", chunk=50)
    given = loaded.tokenizer((here / "prompt.txt").read_text(), return_tensors="pt")
    inputs = {name: given[name] for name in ("input_ids", "attention_mask")}
    out = loaded.model.generate(
        **inputs, past_key_values=cache, max_new_tokens=12, do_sample=False, pad_token_id=0
    )
    options = ("--seed", "3", "--decode", "budget", "--chunk", "50", "--json")
    data = json.loads(run(*asked(*SMALL, *options)).stdout)
    assert data["token_ids"] == out[0, 151:].tolist()
    assert data["cache_bytes"] == cache.nbytes


def test_dense_needs_no_plan(here: Path) -> None:
    result = run("generate", "model", "--dense", "--prompt", "prompt.txt", *SMALL)
    assert result.exit_code == 0, result.output
    assert ", dense\n" in result.stderr
    data = json.loads(run(*asked(*SMALL, "--dense", "--json")).stdout)
    assert data["text"] + "\n" == result.stdout
    assert data["cache_bytes"] == data["dense_bytes"]
    assert data["kept"] == 1
    assert "decode" not in data


def test_a_comparison(here: Path) -> None:
    result = run(*asked(*SMALL, "--compare"))
    assert result.exit_code == 0, result.output
    data = json.loads(run(*asked(*SMALL, "--compare", "--json")).stdout)
    for name, options in (("dense", ("--dense",)), ("plan", ())):
        alone = json.loads(run(*asked(*SMALL, *options, "--json")).stdout)
        assert alone["token_ids"] == data[name]["token_ids"]
        assert alone["cache_bytes"] == data[name]["cache_bytes"]
    assert data["parts_at"] is not None
    assert f"They part at token {data['parts_at']} of 12" in result.stdout
    for name in ("dense", "plan"):
        rest = data[name]["text"].removeprefix(data["common"])
        likely = data["likelihood"][name]
        chance = "unlikely" if likely is None else f"{likely:.1%} likely"
        assert f'{name} ({chance} for dense): "{rest}"' in result.stdout
    rows = {row["what"]: row for row in table_of(result.stdout, "Speed and memory")}
    assert set(rows) == {"prompt, seconds", "generated, tokens/s", "cache", "peak memory"}
    ratio = data["plan"]["cache_bytes"] / data["dense"]["cache_bytes"]
    assert float(rows["cache"]["plan / dense"]) == pytest.approx(ratio, rel=0.01)


def test_a_saved_cache(here: Path, tmp_path: Path) -> None:
    pytest.importorskip("esscher.engine.cache.saved")
    result = run(*asked(*SMALL, "--save-cache", str(tmp_path / "cache.safetensors")))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "cache.safetensors").stat().st_size > 1000
    assert f"Cache: {tmp_path / 'cache.safetensors'}" in result.stderr


#: Model, options and message of requests that are refused once the model is loaded.
LOADED = [
    ("model", ("--prompt", "long.txt", *SMALL), "the prompt has 251 tokens"),
    ("model", ("--chat",), "has no chat template"),
    ("weights", SMALL, "the plan is for 'model' with weights"),
]
#: The same before its weights are read.
BAD = [
    ("model", ("--prompt", "binary.txt"), "is not"),
    ("model", ("--plan", "nowhere.json"), "nowhere.json does not exist"),
    ("model", ("--plan", "broken.json"), "broken.json"),
    ("model", ("--plan", "sweep.json"), "sweep.json holds no plan, but a result of another study"),
    ("model", ("--plan", "other"), "other"),
    ("model", ("--chunk", "-5"), "-5 is not in the range x>=1"),
    ("model", ("--decode", "all"), "'all' is not one of 'keep', 'budget'"),
    ("model", ("--dense", "--score", "all", "--chunk", "9"), "--chunk, --score: only with"),
    ("model", ("--save-cache", "model"), "is a directory"),
    ("encoder", (), "'encoder' is an encoder, which cannot generate text"),
    ("layers", (), "the plan is for 'model' (Llama: 3 layers"),
    ("nowhere", (), "nowhere"),
]


@pytest.fixture
def no_weights(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("the weights were read")

    monkeypatch.setattr("esscher.engine.models.load.load_model", forbidden)


def refused(here: Path, model: str, options: tuple[str, ...], message: str) -> None:
    before = sorted(here.rglob("*"))
    result = run("generate", model, *asked(*options)[2:])
    assert result.exit_code == 2, result.output + repr(result.exception)
    assert message in " ".join(result.stderr.split())
    assert result.stdout == ""
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(("model", "options", "message"), LOADED)
def test_requests_that_do_not_fit_the_model(here: Path, model, options, message) -> None:
    refused(here, model, options, message)


@pytest.mark.parametrize(("model", "options", "message"), BAD)
def test_bad_requests(here: Path, no_weights: None, model, options, message) -> None:
    refused(here, model, options, message)


def test_plans_of_run_directories(here: Path, tmp_path: Path) -> None:
    options = {"budget": 0.15, "prefix": 120, "passages": 2, "query_count": 12, "progress": False}
    esscher.plan("model", [random_words(1500, seed=1)], out=tmp_path / "run", **options)
    result = run("generate", "model", "--plan", str(tmp_path / "run"), *asked(*SMALL)[4:])
    assert result.exit_code == 0, result.output
    assert result.stdout == run(*asked(*SMALL)).stdout
