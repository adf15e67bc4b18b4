"""Models that read few tokens: commands work with their defaults, or their advice does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from esscher.cli.program import main
from esscher.core.errors import InputError
from esscher.engine.models.outline import Outline, described
from esscher.studies.context import ContextStudy
from esscher.studies.plan import PlanStudy
from esscher.studies.probe.study import ProbeStudy
from esscher.studies.sparse import SparseStudy
from tests.engine.models.folders import WORDS, decoder_tokenizer, save
from tests.engine.models.tiny import tiny_model

LENGTHS = (64, 128, 256, 512)
#: Few layers, heads, passages and replicates; lengths, sizes and budgets are left to the command.
HEADS = ("--layers", "0", "--heads", "0-1", "--replicates", "4")
COMMANDS = {
    "probe": ("--mode", "pooled", *HEADS, "--tokens", "1000"),
    "probe context": ("--mode", "context", *HEADS),
    "sparse": ("--layers", "0", "--passages", "2"),
    "deep": ("--passages", "2"),
    "plan": ("--budget", "0.25", "--passages", "2"),
    "context": ("--passages", "2"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Encoders and decoders that read few tokens, and a text."""
    folder = tmp_path_factory.mktemp("small")
    for length in (64, 256):
        for kind in ("bert", "llama"):
            target = folder / f"{kind}-{length}"
            save(target, kind, max_position_embeddings=length)
            if kind == "llama":
                decoder_tokenizer().save_pretrained(target)
    words = np.random.default_rng(0).choice(WORDS, size=12_000)
    (folder / "text.txt").write_text(" ".join(words))
    return folder


@pytest.mark.parametrize("length", [64, 256])
@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize("command", COMMANDS)
def test_defaults_work(command: str, kind: str, length: int, place: Path) -> None:
    if command in ("context", "plan") and kind == "bert":
        pytest.skip("plans and context lengths are for decoders")
    name = command.split()[0]
    model, text = str(place / f"{kind}-{length}"), str(place / "text.txt")
    result = CliRunner().invoke(main, [name, model, "--text", text, *COMMANDS[command]])
    assert result.exit_code == 0, result.output


def outline(kind: str, length: int) -> Outline:
    fields = tiny_model(kind).model.config.to_dict() | {"max_position_embeddings": length}
    return described("tiny", fields)


#: How it is said that no length would do.
PLAINLY = ("tokens: give budgets of your own", "in pooled mode", "choose a model that reads more")

REQUESTS = {
    "probe": lambda model, context: ProbeStudy("m", mode="context", context=context).resolve(model),
    "sparse": lambda model, context: SparseStudy("tiny", context=context).resolve(model),
    "plan": lambda model, context: PlanStudy("m", budget=0.5, prefix=context).resolve(model),
    "context": lambda model, context: ContextStudy("m", context=context).resolve(model),
}


def refusal(ask: Callable[[Outline, int], object], model: Outline, context: int) -> str | None:
    """What is said against a length; None if it is taken."""
    try:
        ask(model, context)
    except InputError as error:
        return str(error)
    return None


@pytest.mark.parametrize("length", [8, 24, 40, *LENGTHS])
@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize("command", REQUESTS)
def test_advice_can_be_followed(command: str, kind: str, length: int) -> None:
    """A length in the message works; where there is none, nothing would, and it says so."""
    model, ask = outline(kind, length), REQUESTS[command]
    for context in (None, 1, 5, 17, 33, length - 1, length, length + 1, 10_000):
        try:
            ask(model, context)
        except InputError as error:
            said = str(error)
            if "an encoder" in said or "encoder, which reads" in said:
                return
            advice = re.search(r"(?:at least|at most|possible \w+ is) (\d+)(?!.*\d)", said)
            if advice is None:
                assert any(plainly in said for plainly in PLAINLY), said
                continue
            followed = refusal(ask, model, int(advice[1]))
            if followed is not None:  # nothing is long enough for this model
                assert any(plainly in followed for plainly in PLAINLY), followed
                assert refusal(ask, model, length) is not None
