"""On a pretend accelerator everything is what it is on the processor, bit by bit.

A tensor that was left on the processor fails there.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import esscher
from esscher.engine.cache.cache import planned_cache
from esscher.engine.cache.layer import SLACK
from esscher.engine.models.loaded import wrap_model
from tests.engine.cache.plans import budgets_for, generated, logits_of, padded, prompts, read
from tests.engine.fake_device import DEVICE, Accelerator
from tests.engine.models.folders import tiny
from tests.runs import made
from tests.studies.plan.small import OPTIONS, prose
from tests.studies.probe.sizes import SEQUENCES, same_numbers

CPU = torch.device("cpu")
#: A plan with everything that is measured.
PLAN = OPTIONS | {"prefix": 110, "query_count": 8, "passages": 2, "tasks": "needle"}


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """The compiled kernel is for the processor."""
    monkeypatch.setenv("ESSCHER_KERNEL", "torch")


def on_both(compute):
    """Results on the processor, and on the accelerator: of what puts a model there and uses it."""
    results = []
    for device in (CPU, DEVICE):

        def put(loaded, device=device):
            model = loaded.model.to(device)
            return wrap_model(model, loaded.tokenizer, name=loaded.name)

        # attention of a model in plain operations
        with sdpa_kernel(SDPBackend.MATH), contextlib.ExitStack() as stack:
            if device != CPU:
                stack.enter_context(Accelerator())
            results.append(compute(put))
    return results


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x + torch.arange(3),
        lambda x: torch.arange(3)[x],
        lambda x: x.numpy(),
        lambda x: torch.multinomial(x.float(), 1, generator=torch.Generator()),
    ],
)
def test_what_fails_on_an_accelerator(wrong):
    with Accelerator(), pytest.raises(RuntimeError, match=r"cuda:0|\.numpy\(\)"):
        wrong(torch.arange(3, device=DEVICE) + 1)


@pytest.mark.parametrize(
    ("name", "score", "bits", "options"),
    [
        ("llama", "all", None, {}),
        ("llama", "repeat", (8, 4), {}),
        ("llama", "last", (8, 8), {"decode": "budget", "length": 40}),
        ("llama", "all", (8, 8), {"decode": "budget", "length": 40, "chunk": 25}),
        ("gemma2", "all", (4, 4), {"chunk": 25}),
        ("gpt2", "last", None, {"chunk": 25}),
    ],
)
def test_caches(name, score, bits, options, tmp_path):
    """The prompt, tokens after it, beams, and files."""
    room = {"n_positions": 400} if name == "gpt2" else {"max_position_embeddings": 400}
    new = SLACK + 5 if "decode" in options else 5

    def run(put):
        loaded = put(tiny(name, strength=4.0, **room))
        budgets = budgets_for(loaded, 0.4, selection="fitted", bits=bits)
        batch = {key: x.to(loaded.device) for key, x in padded(prompts((40, 31))).items()}
        cache, beams = (planned_cache(loaded, budgets, score=score, **options) for _ in range(2))
        results = [
            logits_of(generated(loaded, batch, new=2, past_key_values=cache)),
            generated(loaded, batch, new=2, past_key_values=beams, num_beams=2).sequences,
        ]
        cache.save(tmp_path / "cache.safetensors")
        cache = esscher.load_cache(tmp_path / "cache.safetensors", loaded.model)
        more = torch.full((2, new), 7, device=loaded.device)
        mask = torch.ones(2, cache.get_seq_length() + new, device=loaded.device)
        mask[1, :9] = 0
        results.append(read(loaded, cache, more, attention_mask=mask))
        assert all(x.device == loaded.device for x in results)
        assert all(layer.segments.keys.device == loaded.device for layer in cache.reduced)
        return [*(x.cpu() for x in results), torch.tensor(cache.kept)]

    for here, there in zip(*on_both(run), strict=True):
        assert torch.equal(here, there)


@pytest.mark.parametrize("name", ["probe-one", "sparse", "deep", "tails", "domains", "context"])
def test_studies(name, tmp_path, monkeypatch):
    wrapped = made.wrapped

    def run(put):
        monkeypatch.setattr(
            made, "wrapped", lambda *given, **options: put(wrapped(*given, **options))
        )
        return made._MAKERS[name](out=tmp_path / str(id(put))).data

    same_numbers(*on_both(run))


def test_a_probe_of_contexts():
    options = SEQUENCES | {"layers": [1], "replicates": 2}
    same_numbers(*on_both(lambda put: esscher.probe(put(tiny("llama")), prose(0), **options).data))


def test_a_plan():
    """Calibration, the check against all rules, and questions."""

    def run(put):
        loaded = put(tiny("llama", max_position_embeddings=300, strength=6.0, num_hidden_layers=1))
        return esscher.plan(loaded, prose(0), check=prose(1), **PLAN).data

    same_numbers(*on_both(run))
