"""``esscher completion``: what the Tab key offers in bash, zsh and fish."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
)

#: Name of the program, and the variable by which the shell asks it for completions.
PROGRAM, VARIABLE = "esscher", "_ESSCHER_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
#: Folders that a search for runs looks into; deep trees would make the Tab key slow.
LEVELS, LOOKED_AT = 3, 2000
CONFIG = "config.json"
#: Names of the demo models and texts. Their own modules bring torch, for which nobody waits at the
#: Tab key; a test compares.
MODELS, TEXTS = ("demo:minilm", "demo:smollm2"), ("demo:docs", "demo:code")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that teaches a shell to complete esscher's command lines.

    It completes commands, options and their values, the names of the demo models and texts, of laws
    and experiments, and folders that hold a run.

    \b
    Examples:
      esscher completion bash > ~/.local/share/bash-completion/completions/esscher
      esscher completion zsh > ~/.zfunc/_esscher
      esscher completion fish > ~/.config/fish/completions/esscher.fish
    """  # noqa: D301 - click's mark for verbatim lines
    group = click.get_current_context().find_root().command
    maker = get_completion_class(shell)
    assert maker is not None
    # the text of the script alone: click's own method would first look for the shell itself
    script = maker(group, {}, PROGRAM, VARIABLE)
    click.echo(script.source_template % script.source_vars())


class ColonBash(BashComplete):
    """Bash, which takes ``demo:mi`` for three words: demo, a colon, mi."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Complete words before the one being typed, and that one, put together again."""
        words = [*os.environ["COMP_WORDS"].splitlines(), ""]
        typed = int(os.environ["COMP_CWORD"])
        joined: list[str] = []
        for word in words[: typed + 1]:
            if joined and (word == ":" or joined[-1].endswith(":")):
                joined[-1] += word
            else:
                joined.append(word)
        return joined[1:-1], joined[-1]

    def complete(self) -> str:
        """Answers without what stands before the colon: bash has that already."""
        arguments, incomplete = self.get_completion_args()
        known = incomplete[: incomplete.rfind(":") + 1]
        answers = []
        for item in self.get_completions(arguments, incomplete):
            item.value = str(item.value).removeprefix(known)
            answers.append(self.format_completion(item))
        return "\n".join(answers)


add_completion_class(ColonBash)


class Completed(click.types.StringParamType):
    """A string for which the shell gets suggestions, and names of files besides."""

    def __init__(self, suggestions: Callable[[], list[str]], files: bool = True) -> None:
        self._suggestions, self._files = suggestions, files

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """What begins like what was typed."""
        found = [
            CompletionItem(value) for value in self._suggestions() if value.startswith(incomplete)
        ]
        # the type "file" makes the shell offer names of files; bash forgets what came before it
        return [CompletionItem(incomplete, type="file"), *found] if self._files else found


def complete_values(group: click.Group) -> None:
    """Give the parameters of all commands their suggestions, by what they stand for."""
    for command in group.commands.values():
        for parameter in command.params:
            values = _suggestions(group, command.name or "", parameter)
            if values is not None:
                parameter.type = values


def _suggestions(
    group: click.Group, command: str, parameter: click.Parameter
) -> click.ParamType[Any] | None:
    metavar, name = parameter.metavar or "", parameter.name
    if isinstance(parameter, click.Argument):
        if metavar.startswith("RUN") and isinstance(parameter.type, click.Path):
            return RunFolder(parameter.type)
        if "MODEL" in metavar or "LAW" in metavar:
            models = MODELS if "MODEL" in metavar else ()
            laws = _laws if "LAW" in metavar else list
            own = ["gaussian"] if "gaussian" in metavar else []
            return Completed(lambda: [*models, *laws(), *own])
        if command == "reproduce":
            return Completed(_experiments, files=False)
        if command == "man":
            return Completed(lambda: list(group.commands), files=False)
        return None
    if isinstance(parameter.type, click.types.StringParamType):
        if name in ("text", "check") and not parameter.multiple:
            return Completed(lambda: [*TEXTS])
        if name == "law":
            return Completed(_laws, files=False)
    return None


class RunFolder(click.Path):
    """A path like another one, for which the shell is offered folders that hold a run."""

    def __init__(self, like: click.Path) -> None:
        super().__init__()
        vars(self).update(vars(like))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Runs whose path begins like what was typed; without any, folders."""
        runs = [CompletionItem(str(run)) for run in _runs(incomplete)]
        return runs or [CompletionItem(incomplete, type="dir")]


def _runs(incomplete: str) -> Iterator[Path]:
    typed = Path(incomplete)
    start = typed if incomplete.endswith(os.sep) else typed.parent
    for looked, (folder, inside, files) in enumerate(os.walk(start)):
        here = Path(folder)
        if looked == LOOKED_AT:
            return
        if CONFIG in files and (here / "parts").is_dir() and str(here).startswith(incomplete):
            yield here
            inside.clear()
        elif len(here.relative_to(start).parts) >= LEVELS:
            inside.clear()
        else:
            inside[:] = sorted(name for name in inside if not name.startswith((".", "_")))


def _laws() -> list[str]:
    from esscher.math.laws import STANDARD_LAWS

    return list(STANDARD_LAWS)


def _experiments() -> list[str]:
    from esscher.cli.reproduce import EXPERIMENTS

    return [*EXPERIMENTS, "all"]
