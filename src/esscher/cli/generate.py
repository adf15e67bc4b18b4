"""``esscher generate``: text under a plan, and what it takes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from esscher.cli.printing import (
    BlockCommand,
    check_output,
    plain_console,
    plain_table,
    print_json,
    say,
)
from esscher.core.errors import InputError
from esscher.core.memory import NOISE, PeakMemory
from esscher.core.shown import byte_count, counted, plain_count, printable

if TYPE_CHECKING:
    from esscher.engine.generation import Comparison, Generation
    from esscher.show.tables import PlainConsole
    from esscher.studies.plan.generate import Request

#: Options that are about the cache of a plan, by the names of their values.
OF_CACHE = {
    "decode": "--decode",
    "chunk": "--chunk",
    "score": "--score",
    "save_cache": "--save-cache",
}


@click.command(cls=BlockCommand)
@click.argument("model", metavar="MODEL")
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    help="Plan: its file or the directory of its run; required unless --dense is given.",
)
@click.option(
    "--prompt",
    metavar="FILE",
    required=True,
    help="File with the text to continue; - for standard input; demo:code or demo:docs.",
)
@click.option(
    "--max-new-tokens", type=int, default=128, show_default=True, help="Most tokens to generate."
)
@click.option(
    "--dense", is_flag=True, help="Keep all tokens: transformers' own cache, without a plan."
)
@click.option(
    "--compare", "comparing", is_flag=True, help="Generate both ways, dense first, and compare."
)
@click.option(
    "--decode",
    type=click.Choice(["keep", "budget"]),
    default="keep",
    show_default=True,
    help="Keep all generated tokens, or fit them into the plan's budgets too.",
)
@click.option("--chunk", type=int, help="Read the prompt in pieces of this many tokens.")
@click.option(
    "--score",
    type=click.Choice(["all", "last", "repeat"]),
    help="Which queries score tokens, as for esscher plan (default: as in the plan).",
)
@click.option(
    "--chat", is_flag=True, help="The prompt is a user's message: use the model's chat template."
)
@click.option(
    "--temperature",
    type=float,
    help="Sample at this temperature (default: always the most likely token).",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of what is kept and of sampling."
)
@click.option(
    "--save-cache",
    type=click.Path(path_type=Path),
    help="Write the plan's cache into this file at the end.",
)
@click.option(
    "--device", default="cpu", show_default=True, help="Device of PyTorch, such as cpu or cuda."
)
@click.option(
    "--dtype",
    default="float32",
    show_default=True,
    help="Data type of the model's weights, such as bfloat16.",
)
@click.option("--revision", help="Revision of a model from a hub.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.pass_context
def generate(
    context: click.Context,
    /,
    model: str,
    plan: Path | None,
    prompt: str,
    dense: bool,
    comparing: bool,
    save_cache: Path | None,
    device: str,
    dtype: str,
    revision: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Generate text under a plan, and report speed and memory.

    The text goes to standard output; speed, cache and memory go to standard error.

    MODEL is a decoder: hub name, folder, GGUF file or demo:smollm2.

    \b
    Examples:
      esscher generate demo:smollm2 --plan plan.json --prompt prompt.txt
      esscher generate demo:smollm2 --plan plan.json --prompt prompt.txt --compare
      esscher generate demo:smollm2 --dense --prompt - --max-new-tokens 32
    """  # noqa: D301 - click's mark for verbatim lines
    _check_options(context, plan, dense, comparing)
    check_output(save_cache, "--save-cache")
    # Imported here: reading plans takes time that `esscher --help` should not.
    from esscher.engine.models.choice import ModelChoice
    from esscher.studies.plan.generate import Request, read_plan, read_prompt

    request = Request(
        model=ModelChoice(model, device, dtype, revision),
        plan=None if dense or plan is None else read_plan(plan),
        prompt=read_prompt(prompt),
        comparing=comparing,
        save_cache=save_cache,
        **options,
    )
    with _notes():
        found = request.run()
    stored = _stored(request, found)
    if as_json:
        print_json(request.to_dict() | found.to_dict())
    elif comparing:
        _print_comparison(found)  # type: ignore[arg-type]
    else:
        _print_generation(found)  # type: ignore[arg-type]
    for name, path in (("Cache", save_cache), ("For esscher report", stored)):
        if path is not None and not as_json:
            say(f"{name}: {path}", err=True)


def _stored(request: Request, found: Generation | Comparison) -> Path | None:
    """Keep what a comparison measured with the run of its plan, if it has one."""
    from esscher.engine.generation import Comparison
    from esscher.studies.plan.generate import store_savings

    folder = None if request.plan is None else request.plan.folder
    if folder is None or not isinstance(found, Comparison):
        return None
    return store_savings(found, folder)


