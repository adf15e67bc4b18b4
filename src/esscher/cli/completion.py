"""``esscher completion``: what the Tab key offers in bash, zsh and fish."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

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

#: What completes a value: the part that is typed to what is offered.
Complete = Callable[[click.Context, str], list[CompletionItem]]


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script by which a shell completes commands.

    The Tab key then completes commands, options and their values, names of demo models, texts, laws
    and experiments, and directories of runs.

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
        """Put the words together again: those before the one being typed, and that one."""
        words = [*os.environ["COMP_WORDS"].splitlines(), ""][: int(os.environ["COMP_CWORD"]) + 1]
        _, *before, typed = re.sub("\n?:\n?", ":", "\n".join(words)).split("\n")
        return before, typed

    def format_completion(self, item: CompletionItem) -> str:
        """Leave out what stands before the colon: bash has that already."""
        _, typed = self.get_completion_args()
        item.value = str(item.value).removeprefix(typed[: typed.rfind(":") + 1])
        return super().format_completion(item)


add_completion_class(ColonBash)


def complete_values(command: click.Command, commands: Iterable[str]) -> None:
    """Let the parameters of a command offer values, by what they stand for.

    Parameters
    ----------
    command
        The command.
    commands
        Names of all commands: some take one of them.
    """
    for parameter in command.params:
        offer = _offer(parameter, commands)
        if offer is not None:
            vars(parameter)["shell_complete"] = offer  # in place of click's own method


def _offer(parameter: click.Parameter, commands: Iterable[str]) -> Complete | None:
    if isinstance(parameter, click.Option):
        if parameter.name == "law":
            return _names(_laws, files=False)
        if parameter.name in ("text", "check") and parameter.type is click.STRING:
            return _names(lambda: TEXTS)
        return None
    metavar = parameter.metavar or ""
    if metavar.startswith("RUN"):
        return _complete_run
    if metavar == "NAME":
        return _names(_experiments, files=False)
    if metavar == "[COMMAND]":
        return _names(lambda: commands, files=False)
    if "MODEL" in metavar or "LAW" in metavar:
        return _names(lambda: _subjects(metavar.split("|")))
    return None


def _subjects(words: list[str]) -> list[str]:
    """Names of models and laws that the metavar of an argument allows."""
    models, laws = MODELS if "MODEL" in words else (), _laws() if "LAW" in words else ()
    return [*models, *laws, *(word for word in words if word.islower())]


def _names(names: Callable[[], Iterable[str]], files: bool = True) -> Complete:
    """Offer names that begin like what is typed, and files besides."""

    def complete(context: click.Context, typed: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in names() if name.startswith(typed)]
        # the type "file" makes the shell offer names of files; bash forgets what came before it
        return [CompletionItem(typed, type="file"), *found] if files else found

    return complete


def _complete_run(context: click.Context, typed: str) -> list[CompletionItem]:
    """Offer runs whose path begins like what is typed; without any, folders."""
    runs = [CompletionItem(str(run)) for run in _runs(typed)]
    return runs or [CompletionItem(typed, type="dir")]


def _runs(typed: str) -> Iterator[Path]:
    start = Path(typed) if typed.endswith(os.sep) else Path(typed).parent
    for looked, (folder, inside, files) in enumerate(os.walk(start)):
        here = Path(folder)
        if looked == LOOKED_AT:
            return
        if CONFIG in files and (here / "parts").is_dir() and str(here).startswith(typed):
            yield here
            inside.clear()
        elif len(here.relative_to(start).parts) >= LEVELS:
            inside.clear()
        else:
            inside[:] = sorted(name for name in inside if not name.startswith((".", "_")))


def _laws() -> Iterable[str]:
    from esscher.math.laws import STANDARD_LAWS

    return STANDARD_LAWS


def _experiments() -> Iterable[str]:
    from esscher.cli.reproduce import EXPERIMENTS

    return (*EXPERIMENTS, "all")
