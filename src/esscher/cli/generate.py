"""``esscher generate``: text under a plan, with speed and memory."""

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
from esscher.core.options import LARGEST
from esscher.core.shown import announce, byte_count, counted, plain_count, printable
from esscher.engine.cache.budgets import check_repeat
from esscher.engine.models.choice import ModelChoice
from esscher.engine.models.outline import Outline
from esscher.engine.text.documents import decoded, file_chunks, read_text, stream_chunks
from esscher.runs.registry import load

if TYPE_CHECKING:
    from esscher.engine.cache.budgets import Score
    from esscher.engine.cache.cache import Decode, ReducedCache
    from esscher.engine.generation import Comparison, Generation
    from esscher.studies.plan.result import Plan

#: Lowest temperature: logits divided by it are far from overflow, and ties alone are drawn.
COLDEST = 1e-5
#: Most characters of a demo text that are a prompt, some 2,000 tokens; it ends with a paragraph.
DEMO_PROMPT = 8_000
#: Most characters of a prompt.
MOST_PROMPT = 2**26
COUNT = click.IntRange(min=1)
#: Options that are about the cache of a plan, by the names of their values.
OF_CACHE = {
    "comparing": "--compare",
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
    "--max-new-tokens", type=COUNT, default=128, show_default=True, help="Most tokens to generate."
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
@click.option("--chunk", type=COUNT, help="Read the prompt in pieces of this many tokens.")
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
    type=click.FloatRange(min=COLDEST),
    help="Sample at this temperature (default: always the most likely token).",
)
@click.option(
    "--seed",
    type=click.IntRange(0, LARGEST),  # PyTorch takes no larger ones
    default=0,
    show_default=True,
    help="Seed of what is kept and of sampling.",
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
    max_new_tokens: int,
    dense: bool,
    comparing: bool,
    decode: Decode,
    chunk: int | None,
    score: Score | None,
    chat: bool,
    temperature: float | None,
    seed: int,
    save_cache: Path | None,
    device: str,
    dtype: str,
    revision: str | None,
    as_json: bool,
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
    given = ParameterSource.COMMANDLINE
    cache = [flag for name, flag in OF_CACHE.items() if context.get_parameter_source(name) == given]
    if dense and cache:
        raise InputError(
            f"{', '.join(cache)}: only with the cache of a plan, which --dense does not have; "
            "leave it out, or give --plan instead of --dense"
        )
    check_output(save_cache, "--save-cache")
    chosen = None if dense or plan is None else read_plan(plan)
    text = read_prompt(prompt)
    choice = ModelChoice(model, device, dtype, revision)
    _check_model(choice.outline, chosen, max_new_tokens)
    if chosen is not None and (score or chosen.score) == "repeat":
        check_repeat(decode, chunk)
    options: dict[str, Any] = {
        "model": model,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "seed": seed,
        "chat": chat,
    }
    of_cache: dict[str, Any] = {"seed": seed, "decode": decode, "chunk": chunk, "score": score}
    if chosen is not None:
        options |= of_cache | {"score": score or chosen.score}

    def make_cache() -> ReducedCache | None:
        return None if chosen is None else chosen.cache(loaded, **of_cache)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)  # such as of weights of another type
        announce(f"Loading {model}")
        from esscher.engine import generation  # brings torch

        loaded = choice.load()
        ids = generation.prompt_ids(loaded, text, max_new_tokens, chat=chat)
        made = make_cache()  # a plan for another model is refused here
        announce(f"Reading {counted(len(ids), 'token')}")
        how: dict[str, Any] = {"new": max_new_tokens, "temperature": temperature, "seed": seed}
        result: Any
        if comparing:
            result, made = generation.compare(loaded, ids, make_cache, **how)
        else:
            generation.warm_up(loaded, ids, make_cache())
            result = generation.generate(loaded, ids, made, **how)
        if save_cache is not None and made is not None:
            made.save(save_cache)
    for note in dict.fromkeys(str(w.message) for w in caught if w.category is UserWarning):
        say(f"Note: {note}", err=True)
    if as_json:
        print_json(options | result.to_dict())
        return
    if comparing:
        _print_comparison(result)
    else:
        _print_generation(result)
    if save_cache is not None:
        say(f"Cache: {save_cache}", err=True)