def _check_options(context: click.Context, plan: Path | None, dense: bool, comparing: bool) -> None:
    """Refuse options that do not go together."""
    if not dense and plan is None:
        raise InputError(
            "there is no plan to generate with; give --plan plan.json (esscher plan makes one), or "
            "--dense to keep all tokens"
        )
    if not dense:
        return
    if comparing:
        raise InputError(
            "--compare generates both ways, --dense only one; give --compare with --plan, or "
            "--dense alone"
        )
    given = ParameterSource.COMMANDLINE
    cache = [flag for name, flag in OF_CACHE.items() if context.get_parameter_source(name) == given]
    if cache:
        raise InputError(
            f"{', '.join(cache)}: only for the cache of a plan, which --dense does not have; leave "
            "it out, or give --plan instead of --dense"
        )


@contextmanager
def _notes() -> Iterator[None]:
    """Say warnings of the library, such as for weights of another type, in one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for said in dict.fromkeys(str(one.message) for one in caught if one.category is UserWarning):
        say(f"Note: {said}", err=True)


def _print_generation(found: Generation) -> None:
    # a terminal acts on control characters; a file gets what was generated
    click.echo(printable(found.text) if sys.stdout.isatty() else found.text)
    read = _speed(found.prompt_seconds, found.prompt_rate)
    decoded = _speed(found.decode_seconds, found.decode_rate)
    for line in (
        f"Prompt: {counted(found.tokens, 'token')}{read}",
        f"Generated: {counted(found.new_tokens, 'token')}{decoded}",
        f"Cache: {byte_count(found.cache_bytes)}{_of_dense(found)}",
        f"Peak memory: {_memory(found.peak)}",
    ):
        click.echo(line, err=True)


def _print_comparison(found: Comparison) -> None:
    console = plain_console()
    _print_texts(found, console)
    console.print()
    _print_costs(found.dense, found.planned, console)


def _print_texts(found: Comparison, console: PlainConsole) -> None:
    """What both texts share, and how each goes on."""
    dense, planned = found.dense, found.planned
    if found.parts_at is None:
        console.say(f"Both texts are the same, {counted(dense.new_tokens, 'token')}:", "bold")
        console.say(dense.text)
        return
    if found.parts_at > 1:
        same = counted(found.parts_at - 1, "token")
        console.say(f"Both texts begin alike, for {same}:", "bold")
        console.say(found.common)
    longest = max(dense.new_tokens, planned.new_tokens)
    before = " ".join(found.before.split())
    console.say(
        f"They part at token {found.parts_at:,} of {longest:,}, after {_quoted(before)}:", "bold"
    )
    for name, one, likelihood in zip(
        ("dense", "plan"), (dense, planned), found.likelihood, strict=True
    ):
        rest = one.text.removeprefix(found.common)
        said = "unlikely" if likelihood is None else f"{likelihood:.1%} likely"
        console.say(_quoted(rest), lead=f"{name} ({said} for dense): ")


def _print_costs(dense: Generation, planned: Generation, console: PlainConsole) -> None:
    table = plain_table("What it took")
    table.add_column("what")
    for name in ("dense", "plan", "plan / dense"):
        table.add_column(name, justify="right")
    for name, shown, first, second in (
        ("prompt, seconds", _digits, dense.prompt_seconds, planned.prompt_seconds),
        ("generated, tokens/s", plain_count, dense.decode_rate, planned.decode_rate),
        ("cache", byte_count, dense.cache_bytes, planned.cache_bytes),
        ("peak memory", byte_count, dense.peak.bytes, planned.peak.bytes),
    ):
        ratio = ""
        if first and second is not None:
            same = name == "peak memory" and abs(first - second) <= NOISE
            ratio = "about 1" if same else f"{second / first:.3g}"
        table.add_row(
            name,
            "" if first is None else shown(first),
            "" if second is None else shown(second),
            ratio,
        )
    console.print(table)
    console.explain(
        f"Prompt of {counted(dense.tokens, 'token')}; the plan's cache holds {planned.kept:.1%} of "
        "all tokens. Peak memory is of the process, with the weights of the model"
        + (
            ", and of all it did: this system cannot measure the runs apart."
            if planned.peak.whole
            else ", during each run."
        )
        + f" Peaks of the same run differ by up to {byte_count(NOISE)}."
    )


def _quoted(text: str) -> str:
    return f'"{text}"'


def _speed(seconds: float, rate: float | None) -> str:
    return "" if rate is None else f" in {seconds:.3g} s ({plain_count(rate)} tokens/s)"


def _of_dense(found: Generation) -> str:
    if found.cache_bytes == found.dense_bytes:
        return ", dense"
    share = found.cache_bytes / found.dense_bytes
    return (
        f", {share:.1%} of {byte_count(found.dense_bytes)} dense; {found.kept:.1%} of the tokens "
        "are kept"
    )


def _digits(value: float) -> str:
    return f"{value:.3g}"


def _memory(peak: PeakMemory) -> str:
    if peak.bytes is None:
        return "not told by this system"
    return byte_count(peak.bytes) + (" (of all the process did)" if peak.whole else "")
