"""``esscher deep``: how the sampling error of attention travels through layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from esscher.cli.cluster import chosen_cluster, cluster_options
from esscher.cli.endings import finish, save_figure
from esscher.cli.options import (
    check_figure,
    geometric_sizes,
    model_options,
    plain_console,
    plain_table,
)
from esscher.cli.stopping import resumable
from esscher.core.shown import with_error
from esscher.show.tables import PlainConsole

if TYPE_CHECKING:
    from esscher.studies.deep import Depth

#: Words for the numbers of a model's end.
END_TITLES = {
    "kl": "KL (nats)",
    "top1": "same top token",
    "perplexity": "perplexity",
    "cosine": "cosine",
}


@click.command()
@click.argument("model", metavar="MODEL|gaussian")
@click.option("--text", help="Models: file, folder, -, demo:code, hf:NAME (default demo:docs).")
@click.option("--column", help="Models: column of a table that holds the text.")
@click.option(
    "--budgets",
    metavar="A:B:K",
    help="Models: geometric grid of numbers n of keys (default: 5 up to half of the keys).",
)
@click.option(
    "--context", type=int, help="Models: tokens of a passage (default 512; decoders 1024)."
)
@click.option("--passages", type=int, help="Models: number of passages (default 4).")
@click.option("--draws", type=int, help="Models: samples of each budget (default 2).")
@click.option(
    "--mode",
    type=click.Choice(["independent", "shared", "both"]),
    help="Models: new keys in every layer, the same in all, or both (default both).",
)
@click.option(
    "--terciles",
    type=click.Choice(["model", "layer", "none"]),
    help="Models: sample one third of the heads at a time, by horizon (default: of the model).",
)
@click.option("--depth", type=int, help="Gaussian: number of layers (default 12).")
@click.option("--dim", type=int, help="Gaussian: dimension of the tokens (default 8).")
@click.option("--horizon", type=float, help="Gaussian: horizon of every layer (default 0.5).")
@click.option(
    "--residual", type=float, help="Gaussian: factor of the residual connection (default 1)."
)
@click.option(
    "--output-scale", type=float, help="Gaussian: gain of the attention branch (default 0.5)."
)
@click.option("--tau", type=float, help="Gaussian: length of the mean tilt (default 0).")
@click.option(
    "--sizes", metavar="A:B:K", help="Gaussian: geometric grid of sizes n (default 256:8192:6)."
)
@click.option("--replicates", type=int, help="Gaussian: samples of tokens (default 32).")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything random.")
@model_options
@cluster_options
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the run.")
@click.option("--figure", type=click.Path(path_type=Path), help="Figure: .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def deep(
    model: str,
    budgets: str | None,
    sizes: str | None,
    scheduler: str | None,
    cluster: Path | None,
    out: Path | None,
    figure: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how the error of sampled attention travels through layers.

    MODEL is a hub name, a folder, a GGUF file, demo:minilm or demo:smollm2: all layers attend to n
    keys only, and the error is followed to the end of the model. "gaussian" is a random stack of
    attention layers, whose limit is known exactly. Stopped or killed, the same command with --out
    resumes.

    \b
    Examples:
      esscher deep gaussian --depth 12 --dim 8 --horizon 0.5 --residual 1
      esscher deep demo:smollm2 --budgets 64:384:5 --out runs/deep --figure deep.png
    """  # noqa: D301 - click's mark for verbatim lines
    check_figure(figure)
    # Imported here: torch and transformers take seconds that `esscher --help` should not.
    from esscher.studies.deep import deep as run

    with resumable(out), chosen_cluster(scheduler, cluster) as executor:
        found = run(
            model,
            budgets=None if budgets is None else geometric_sizes(budgets, 1, "--budgets"),
            sizes=None if sizes is None else geometric_sizes(sizes),
            out=out,
            executor=executor,
            **options,
        )
    save_figure("deep", found, figure)
    finish(found.to_dict, lambda: print_depth(found), as_json, out, {"Figure": figure})


def print_depth(found: Depth) -> None:
    """Print the headline, the layers, and the end of the model or the measured limit."""
    console = plain_console()
    console.say(found.headline, "bold")
    console.say_note(found.results["configuration"].get("model", {}).get("note"))
    if not found.layers:
        return
    if found.is_gaussian:
        _print_stack(console, found)
        return
    for mode in found.layers[0]["error"]:
        _print_mode(console, found, mode)
    _print_end(console, found)
    _print_terciles(console, found)
    console.explain(
        "n=...: relative error of the tokens behind the block, root mean square. At the middle "
        "budget, median: of the tokens; fresh: error that the layer's own sample makes, relative "
        "to that of its attention output; growth: ratio of the error to that of the layer before; "
        "exponent: of error ~ C n^-beta, corrected for drawing without replacement. In brackets: "
        "half the width of the 95% interval over passages and draws, last digits; for the end it "
        "is over passages. * marks exponents not to be trusted.",
    )


