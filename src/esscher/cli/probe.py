"""``esscher probe``: the numbers for every layer and head of a real model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from esscher.cli.cluster import chosen_cluster, cluster_options
from esscher.cli.endings import finish, save_figure
from esscher.cli.options import (
    check_figure,
    geometric_sizes,
    model_options,
    plain_console,
    plain_table,
    whole_numbers,
)
from esscher.cli.stopping import resumable
from esscher.core.errors import InputError
from esscher.core.shown import counted, with_error
from esscher.show.tables import PlainConsole

if TYPE_CHECKING:
    from esscher.studies.probe import Probe

#: Heads that the table shows unless all are asked for.
SHOWN = 15


@click.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--text", default="demo:docs", show_default=True, help="File, folder, -, demo:code, hf:NAME."
)
@click.option("--column", help="Column of a .jsonl or .parquet file that holds the text.")
@click.option(
    "--mode",
    type=click.Choice(["pooled", "context"]),
    default="pooled",
    show_default=True,
    help="All tokens as one cloud, or real sequences with positions and visibility.",
)
@click.option(
    "--tokens", type=int, help="Tokens in all (default 9216; 2 passages in context mode)."
)
@click.option(
    "--context", type=int, help="Tokens of a passage (default 512; 4096 in context mode)."
)
@click.option("--layers", metavar="LIST", help="Such as 0,3 or 0-5 (default: all).")
@click.option("--heads", metavar="LIST", help="Such as 0,3 or 0-5 (default: all).")
@click.option("--sizes", metavar="A:B:K", help="Geometric grid of sizes n (default 64:2048:6).")
@click.option("--replicates", type=int, default=32, show_default=True, help="Samples of tokens.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the samples.")
@click.option(
    "--sampling",
    type=click.Choice(["with", "without"]),
    default="with",
    show_default=True,
    help="With or without replacement (corrected for the finite population).",
)
@model_options
@cluster_options
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the run.")
@click.option("--figure", type=click.Path(path_type=Path), help="Heatmaps: .png, .svg or .pdf.")
@click.option(
    "--figure-layers",
    type=click.Path(path_type=Path),
    help="Heads of each layer together: .png, .svg or .pdf.",
)
@click.option("--all", "everything", is_flag=True, help="Show all heads, not the worst ones.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def probe(
    model: str,
    text: str,
    layers: str | None,
    heads: str | None,
    sizes: str | None,
    replicates: int,
    scheduler: str | None,
    cluster: Path | None,
    out: Path | None,
    figure: Path | None,
    figure_layers: Path | None,
    everything: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure every layer and head of MODEL.

    MODEL is a hub name, a folder, a GGUF file, demo:minilm or demo:smollm2. Stopped or killed, the
    same command with --out resumes.

    \b
    Examples:
      esscher probe demo:minilm --text demo:docs --out runs/minilm
      esscher probe ./my-model --text corpus.jsonl --column text --tokens 50000
      esscher probe demo:smollm2 --mode context --context 4096
    """  # noqa: D301 - click's mark for verbatim lines
    check_figure(figure)
    check_figure(figure_layers, "--figure-layers")
    chosen = whole_numbers(heads, "--heads")
    if figure_layers is not None and ((chosen is not None and len(chosen) < 2) or replicates < 4):
        raise InputError(
            f"--figure-layers {figure_layers}: it takes at least 2 heads and 4 replicates to see "
            "what heads have in common"
        )
    # Imported here: torch and transformers take seconds that `esscher --help` should not.
    from esscher.studies.probe import probe as run

    with resumable(out), chosen_cluster(scheduler, cluster) as executor:
        found = run(
            model,
            text,
            layers=whole_numbers(layers, "--layers"),
            heads=chosen,
            sizes=None if sizes is None else geometric_sizes(sizes),
            replicates=replicates,
            out=out,
            executor=executor,
            **options,
        )
    save_figure("probe", found, figure)
    save_figure("probe", found, figure_layers, "layers")
    files = {"Figure": figure, "Figure of layers": figure_layers}
    finish(found.to_dict, lambda: print_probe(found, everything), as_json, out, files)


