"""The last lines of a first screen: a command to run next, which the parser accepts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from esscher.cli import main
from esscher.cli.commands import STUDIES, Commands
from esscher.cli.next_steps import command_line, given_before, given_by
from esscher.core.next_steps import RUN, Corpus, Step, once_more
from tests.fuzz.damage import unpack

#: A command that could have made the sample of each study.
MADE_BY = {
    "probe": "probe demo:minilm --text 'my text.txt' --dtype bfloat16 --layers 0 --out runs/one",
    "sweep": "sweep gaussian --dim 2 --horizon 1 --alpha 0.5,1 --sizes 16:64:3 --replicates 4",
    "deep": "deep ./my-model --text a.txt",
    "deep-stack": "deep-stack --depth 2 --dim 2",
    "sparse": "sparse demo:minilm --layers 0",
    "sparse-law": "sparse-law gaussian --horizon 0.5 --dim 2",
    "plan": "plan demo:minilm --text a.txt --check b.txt --budget 0.5",
    "context": "context demo:smollm2 --tolerance 0.1",
    "tails": "tails demo:minilm --column text --text a.jsonl",
    "domains": "domains demo:minilm --text one=a.txt --text two=demo:code",
}


def parsed(line: str) -> click.Context:
    """The context of a command line, as the program would parse it."""
    program, name, *words = shlex.split(line)
    assert program == "esscher"
    command = main.commands[name]
    return command.make_context(name, list(words))


def suggested(output: str) -> list[str]:
    lines = output.splitlines()
    return [line.partition(": ")[2] for line in lines if line.startswith(("Next: ", "Or: "))]


def with_command(kind: str, folder: Path, command: str | None) -> Path:
    run = unpack(kind, folder)
    about = json.loads((run / "config.json").read_text())
    about["command"] = None if command is None else ["esscher", *shlex.split(command)]
    (run / "config.json").write_text(json.dumps(about))
    return run


def invoke(*words: str) -> str:
    result = CliRunner().invoke(main, [*words])
    assert result.exit_code == 0, result.output
    return result.output


def test_every_study_has_a_question():
    from esscher.runs.registry import study_named

    assert set(MADE_BY) == set(STUDIES)
    for name in STUDIES:
        assert study_named(name).asks.endswith("?")


@pytest.mark.parametrize("kind", MADE_BY)
def test_what_is_suggested_can_be_typed(kind, tmp_path):
    run = with_command(kind, tmp_path, MADE_BY[kind])
    output = invoke("show", str(run))
    assert output.startswith(f"{main_question(kind)}\n")
    lines = suggested(output)
    assert 1 <= len(lines) <= 2
    given = given_by(shlex.split(MADE_BY[kind])).values
    for line in lines:
        found = parsed(line).params
        if "model" in found:
            assert found["model"] == given["model"]
        if "text" in found and "text" in given:
            assert found["text"] == given["text"]
        if "horizon" in found and "law" in given:
            assert found["horizon"] == float(given["horizon"])
        if "out" in found:  # beside the run, or the run itself
            assert found["out"].parent == run.parent
    # nothing of it where programs read
    assert suggested(invoke("show", str(run), "--json")) == []


def main_question(kind: str) -> str:
    from esscher.runs.registry import study_named

    return study_named(kind).asks


def test_a_run_from_python_names_no_model_that_a_command_would_find(tmp_path):
    run = with_command("probe", tmp_path, None)
    assert suggested(invoke("show", str(run))) == [f"esscher report {run}"]


def test_a_stored_command_does_not_make_others_run_code(tmp_path):
    run = with_command("probe", tmp_path, "probe evil/model --allow-remote-code --allow-pickle")
    assert "--allow" not in "".join(suggested(invoke("show", str(run))))
    given = given_by(["probe", "my/model", "--allow-remote-code"])
    words = command_line(Step("plan", "", {"--budget": 0.25}), given)
    assert words == ["esscher", "plan", "my/model", "--budget", "0.25", "--allow-remote-code"]


def test_a_stored_command_that_is_none_of_ours_is_ignored(tmp_path):
    for words in (None, [], ["esscher"], ["esscher", "rm", "-rf"], ["esscher", "probe", "--none"]):
        assert given_before(words).values == {}


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    run = with_command("probe", tmp_path, "probe 'a\x1b]0;x\x07'")
    assert "\x1b]" not in invoke("show", str(run))


def test_the_same_again_is_stored_elsewhere_unless_it_goes_on(tmp_path):
    run = tmp_path / "sweep"
    given = given_by(shlex.split(MADE_BY["sweep"]))
    more = command_line(once_more("sweep", "", replicates=64), given, run)
    assert more is not None
    assert more[-2:] == ["--out", str(run)]  # the replicates that are there are used
    assert more[more.index("--replicates") + 1] == "64"
    other = command_line(once_more("sweep", "", sizes="16:256:8"), given, run)
    assert other is not None
    assert other[-2:] == ["--out", f"{run}-2"]
    (tmp_path / "sweep-2").mkdir()
    third = command_line(once_more("sweep", "", sizes="16:256:8"), given, run)
    assert third is not None
    assert third[-1] == f"{run}-3"
    here = command_line(Step("plan", ""), given_by(["probe", "m"]), Path())
    assert here is not None
    assert here[-1] == f"{Path.cwd()}-plan"


def test_what_needs_a_stored_run_stores_it_first():
    step = Step("generate", "why", {"--plan": RUN, "--prompt": "prompt.txt"})
    given = given_by(shlex.split("plan demo:smollm2 --budget 0.25 --json"))
    words = command_line(step, given)
    assert words == shlex.split("esscher plan demo:smollm2 --budget 0.25 --out runs/plan")
    saved = command_line(step, given, saved=Path("plan.json"))
    assert saved is not None
    assert saved[saved.index("--plan") + 1] == "plan.json"
    stored = command_line(step, given, Path("runs/plan"))
    assert stored is not None
    assert stored[stored.index("--plan") + 1] == "runs/plan"


def test_flags_and_names_of_corpora_are_filled_in():
    given = given_by(shlex.split("sweep gaussian --horizon 1 --sizes 9:99:3 --no-predict"))
    words = command_line(once_more("sweep", "", replicates=8), given)
    assert words is not None
    assert "--no-predict" in words
    given = given_by(shlex.split(MADE_BY["domains"]))
    step = Step("plan", "", {"--text": Corpus("one"), "--check": Corpus("two")})
    words = command_line(step, given)
    assert words == shlex.split("esscher plan demo:minilm --text a.txt --check demo:code")
    assert command_line(Step("plan", "", {"--text": Corpus("three")}), given) is None


def test_examples_of_all_commands_are_read_as_they_are_parsed():
    for name, command in Commands().items():
        for line in (command.help or "").splitlines():
            if not line.strip().startswith("esscher ") or "|" in line or ">" in line:
                continue
            words = shlex.split(line)[1:]
            assert given_by(words).command == name
            context = parsed(line.strip())
            given = given_by(words).values
            typed = {
                key
                for key in context.params
                if context.get_parameter_source(key) is click.core.ParameterSource.COMMANDLINE
            }
            assert set(given) == typed


@pytest.mark.usefixtures("computed_once")
@pytest.mark.parametrize(
    "command",
    [
        "theory --horizon 0.8 --dim 2",
        "theory --spectrum 1.5,0.7 --sizes 100:1000:2",
        "theory --horizon 0.8 --sizes 100:1000:2 --check",
        "hardmax --sizes 1e2:1e3:2 --replicates 5",
        "ls .",
    ],
)
def test_other_commands_say_what_is_next(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = invoke(*shlex.split(command))
    lines = suggested(output)
    assert lines
    for line in lines:
        parsed(line)
    assert "Next:" not in invoke(*shlex.split(command), "--json")


def test_lists_reports_and_figures_say_what_is_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    unpack("probe", tmp_path)
    for words in (["ls", "."], ["report", "probe"], ["figure", "probe", "--list"]):
        lines = suggested(invoke(*words))
        assert lines
        for line in lines:
            parsed(line)