def _print_stack(console: PlainConsole, found: Depth) -> None:
    sizes, configuration = found.sizes, found.results["configuration"]
    table = plain_table(
        f"{configuration['depth']} layers, d = {configuration['dim']}, "
        f"H = {configuration['horizon']:g}: error of a token against its limit",
        least=("cov", "mean", "growth", "limit"),
    )
    names = ("layer", f"n={sizes[-1]}", "growth", "map", "mean", "cov", "limit")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for layer, limit in zip(found.layers, found.results["limit"], strict=True):
        error = layer["error"]["map"]["mean"][-1]
        largest = limit["largest"]
        table.add_row(
            str(layer["layer"]),
            f"{100 * error:.3g}%",
            _growth(layer["growth"]["map"][-1]),
            *(_exponent(layer["fit"][metric]) for metric in ("map", "mean", "cov")),
            "" if largest is None else f"{largest:.1f}",
        )
    console.print(table)
    console.explain(
        "error: root mean square over tokens, relative; growth: ratio to the layer before, at the "
        "largest n; map, mean, cov: exponents of error ~ C n^-beta, in brackets half the width of "
        "the 95% interval (last digits), * marks those not to be trusted; limit: largest "
        f"deviation of the measured limit from the recursion, in standard errors{_bound(found)}.",
    )


def _bound(found: Depth) -> str:
    limit = found.results["limit"][-1]
    if limit["bound"] is None or limit["doubt"] is not None:
        return ""
    return f" (the largest of {limit['entries']} stays below {limit['bound']:.1f} with 95%)"


def _print_mode(console: PlainConsole, found: Depth, mode: str) -> None:
    budgets, middle = found.sizes, len(found.sizes) // 2
    shown = sorted({0, middle, len(budgets) - 1})
    name = found.results["configuration"]["model"]["name"]
    table = plain_table(
        f"{name}, {mode} samples: relative error by layer",
        least=("median", "fresh", "growth", f"n={budgets[middle]}"),
    )
    for column in (
        "layer",
        *(f"n={budgets[j]}" for j in shown),
        "median",
        "fresh",
        "growth",
        "exponent",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for layer in found.layers:
        whole = layer["attention"][mode]["mean"][middle]
        share = layer["fresh"][mode]["mean"][middle] / whole if whole > 0 else 0.0
        table.add_row(
            str(layer["layer"]),
            *(f"{100 * layer['error'][mode]['mean'][j]:.3g}%" for j in shown),
            f"{100 * layer['typical'][mode]['mean'][middle]:.3g}%",
            f"{100 * share:.0f}%",
            _growth(layer["growth"][mode][middle]),
            _exponent(layer["fit"][mode]),
        )
    console.print(table)


def _print_end(console: PlainConsole, found: Depth) -> None:
    end, budgets = found.results["end"], found.sizes
    table = plain_table("End of the model against the dense one, ± half of the 95% interval")
    table.add_column("sampled", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    for name in end:
        table.add_column(END_TITLES[name], justify="right", no_wrap=True)
    variants = next(iter(end.values()))
    for variant in variants:
        for j, n in enumerate(budgets):
            table.add_row(variant, str(n), *(_interval(end[name][variant], j) for name in end))
    if "perplexity" in end:
        blank = [""] * (len(end) - 1)
        table.add_row("nothing", "", *blank, _interval(end["perplexity"]["dense"], 0))
    console.print(table)
    main = "kl" if "kl" in end else "cosine"
    for variant in variants:
        fit = end[main][variant]["fit"]
        if fit is not None:
            what = "KL" if main == "kl" else "1 - cosine"
            console.say(f"{what}, {variant}: exponent {_exponent(fit)}")


def _print_terciles(console: PlainConsole, found: Depth) -> None:
    terciles = found.results["terciles"]
    if terciles is None:
        return
    middle = len(found.sizes) // 2
    where = "in each layer" if terciles["scope"] == "layer" else "in the whole model"
    table = plain_table(
        f"Thirds of the heads by horizon, {where}", least=("layer", "heads", "median", "common")
    )
    for name in ("third", "heads", "H from", "median", "to", "layer", "error", "common"):
        table.add_column(name, justify="left" if name == "third" else "right", no_wrap=True)
    for name, about in terciles["heads"].items():
        table.add_row(
            name,
            str(about["heads"]),
            *(f"{about[f'horizon_{side}']:.2f}" for side in ("min", "median", "max")),
            f"{about['mean_layer']:.1f}",
            *(_percent(terciles[part], name, middle) for part in ("error", "common")),
        )
    console.print(table)
    console.explain(
        "layer: mean over the heads; error behind the last block and share of it that is common "
        f"to all tokens, with n = {found.sizes[middle]}.",
    )


def _percent(errors: dict[str, Any], name: str, j: int) -> str:
    return f"{100 * errors[name]['mean'][j]:.3g}%" if name in errors else ""


def _interval(found: dict[str, Any], j: int) -> str:
    ends = found["interval"][j]
    if ends is None:
        return f"{found['mean'][j]:.3g}"
    return f"{found['mean'][j]:.3g} ± {(ends[1] - ends[0]) / 2:.2g}"


def _growth(step: dict[str, Any] | None) -> str:
    if step is None:
        return ""
    return _with_interval(step["factor"], *step["interval"])


def _exponent(fit: dict[str, Any] | None) -> str:
    if fit is None:
        return ""
    return _with_interval(fit["exponent"], *fit["interval"]) + ("" if fit["trusted"] else "*")


def _with_interval(value: float, low: float | None, high: float | None) -> str:
    """Two decimals, with half the width of the interval in units of the last."""
    return with_error(value, None if low is None or high is None else (high - low) / 2, 2)