def print_probe(found: Probe, everything: bool = False) -> None:
    """Print the headline, the worst heads, the layers and how good the predictors were."""
    console = plain_console()
    console.say(found.headline, "bold")
    console.say_note(found.results["configuration"].get("model", {}).get("note"))
    if not found.heads:
        return
    configuration = found.results["configuration"]
    frame = found.to_frame().sort_values("tokens_10", ascending=False, na_position="first")
    shown = frame if everything else frame.head(SHOWN)
    hidden = len(frame) - len(shown)
    table = plain_table(
        f"{configuration['model']['name']}, {configuration['mode']} mode: "
        + ("all heads" if not hidden else f"the {len(shown)} heads that need most tokens"),
        least=("cov", "mean", "ESS", "k-hat", "H"),
    )
    for name in ("head", "H", "k-hat", "mean", "cov", "map", "ESS", "10%"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in shown.to_dict("records"):
        table.add_row(
            f"{row['layer']}.{row['head']}",
            f"{row['H']:.2f}",
            f"{row['khat']:.2f}",
            *(_with_interval(row, metric) for metric in ("mean", "cov", "map")),
            f"{row['ess']:.0f}",
            _tokens(row),
        )
    console.print(table)
    if hidden:
        console.say(f"{counted(hidden, 'more head')} with fewer tokens; --all shows all.")
    _print_flags(console, found, [(row["layer"], row["head"]) for row in frame.to_dict("records")])
    best = plain_table("Mean absolute error of predicted exponents, best first")
    for name in ("of", "predictor", "error"):
        best.add_column(name, justify="right" if name == "error" else "left")
    for row in found.predictors().to_dict("records"):
        best.add_row(row["metric"], row["predictor"], f"{row['mean absolute error']:.3f}")
    console.print(best)
    _print_layers(console, found)
    console.explain(
        "head: layer.head; k-hat of received attention: one pass predicts min(1/2, 1 - k-hat); "
        "mean, cov, map: exponents of error ~ C n^-beta, in brackets half the width of the 95% "
        "interval (last digits); ESS: tokens that the median query attends; 10%: tokens for 10% "
        "output error, with 95% interval.",
    )


def _print_flags(console: PlainConsole, found: Probe, order: list[tuple[int, int]]) -> None:
    """What stands against the numbers: how often, and the evidence at the worst head."""
    seen: dict[str, list[tuple[str, str]]] = {}
    for layer, head in order:
        for flag in found.head(int(layer), int(head))["flags"]:
            seen.setdefault(flag["flag"], []).append((f"{layer}.{head}", flag["evidence"]))
    if not seen:
        return
    table = plain_table("Flags: why numbers may not be what they seem")
    table.add_column("flag", no_wrap=True)
    table.add_column("heads", justify="right", no_wrap=True)
    table.add_column("evidence at the head that needs most tokens")
    for flag, heads in sorted(seen.items(), key=lambda item: -len(item[1])):
        table.add_row(flag, str(len(heads)), f"{heads[0][0]}: {heads[0][1]}")
    console.print(table)


def _tokens(row: dict[Any, Any]) -> str:
    """Tokens for 10% output error with their interval; what is beyond the grid is never."""
    value, low, high = (
        _short(row[name]) for name in ("tokens_10", "tokens_10_low", "tokens_10_high")
    )
    if value[-1] == low[-1] == high[-1] and value[-1] in "kM":
        low, high = low[:-1], high[:-1]
    return f"{value} ({low}-{high})"


def _short(number: float | None) -> str:
    """A number of tokens in at most five characters."""
    if number is None or np.isnan(number):
        return "never"
    for size, letter in ((1e6, "M"), (1e4, "k")):
        if number >= size:
            unit = 1e3 if letter == "k" else size
            return f"{number / unit:.{0 if number >= 10 * unit else 1}f}{letter}"
    return f"{number:.0f}"


def _print_layers(console: PlainConsole, found: Probe) -> None:
    """The heads of each layer together, a line per layer."""
    frame = found.layers_frame()
    if frame.empty:
        return
    count = int(frame["heads"].max())
    table = plain_table(
        f"Heads together: errors of the mean output of {count} heads",
        least=("worst", "mean", "side by side", "sum"),
    )
    for name in ("layer", "effective", "sum", "mean", "worst", "side by side", "projected"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in frame.to_dict("records"):
        table.add_row(
            str(row["layer"]),
            _with_interval(row, "effective_heads", 1),
            _with_interval(row, "amplification"),
            f"{row['heads_mean']:.2f}",
            f"{row['heads_worst']:.2f}",
            _with_interval(row, "side_by_side"),
            _with_interval(row, "projected"),
        )
    console.print(table)
    console.explain(
        "effective: number of heads with independent errors, (tr R)^2 / tr R^2 of the "
        "correlations R of errors behind the output projection; sum: squared error of the sum of "
        "heads over the sum of their squared errors (1: independent); then exponents: mean and "
        "worst of the heads, heads side by side, and behind the output projection.\n",
    )


def _with_interval(row: dict[Any, Any], name: str, decimals: int = 2) -> str:
    """A number with half the width of its interval, in units of the last digit."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    half = None if low is None or high is None else (high - low) / 2
    return with_error(row[name], half, decimals)
