"""Errors of a command are reported before weights are read, or torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from esscher.cli.program import main
from tests.engine.models.folders import WORDS, decoder_tokenizer
from tests.engine.models.folders import save as save_model
from tests.runs.stack import run_stack

#: Commands that read one text, with what they need beside it.
ONE_TEXT = {
    "probe": (),
    "sparse": (),
    "deep": (),
    "tails": (),
    "plan": ("--budget", "0.25"),
    "context": ("--tolerance", "0.1"),
}
#: Wrong options of any of them, and the message.
ANYWHERE = [
    (("--text", "nowhere.txt"), "there is no file or folder 'nowhere.txt'"),
    (("--text", "empty.txt"), "has no text in it"),
    (("--text", "rows.jsonl", "--column", "words"), "has no column 'words'"),
    (("--text", "a.txt", "--column", "words"), "is not a table"),
    (("--seed", "-1"), "seed is -1"),
    (("--dtype", "float13"), "dtype is 'float13'"),
    (("--device", "abacus"), "device 'abacus'"),
    (("--revision", "main"), "is not a name on the hub"),
    (("--figure", "x.gif"), "must end in"),
    (("--figure", "a.txt/x.png"), "a.txt is a file"),
    (("--out", "a.txt"), "is a file"),
    (("--out", "a.txt/run"), "a.txt is a file"),
    (("--out", "other"), "other"),
    (("--out", "full"), "not a run and not empty"),
]
#: Wrong options of one of them.
OWN = [
    ("probe", ("--context", "300"), "reads at most 256"),
    ("probe", ("--mode", "context", "--context", "20"), "a context of at least 54"),
    ("probe", ("--tokens", "0"), "tokens is 0"),
    ("probe", ("--mode", "pooled", "--tokens", "30"), "at least 40"),
    ("probe", ("--layers", "3"), "layers contains 3"),
    ("probe", ("--heads", "0,9"), "heads contains 9"),
    ("probe", ("--replicates", "0"), "replicates is 0"),
    ("sparse", ("--context", "300"), "reads at most 256"),
    ("sparse", ("--context", "30"), "give budgets of your own, or a context of at least"),
    ("sparse", ("--patterns", "zigzag"), "zigzag"),
    ("sparse", ("--budgets", "8:250:3"), "a query may see only 193 keys"),
    ("sparse", ("--draws", "1"), "draws is 1"),
    ("sparse", ("--layers", "8"), "layers contains 8"),
    ("deep", ("--context", "300"), "reads at most 256"),
    ("deep", ("--context", "8"), "at least 16"),
    ("deep", ("--sizes", "8:250:3"), "only 192 keys"),
    ("probe", ("--sizes", "64:1e12:3"), "sizes go up to 1,000,000,000,000; a sample of that size"),
    ("deep", ("--sizes", "x"), "--sizes: 'x' is not a number"),
    ("deep", ("--sizes", "9:3:2"), "--sizes is '9:3:2'"),
    ("tails", ("--tokens", "100"), "at least 500"),
    ("tails", ("--tokens", "600", "--context", "250"), "a context of at most 199"),
    ("tails", ("--context", "300"), "reads at most 256"),
    ("tails", ("--heads", "4"), "heads contains 4"),
    ("tails", ("--layers", "x"), "--layers is 'x'"),
    ("plan", ("--check", "nowhere.txt"), "nowhere.txt"),
    ("plan", ("--check", "empty.txt"), "has no text in it"),
    ("plan", ("--prefix", "250"), "longest possible prefix is 192"),
    ("plan", ("--prefix", "9"), "at least 16"),
    ("plan", ("--budget", "25"), "did you mean 0.25?"),
    ("plan", ("--budget", "0.01"), "smallest possible budget"),
    ("plan", ("--tolerance", "0.1"), "either a budget"),
    ("plan", ("--passages", "0"), "passages is 0"),
    ("plan", ("--against", "h2o"), "against has 'h2o'; choose from all, streaming, snapkv"),
    ("plan", ("--against", "snapkv"), "against is part of a check; give a text with --check"),
    ("plan", ("--check", "a.txt", "--tasks", "riddle"), "tasks has 'riddle'; choose from all, "),
    ("plan", ("--tasks", "needle"), "tasks are part of a check; give a text with --check"),
    ("plan", ("--save", "a.txt/plan.json"), "a.txt is a file"),
    ("plan", ("--save", "full"), "is a directory"),
    ("context", ("--tolerance", "10"), "did you mean 0.1?"),
    ("context", ("--context", "250"), "longest possible context is 193"),
    ("context", ("--context", "8"), "at least 16"),
]
DOMAINS = [
    (("--text", "a=a.txt", "--text", "b=nowhere.txt"), "corpus 'b': there is no file"),
    (("--text", "a=a.txt"), "at least two"),
    (("--text", "a.txt", "--text", "b=a.txt"), "has no name"),
    (("--text", "=a.txt", "--text", "b=a.txt"), "has no name"),
    (("--text", "a=", "--text", "b=a.txt"), "has no source"),
    (("--text", "a=a.txt", "--text", "a=b.txt"), "the name 'a' is taken"),
    (("--blocks", "3"), "give more blocks"),
    (("--fdr", "5"), "did you mean 0.05?"),
    (("--context", "300"), "reads at most 256"),
    (("--blocks", "1"), "at least 3"),
    (("--layers", "9"), "layers contains 9"),
    (("--out", "a.txt"), "is a file"),
    (("--figure", "x.gif"), "must end in"),
]
GENERATE = [
    (("--prompt", "nowhere.txt"), "no file 'nowhere.txt'"),
    (("--prompt", "empty.txt"), "has no text in it"),
    (("--max-new-tokens", "256"), "reads at most 256"),
    (("--seed", "9" * 40), "is not in the range 0<=x<=18446744073709551615"),
    (("--dtype", "float13"), "dtype is 'float13'"),
    (("--revision", "main"), "is not a name on the hub"),
    (("--chunk", "64"), "--chunk: only with the cache"),
    (("--compare",), "--compare: only with the cache"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a decoder that reads 256 tokens, texts, and directories of other things."""
    folder = tmp_path_factory.mktemp("checks")
    save_model(folder / "model", "llama", max_position_embeddings=256)
    decoder_tokenizer().save_pretrained(folder / "model")
    (folder / "a.txt").write_text(" ".join(WORDS * 200))
    (folder / "empty.txt").write_text(" \n")
    (folder / "rows.jsonl").write_text(json.dumps({"text": "some words", "number": 3}) + "\n")
    (folder / "full").mkdir()
    (folder / "full" / "letter.txt").write_text("dear")
    run_stack(folder / "other", 2)
    return folder


