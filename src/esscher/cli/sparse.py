"""``esscher sparse``: what sparse attention patterns cost, on tokens of a law or in a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from esscher.cli.cluster import chosen_cluster, cluster_options
from esscher.cli.endings import finish, save_figure
from esscher.cli.options import (
    check_figure,
    geometric_sizes,
    numbers,
    plain_console,
    plain_table,
    whole_numbers,
)
from esscher.cli.stopping import resumable
from esscher.core.shown import plain_count, with_error

if TYPE_CHECKING:
    from esscher.studies.sparse import Sparsity


@click.command()
@click.argument("subject", metavar="MODEL|LAW")
@click.option(
    "--patterns", default="all", show_default=True, help="Names with commas, such as window,topk."
)
@click.option("--budgets", metavar="A:B:K", help="Geometric grid of keys r (default: 7 from 32).")
@click.option("--horizon", type=float, help="LAW: attention horizon H; the spectrum is flat.")
@click.option("--dim", type=int, help="LAW: dimension of the tokens (default 1).")
@click.option("--spectrum", metavar="LIST", help="LAW: singular values of M instead of --horizon.")
@click.option("--tau", metavar="LIST", help="LAW: mean tilt; one number is along the first axis.")
@click.option("--df", type=float, help="LAW student: degrees of freedom (default 5).")
@click.option("--correlation", type=float, help="LAW gaussian: rho of an AR(1) sequence.")
@click.option("--tokens", type=int, help="LAW: length of a sequence (default 8192).")
@click.option("--replicates", type=int, help="LAW: number of sequences (default 32).")
@click.option("--text", help="MODEL: file, folder, demo:code, ... (default demo:docs).")
@click.option("--column", help="MODEL: column of a .jsonl or .parquet file that holds the text.")
@click.option("--context", type=int, help="MODEL: tokens of a passage (default up to 2048).")
@click.option("--passages", type=int, help="MODEL: number of passages (default 8).")
@click.option("--layers", metavar="LIST", help="MODEL: such as 0,3 or 0-5 (default: all).")
@click.option("--heads", metavar="LIST", help="MODEL: such as 0,3 or 0-5 (default: all).")
@click.option("--draws", type=int, help="MODEL: choices of every random pattern (default 2).")
@click.option("--queries", type=int, help="Queries that are measured (default 256; MODEL: 64).")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything random.")
@click.option("--device", help="MODEL: cpu (default), or a device of PyTorch.")
@click.option("--dtype", help="MODEL: type of its weights (default float32).")
@click.option("--revision", help="MODEL: revision on a hub.")
@click.option("--allow-pickle", is_flag=True, help="MODEL: also load weights that can run code.")
@click.option("--allow-remote-code", is_flag=True, help="MODEL: run code that comes with it.")
@cluster_options
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the run.")
@click.option("--figure", type=click.Path(path_type=Path), help="Curves: .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def sparse(
    subject: str,
    budgets: str | None,
    spectrum: str | None,
    tau: str | None,
    text: str | None,
    layers: str | None,
    heads: str | None,
    scheduler: str | None,
    cluster: Path | None,
    out: Path | None,
    figure: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure sparse attention patterns against dense attention as their budget of keys grows.

    LAW is a law of tokens (gaussian, mixture, sphere, cube, signs, laplace, student) and takes
    --horizon. MODEL is a hub name, a folder, a GGUF file, demo:minilm or demo:smollm2. Patterns:
    random, corrected, topk, streaming, window, longformer, bigbird, strided, block, pooled,
    linformer; random is always measured. Stopped or killed, the same command with --out resumes.

    \b
    Examples:
      esscher sparse gaussian --horizon 0.7 --dim 8 --budgets 32:2048:7
      esscher sparse gaussian --horizon 0.7 --dim 8 --correlation 0.9 --figure ar1.png
      esscher sparse demo:smollm2 --patterns streaming,corrected --out runs/sparse
    """  # noqa: D301 - click's mark for verbatim lines
    check_figure(figure)
    # Imported here: torch and transformers take seconds that `esscher --help` should not.
    from esscher.studies.sparse import sparse as run

    with resumable(out), chosen_cluster(scheduler, cluster) as executor:
        found = run(
            subject,
            text,
            budgets=None if budgets is None else geometric_sizes(budgets, option="--budgets"),
            spectrum=None if spectrum is None else numbers(spectrum, "--spectrum"),
            tau=None if tau is None else numbers(tau, "--tau"),
            layers=whole_numbers(layers, "--layers"),
            heads=whole_numbers(heads, "--heads"),
            out=out,
            executor=executor,
            **options,
        )
    save_figure("sparse", found, figure)
    finish(found.to_dict, lambda: print_sparsity(found), as_json, out, {"Figure": figure})


