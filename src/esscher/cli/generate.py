"""``esscher generate``: text under a plan, and what it takes."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from esscher.cli.printing import BlockCommand, check_output, print_json, say
from esscher.core.errors import InputError
from esscher.core.memory import NOISE
from esscher.core.shown import byte_count, counted, plain_count, printable

if TYPE_CHECKING:
    from esscher.engine.generation import Comparison, Generation

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
    if not dense and plan is None:
        raise InputError(
            "there is no plan to generate with; give --plan plan.json (esscher plan makes one), or "
            "--dense to keep all tokens"
        )
    if dense and comparing:
        raise InputError(
            "--compare generates both ways, --dense only one; give --compare with --plan, or "
            "--dense alone"
        )
    given = ParameterSource.COMMANDLINE
    cache = [flag for name, flag in OF_CACHE.items() if context.get_parameter_source(name) == given]
    if dense and cache:
        raise InputError(
            f"{', '.join(cache)}: only for the cache of a plan, which --dense does not have; leave "
            "it out, or give --plan instead of --dense"
        )
    check_output(save_cache, "--save-cache")
    # Imported here: reading plans takes time that `esscher --help` should not.
    from esscher.engine.models.choice import ModelChoice
    from esscher.studies.plan.generate import (
        Request,
        read_plan,
        read_prompt,
        store_savings,
    )

    request = Request(
        model=ModelChoice(model, device, dtype, revision),
        plan=None if dense or plan is None else read_plan(plan),
        prompt=read_prompt(prompt),
        comparing=comparing,
        save_cache=save_cache,
        **options,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)  # such as of weights of another type
        result: Any = request.run()
    for note in dict.fromkeys(str(w.message) for w in caught if w.category is UserWarning):
        say(f"Note: {note}", err=True)
    # what a comparison took is kept with the run of its plan
    folder = None if request.plan is None or not comparing else request.plan.folder
    stored = None if folder is None else store_savings(result, folder)
    if as_json:
        print_json(request.to_dict() | result.to_dict())
        return
    if comparing:
        _print_comparison(result)
    else:
        _print_generation(result)
    for name, path in (("Cache", save_cache), ("For esscher report", stored)):
        if path is not None:
            say(f"{name}: {path}", err=True)


def _print_generation(result: Generation) -> None:
    # a terminal acts on control characters; a file gets what was generated
    click.echo(printable(result.text) if sys.stdout.isatty() else result.text)
    for name, tokens, seconds, rate in (
        ("Prompt", result.tokens, result.prompt_seconds, result.prompt_rate),
        ("Generated", result.new_tokens, result.decode_seconds, result.decode_rate),
    ):
        speed = "" if rate is None else f" in {seconds:.3g} s ({plain_count(rate)} tokens/s)"
        click.echo(f"{name}: {counted(tokens, 'token')}{speed}", err=True)
    of_dense = ", dense"
    if result.cache_bytes != result.dense_bytes:
        share = result.cache_bytes / result.dense_bytes
        of_dense = (
            f", {share:.1%} of {byte_count(result.dense_bytes)} dense; {result.kept:.1%} of the "
            "tokens are kept"
        )
    click.echo(f"Cache: {byte_count(result.cache_bytes)}{of_dense}", err=True)
    memory = "not told by this system"
    if result.peak.bytes is not None:
        whole = " (of all the process did)" if result.peak.whole else ""
        memory = f"{byte_count(result.peak.bytes)}{whole}"
    click.echo(f"Peak memory: {memory}", err=True)


def _print_comparison(result: Comparison) -> None:
    """Print what both texts share, how each goes on, and what each took."""
    from esscher.show.tables import PlainConsole, PlainTable

    console = PlainConsole()
    dense, planned = result.dense, result.planned
    if result.parts_at is None:
        console.say(f"Both texts are the same, {counted(dense.new_tokens, 'token')}:", "bold")
        console.say(dense.text)
    else:
        if result.parts_at > 1:
            same = counted(result.parts_at - 1, "token")
            console.say(f"Both texts begin alike, for {same}:", "bold")
            console.say(result.common)
        longest = max(dense.new_tokens, planned.new_tokens)
        before = " ".join(result.before.split())
        console.say(
            f'They part at token {result.parts_at:,} of {longest:,}, after "{before}":', "bold"
        )
        for name, text, likelihood in zip(
            ("dense", "plan"), (dense.text, planned.text), result.likelihood, strict=True
        ):
            likely = "unlikely" if likelihood is None else f"{likelihood:.1%} likely"
            rest = text.removeprefix(result.common)
            console.say(f'"{rest}"', lead=f"{name} ({likely} for dense): ")
    console.print()

    table = PlainTable("What it took")
    table.add_column("what")
    for name in ("dense", "plan", "plan / dense"):
        table.add_column(name, justify="right")
    for name, shown, first, second in (
        ("prompt, seconds", "{:.3g}".format, dense.prompt_seconds, planned.prompt_seconds),
        ("generated, tokens/s", plain_count, dense.decode_rate, planned.decode_rate),
        ("cache", byte_count, dense.cache_bytes, planned.cache_bytes),
        ("peak memory", byte_count, dense.peak.bytes, planned.peak.bytes),
    ):
        ratio = ""
        if first and second is not None:
            same_peak = name == "peak memory" and abs(first - second) <= NOISE
            ratio = "about 1" if same_peak else f"{second / first:.3g}"
        cells = ["" if number is None else shown(number) for number in (first, second)]
        table.add_row(name, *cells, ratio)
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
