"""What the Tab key offers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete, get_completion_class
from click.testing import CliRunner

from esscher.cli import main
from esscher.cli.completion import MODELS, PROGRAM, SHELLS, TEXTS, VARIABLE, ColonBash


def offered(*words: str) -> list[str]:
    """What is offered for the last word, without the marks that ask the shell for files."""
    maker = get_completion_class("bash")
    assert maker is ColonBash
    found = maker(main, {}, PROGRAM, VARIABLE).get_completions(list(words[:-1]), words[-1])
    return [item.value for item in found if item.type == "plain"]


def kinds(*words: str) -> set[str]:
    found = ColonBash(main, {}, PROGRAM, VARIABLE).get_completions(list(words[:-1]), words[-1])
    return {item.type for item in found}


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert VARIABLE in result.output
    assert f"{shell}_complete" in result.output
    assert PROGRAM in result.output


def test_an_unknown_shell_is_refused() -> None:
    result = CliRunner().invoke(main, ["completion", "csh"])
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.output


def test_commands_and_options() -> None:
    assert set(offered("")) == set(main.commands)
    assert offered("pr") == ["probe"]
    assert offered("probe", "demo:minilm", "--samp") == ["--sampling"]
    assert offered("probe", "demo:minilm", "--sampling", "") == ["with", "without"]


def test_names() -> None:
    assert offered("probe", "demo:") == ["demo:minilm", "demo:smollm2"]
    assert offered("probe", "demo:minilm", "--text", "demo:") == ["demo:docs", "demo:code"]
    assert "sphere" in offered("sweep", "")
    assert offered("sweep", "gau") == ["gaussian"]
    assert offered("theory", "--law", "stu") == ["student"]
    assert offered("deep", "") == ["demo:minilm", "demo:smollm2"]
    assert offered("sparse", "") == ["demo:minilm", "demo:smollm2"]
    assert offered("sparse-law", "gau") == ["gaussian"]
    assert offered("reproduce", "") == [
        "gaussian", "ablation", "sphere", "ball", "hardmax", "universality", "onepass", "all",
    ]  # fmt: skip
    assert offered("man", "pro") == ["probe"]


def test_the_demo_names_are_those_that_exist() -> None:
    from esscher.engine.models.sources import DEMO_MODELS
    from esscher.engine.text.named import DEMO_TEXTS

    assert tuple(f"demo:{name}" for name in DEMO_MODELS) == MODELS
    assert tuple(DEMO_TEXTS) == TEXTS


def test_files_are_offered_beside_names() -> None:
    assert kinds("probe", "") == {"plain", "file"}
    assert kinds("reproduce", "") == {"plain"}


def make_run(folder: Path) -> None:
    (folder / "parts").mkdir(parents=True)
    (folder / "config.json").write_text("{}")


def test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "runs" / "first")
    make_run(tmp_path / "runs" / "second")
    make_run(tmp_path / "deep" / "a" / "b" / "c" / "d" / "too-deep")
    (tmp_path / "runs" / "else").mkdir()
    monkeypatch.chdir(tmp_path)
    assert offered("show", "") == ["runs/first", "runs/second"]
    assert offered("show", "runs/s") == ["runs/second"]
    assert offered("show", f"{tmp_path}/runs/f") == [f"{tmp_path}/runs/first"]
    assert offered("show", "nothing") == []
    assert kinds("show", "nothing") == {"dir"}


@pytest.mark.parametrize(
    ("words", "typed", "expected"),
    [
        (["esscher", "probe", "demo", ":", "mi"], 4, (["probe"], "demo:mi")),
        (["esscher", "probe", "demo", ":"], 3, (["probe"], "demo:")),
        (["esscher", "probe", ""], 2, (["probe"], "")),
        (["esscher", "probe", "demo", ":", "minilm", "--t"], 5, (["probe", "demo:minilm"], "--t")),
    ],
)
def test_bash_cuts_words_at_colons(
    words: list[str], typed: int, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(typed))
    maker = ColonBash(main, {}, PROGRAM, VARIABLE)
    assert maker.get_completion_args() == expected
    assert issubclass(ColonBash, BashComplete)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_in_a_real_bash(tmp_path: Path) -> None:
    """The script is loaded, bash's own variables are set, and the answer read."""
    program = tmp_path / "esscher"
    program.write_text(
        f"#!{sys.executable}\nfrom esscher.cli import main\nmain(prog_name='esscher')\n"
    )
    program.chmod(0o755)
    script = CliRunner().invoke(main, ["completion", "bash"]).output
    asked = """
    COMP_WORDS=(esscher probe demo : mi); COMP_CWORD=4
    compopt() { :; }
    _esscher_completion esscher
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script + asked],
        capture_output=True, text=True, timeout=120,
        env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stdout.split() == ["minilm"], done.stderr