def print_sparsity(found: Sparsity) -> None:
    """Print the headline and what became of every pattern."""
    console = plain_console()
    state = "" if found.complete else " (not complete)"
    console.say(f"{found.subject}{state}")
    console.say(found.headline, "bold")
    console.say_note(found.results["configuration"].get("model", {}).get("note"))
    if not found.patterns:
        return
    budgets = found.results["budgets"]
    first, last = budgets[0], budgets[-1]
    table = plain_table(
        f"Error against dense attention, r = {first} to {last} keys",
        least=("cov", "mean", "bias", f"r={last}"),
    )
    for name in ("pattern", "map", "mean", "cov", f"r={last}", "x random", "bias"):
        left = name == "pattern"
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for name, entry in found.patterns.items():
        table.add_row(
            name,
            *(_exponent(entry["fit"][metric]) for metric in ("map", "mean", "cov")),
            f"{100 * entry['curve']['dense']['map']['mean'][-1]:.3g}%",
            _ratio(entry),
            _bias(entry),
        )
    console.print(table)
    console.explain(
        "map, mean, cov: exponents of error ~ C r^-beta, errors divided by sqrt(1 - r/N); in "
        "brackets half the width of the 95% interval (last digits); * not to be trusted or not a "
        "power law (--json says why). r=: relative map error. x random: map error over that of "
        "random selection, mean over budgets. bias: share of the squared map error that averaging "
        "does not remove, at the largest budget.",
    )
    for name, entry in found.patterns.items():
        console.print()
        console.say(f" {_sentence(entry, first, last)}", lead=name)


def _sentence(entry: dict[str, Any], first: float, last: float) -> str:
    """Verdict, evidence and break-even budgets in words."""
    even = entry["break_even"]
    needed = _budget(even["for_target"], "budget", first, last)
    rows = [f"{entry['verdict']}: {entry['evidence']}."]
    if entry["versus_random"] is not None:
        verdicts = {m: entry["verdicts"][m]["verdict"] for m in ("mean", "cov")}
        rows += [f"Its {m} {v}." for m, v in verdicts.items() if v != entry["verdict"]]
        crossing, equal = even["crossing"], even["as_random"]
        where = ""
        if crossing["budget"] is not None:
            low, high = (f"{end:.0f}" if end else "?" for end in crossing["interval"])
            where = f": r = {crossing['budget']:.0f} ({low} to {high})"
        worth = _budget(equal, "random_keys", first, last)
        rows.append(f"{crossing['says'].capitalize()}{where}.")
        rows.append(f"{equal['keys']:.0f} keys are worth {worth} random ones.")
        for found in even.get("against", {}).values():
            if found["budget"] is not None:
                low, high = (f"{end:.0f}" if end else "?" for end in found["interval"])
                rows.append(
                    f"{found['says'].capitalize()}: r = {found['budget']:.0f} ({low} to {high})."
                )
    return " ".join([*rows, f"10% relative error takes {needed} keys."])


def _exponent(fit: dict[str, Any]) -> str:
    low, high = fit["interval"]
    mark = "" if fit["trusted"] and fit["law"] == "power" else "*"
    if low is None or high is None:
        return f"{fit['exponent']:.2f}{mark}"
    return f"{fit['exponent']:.2f}({max(1, round(50 * (high - low)))}){mark}"


def _ratio(entry: dict[str, Any]) -> str:
    if entry["versus_random"] is None:
        return "1"
    versus = entry["versus_random"]["map"]
    low, high = versus["ratio_interval"]
    if low is None or high is None:
        return f"{versus['ratio']:.3g}"
    return with_error(versus["ratio"], (high - low) / 2)


def _bias(entry: dict[str, Any]) -> str:
    bias = entry["bias"]
    if bias["share"] is None:
        return ""
    value, error = bias["square"][-1], bias["standard_error"][-1]
    if value <= 2 * error:
        return "none"
    return f"{100 * bias['share'][-1]:.0f}%"


def _point(found: dict[str, Any], name: str, first: float, last: float) -> str:
    if found["state"] != "inside":
        return f"<{plain_count(first)}" if found["state"] == "below" else f">{plain_count(last)}"
    return f"{found[name]:.0f}"


def _budget(found: dict[str, Any], name: str, first: float, last: float) -> str:
    """A number of keys with its interval, whose ends may lie beyond the budgets measured."""
    point = _point(found, name, first, last)
    low, high = (f"{end:.0f}" if end else "" for end in found["interval"])
    if found["state"] == "inside":
        return f"{point} ({low or f'<{plain_count(first)}'} to {high or f'>{plain_count(last)}'})"
    known = f" (from {low})" if low else f" (up to {high})" if high else ""
    return f"{point}{known}"