def read_plan(path: Path) -> Plan:
    """Read a plan from its file, or from the directory of its run.

    Raises
    ------
    InputError
        If there is none, or it is something else.
    """
    from esscher.studies.plan.result import UsesPlan

    result = load(path)
    if isinstance(result, UsesPlan):
        return result.plan
    raise InputError(
        f"{path} holds no plan, but a result of another study; make a plan with esscher plan MODEL "
        "--save plan.json"
    )


def read_prompt(source: str, most: int = MOST_PROMPT) -> str:
    """Read a prompt, as it is, from a file, from standard input, or from a demo text.

    Parameters
    ----------
    source
        The file; ``-`` for standard input; ``demo:code`` for the beginning of that text.
    most
        Characters that are read at most.

    Raises
    ------
    InputError
        If it is not there, no UTF-8 text, empty, or longer than any model reads.
    """
    if source.startswith("demo:"):
        text = "".join(piece.text for piece in read_text(source, limit_chars=DEMO_PROMPT))
        return text[: text.rindex("\n\n")]
    path, standard = Path(source).expanduser(), source == "-"
    if not standard and not path.is_file():
        raise InputError(
            f"there is no file {source!r} to read the prompt from; give a text file, - for "
            "standard input, or demo:code"
        )
    chunks = stream_chunks(sys.stdin.buffer) if standard else file_chunks(path)
    text, name = "", "standard input" if standard else source
    for chunk in decoded(chunks, name):
        text += chunk
        if len(text) > most:
            raise InputError(
                f"the prompt {name!r} has more than {most:,} characters, which no model reads at "
                "once; give a shorter text"
            )
    if not text.strip():
        raise InputError(f"the prompt {name!r} has no text in it; give a text with words")
    return text


def _check_model(outline: Outline, plan: Plan | None, new: int) -> None:
    """Refuse a model that cannot generate so many tokens, or is of another shape than the plan's.

    Weights are compared when they are loaded.
    """
    outline.check_supported()
    if not outline.causal:
        raise InputError(
            f"{outline.name!r} is an encoder, which cannot generate text; choose a decoder, such "
            "as demo:smollm2"
        )
    if new >= outline.max_positions:
        raise InputError(
            f"max_new_tokens is {new}, but {outline.name} reads at most {outline.max_positions} "
            "tokens, with the prompt; give fewer"
        )
    if plan is None:
        return
    first, second = (
        f"({family}: {shape.layers} layers of {shape.heads} heads, {shape.key_heads} key heads of "
        f"dimension {shape.head_dim}, {shape.hidden} hidden)"
        for family, shape in (
            (plan.model.family, plan.model),
            (outline.family.name, outline.shape),
        )
    )
    if first != second:
        raise InputError(
            f"the plan is for {plan.model.name!r} {first}, not for {outline.name!r} {second}; make "
            "a plan for it"
        )


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
    if result.peak is not None:
        click.echo(f"Peak memory: {byte_count(result.peak)}", err=True)


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

    table = PlainTable("Speed and memory")
    table.add_column("what")
    for name in ("dense", "plan", "plan / dense"):
        table.add_column(name, justify="right")
    for name, shown, first, second in (
        ("prompt, seconds", "{:.3g}".format, dense.prompt_seconds, planned.prompt_seconds),
        ("generated, tokens/s", plain_count, dense.decode_rate, planned.decode_rate),
        ("cache", byte_count, dense.cache_bytes, planned.cache_bytes),
        ("peak memory", byte_count, dense.peak, planned.peak),
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
        "all tokens. Peak memory is of the process, with the weights of the model, during each "
        f"run. Peaks of the same run differ by up to {byte_count(NOISE)}."
    )