@pytest.fixture
def no_weights(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading weights fails the test."""

    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("the weights were read")

    monkeypatch.chdir(place)
    monkeypatch.setattr("esscher.engine.models.load.load_model", forbidden)


def refused(arguments: list[str], message: str, place: Path) -> None:
    before = sorted(place.rglob("*"))
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2, result.output + repr(result.exception)
    assert message in " ".join(result.output.split())
    assert sorted(place.rglob("*")) == before


def asked(command: str, options: tuple[str, ...]) -> list[str]:
    name, *flags = command.split()
    given = () if "--budget" in options and command == "plan" else ONE_TEXT[command]
    return [name, "model", *flags, "--text", "a.txt", *given, *options]


@pytest.mark.parametrize("command", ONE_TEXT)
@pytest.mark.parametrize(("options", "message"), ANYWHERE, ids=lambda value: " ".join(value[:2]))
def test_any_command(
    command: str, options: tuple[str, ...], message: str, place: Path, no_weights: None
) -> None:
    refused(asked(command, options), message, place)


@pytest.mark.parametrize(("command", "options", "message"), OWN)
def test_one_command(
    command: str, options: tuple[str, ...], message: str, place: Path, no_weights: None
) -> None:
    refused(asked(command, options), message, place)


@pytest.mark.parametrize(("options", "message"), DOMAINS)
def test_domains(options: tuple[str, ...], message: str, place: Path, no_weights: None) -> None:
    texts = () if "--text" in options else ("--text", "a=a.txt", "--text", "b=demo:docs")
    refused(["domains", "model", *texts, *options], message, place)


@pytest.mark.parametrize(("options", "message"), GENERATE)
def test_generate(options: tuple[str, ...], message: str, place: Path, no_weights: None) -> None:
    refused(["generate", "model", "--dense", "--prompt", "a.txt", *options], message, place)


def test_a_run_with_another_configuration(
    place: Path, tmp_path: Path, no_weights: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the first run reads the model
    monkeypatch.chdir(place)
    out = ["--out", str(tmp_path / "run")]
    small = ["--tokens", "300", "--context", "64", "--sizes", "16:64:3", "--replicates", "2"]
    first = CliRunner().invoke(main, [*asked("probe", ()), *small, "--layers", "0", *out])
    assert first.exit_code == 0, first.output
    monkeypatch.setattr("esscher.engine.models.load.load_model", None)
    refused([*asked("probe", ()), *small, "--layers", "1", *out], "layers: stored [0]", place)
    refused([*asked("tails", ()), *out], "kind 'probe', not 'tails'", place)


def test_without_torch(place: Path) -> None:
    """Importing torch takes longer than a user should wait for what is wrong."""
    commands = [asked(command, ("--text", "nowhere.txt")) for command in ONE_TEXT]
    commands += [asked(command, ("--seed", "-1")) for command in ONE_TEXT]
    commands += [asked("plan", ("--prefix", "250")), asked("sparse", ("--context", "300"))]
    commands += [["domains", "model", "--text", "a=a.txt", "--text", "b=nowhere.txt"]]
    asked_for = ["generate", "model", "--dense", "--prompt", "a.txt"]
    commands += [[*asked_for, *options] for options, _ in GENERATE]
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from esscher.cli.program import main\n"
        f"codes = {{CliRunner().invoke(main, command).exit_code for command in {commands!r}}}\n"
        "print(codes, [name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    start = [sys.executable, "-c", code]
    done = subprocess.run(start, capture_output=True, text=True, check=True, cwd=place)
    assert done.stdout.strip() == "{2} []"
