"""``esscher tails``: whether the sub-Gaussian assumption holds for the tokens of a real model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from esscher.cli.cluster import chosen_cluster, cluster_options
from esscher.cli.endings import finish, save_figure
from esscher.cli.options import (
    check_figure,
    model_options,
    plain_console,
    plain_table,
    whole_numbers,
)
from esscher.cli.stopping import resumable
from esscher.cli.tables import PlainConsole
from esscher.core.shown import counted, with_error

if TYPE_CHECKING:
    from esscher.studies.tails import Tails

#: Heads that the table shows unless all are asked for.
SHOWN = 15
#: Characters of a token that are shown.
TOKEN = 9


@click.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--text", default="demo:docs", show_default=True, help="File, folder, -, demo:code, hf:NAME."
)
@click.option("--column", help="Column of a .jsonl or .parquet file that holds the text.")
@click.option("--tokens", type=int, default=16_384, show_default=True, help="Text tokens in all.")
@click.option("--context", type=int, help="Tokens of a passage (default 512).")
@click.option("--layers", metavar="LIST", help="Such as 0,3 or 0-5 (default: all).")
@click.option("--heads", metavar="LIST", help="Such as 0,3 or 0-5 (default: all).")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of halves and starts.")
@model_options
@cluster_options
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the run.")
@click.option("--figure", type=click.Path(path_type=Path), help="Heatmaps: .png, .svg or .pdf.")
@click.option("--all", "everything", is_flag=True, help="Show all heads, not the worst ones.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def tails(
    model: str,
    text: str,
    layers: str | None,
    heads: str | None,
    scheduler: str | None,
    cluster: Path | None,
    out: Path | None,
    figure: Path | None,
    everything: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Test whether the keys of MODEL are sub-Gaussian.

    For every head: the worst direction of its keys (searched for in one half of the passages,
    judged on the other), their sub-Gaussian parameter, kurtosis, type of tail, and k-hat of norms
    and logits. Stopped or killed, the same command with --out resumes.

    \b
    Examples:
      esscher tails demo:minilm --out runs/tails --figure tails.png
      esscher tails ./my-model --text corpus.jsonl --column text --layers 0-3
    """  # noqa: D301 - click's mark for verbatim lines
    check_figure(figure)
    # Imported here: torch and transformers take seconds that `esscher --help` should not.
    from esscher.studies.tails import tails as run

    with resumable(out), chosen_cluster(scheduler, cluster) as executor:
        found = run(
            model,
            text,
            layers=whole_numbers(layers, "--layers"),
            heads=whole_numbers(heads, "--heads"),
            out=out,
            executor=executor,
            **options,
        )
    save_figure("tails", found, figure)
    finish(found.to_dict, lambda: print_tails(found, everything), as_json, out, {"Figure": figure})


def print_tails(found: Tails, everything: bool = False) -> None:
    """Print the headline, the worst heads, the layers' own tokens and what the verdicts mean."""
    console = plain_console()
    console.say(found.headline, "bold")
    console.say_note(found.results)
    if not found.heads:
        return
    name = found.results["configuration"]["model"]["name"]
    order = sorted(found.heads, key=lambda h: -h["proxy"]["value"])
    shown = order if everything else order[:SHOWN]
    hidden = len(order) - len(shown)
    table = _table(
        f"{name}: "
        + ("keys of all heads" if not hidden else f"the {len(shown)} heads of largest proxy"),
        "head",
    )
    for head in shown:
        table.add_row(f"{head['layer']}.{head['head']}", *_cells(head), _number(head["logits"]))
    console.print(table)
    if hidden:
        console.say(f"{counted(hidden, 'more head')}; --all shows all.")
    layers = [layer for layer in found.results["layers"] if layer["hidden"] is not None]
    if layers:
        table = _table(f"{name}: hidden states that enter each layer", "layer", logits=False)
        for layer in layers:
            table.add_row(str(layer["layer"]), *_cells(layer["hidden"]))
        console.print(table)
    _print_meanings(console, found)
    console.explain(
        "proxy: smallest s with ln E exp(t p) <= s t^2/2 along the worst direction found, over "
        "the tilts that the sample knows (1: Gaussian); kurt.: excess kurtosis; tau: interval, of "
        "the tail exp(-c x^tau) that decides (2: Gaussian, 1: exponential, 13: cut off); "
        "furthest: token that reaches furthest; norms, logits: generalised-Pareto k-hat; in "
        "brackets half the width of 95% intervals, last digits. All but norms and logits are "
        "judged on passages that had no part in choosing the direction.",
    )


def _table(title: str, first: str, logits: bool = True) -> Any:
    table = plain_table(title, least=("furthest", "norms", "logits", "kurt."))
    names = [first, "proxy", "kurt.", "tau", "type", "furthest", "norms"]
    for name in [*names, "logits"] if logits else names:
        words = name in ("type", "furthest")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    return table


def _cells(numbers: dict[str, Any]) -> list[str]:
    low, high = numbers["decided_by"]["tau_interval"]
    token = numbers["tokens_in_tail"][0]["token"]
    return [
        _number(numbers["proxy"]),
        _number(numbers["kurtosis"], 0),
        f"{low:.2f}-{high:.2f}",
        _letter(numbers["verdict"]),
        (token.strip() or repr(token))[:TOKEN],
        _number(numbers["norms"]),
    ]


def _letter(verdict: str) -> str:
    from esscher.studies.tails.verdict import LETTERS

    return LETTERS[verdict]


def _number(found: dict[str, Any], decimals: int = 2) -> str:
    """A number with half the width of its interval, in units of the last digit."""
    if found["value"] is None:
        return "-"
    half = (found["interval"][1] - found["interval"][0]) / 2
    return with_error(found["value"], half, decimals)


def _print_meanings(console: PlainConsole, found: Tails) -> None:
    """The verdicts that occur, how often, and what they mean."""
    table = plain_table("Verdicts", least=("with delimiters",))
    table.add_column("type", no_wrap=True)
    table.add_column("heads", justify="right")
    table.add_column("with delimiters", justify="right")
    table.add_column("what it means")
    seen = {head["verdict"]: head["meaning"] for head in found.heads}
    for head in found.heads:
        if head["with_delimiters"] is not None:
            seen.setdefault(head["with_delimiters"]["verdict"], head["with_delimiters"]["meaning"])
    for verdict, meaning in seen.items():
        own = sum(head["verdict"] == verdict for head in found.heads)
        others = [h["with_delimiters"] for h in found.heads if h["with_delimiters"] is not None]
        count = str(sum(o["verdict"] == verdict for o in others)) if others else "-"
        table.add_row(f"{_letter(verdict)}: {verdict}", str(own), count, meaning)
    console.print(table)
