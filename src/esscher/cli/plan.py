"""``esscher plan``: token budgets per head, checked on text that the plan has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from esscher.cli.cluster import chosen_cluster, cluster_options
from esscher.cli.endings import finish, save_figure
from esscher.cli.options import (
    check_figure,
    check_output,
    model_options,
    plain_console,
    plain_table,
)
from esscher.cli.stopping import resumable
from esscher.core.shown import with_error

if TYPE_CHECKING:
    from esscher.show.tables import PlainConsole
    from esscher.studies.plan import Plan

#: Key heads that the table shows unless all are asked for.
SHOWN = 12
TITLES = {
    "kl": "KL",
    "top1": "top-1",
    "perplexity_ratio": "perplexity",
    "cosine": "cosine",
    "nearest": "neighbour",
    "error": "outputs",
}
CONFIGURATIONS = ("planned", "uniform", "heavy", "recent")


@click.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--text", default="demo:docs", show_default=True, help="Calibration text: file, folder, ..."
)
@click.option("--check", help="Text on which the plan is checked; without it there is no check.")
@click.option("--column", help="Column of a .jsonl or .parquet file that holds the text.")
@click.option("--budget", type=float, help="Share of the tokens to keep, such as 0.25.")
@click.option("--tolerance", type=float, help="Or: relative error that no head may exceed.")
@click.option("--prefix", type=int, help="Tokens of the cache (default 4096; encoders 512).")
@click.option("--queries", type=int, help="Tokens after a decoder's cache (default 128).")
@click.option("--passages", type=int, help="Calibration passages (default 4; encoders 16).")
@click.option("--check-passages", type=int, default=16, show_default=True, help="Unseen passages.")
@click.option(
    "--measure",
    is_flag=True,
    help="Measure what budgets cost by drawing samples, not from one pass (slower).",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the samples.")
@model_options
@cluster_options
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the run.")
@click.option("--save", type=click.Path(path_type=Path), help="File for the plan.")
@click.option("--figure", type=click.Path(path_type=Path), help="Figure: .png, .svg or .pdf.")
@click.option("--all", "everything", is_flag=True, help="Show all key heads.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    model: str,
    text: str,
    scheduler: str | None,
    cluster: Path | None,
    out: Path | None,
    save: Path | None,
    figure: Path | None,
    everything: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Plan how many tokens every key head of MODEL keeps, and check the plan.

    One dense pass over the calibration text predicts what every budget of every head costs;
    budgets are allocated optimally; the check compares planned with uniform budgets and with
    published selections at the same number of tokens, on text the plan has not seen.

    \b
    Examples:
      esscher plan demo:smollm2 --text demo:docs --check demo:code --budget 0.25 --prefix 1024
      esscher plan ./my-model --text a.txt --check b.txt --tolerance 0.1 --save plan.json
    """  # noqa: D301 - click's mark for verbatim lines
    check_figure(figure)
    check_output(save, "--save")
    # Imported here: torch and transformers take seconds that `esscher --help` should not.
    from esscher.studies.plan import plan as run

    with resumable(out), chosen_cluster(scheduler, cluster) as executor:
        found = run(model, text, out=out, executor=executor, **options)
    save_figure("plan", found, figure)
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        found.save(save)
    files = {"Figure": figure, "Plan": save}
    finish(found.to_dict, lambda: print_plan(found, everything), as_json, out, files)


def print_plan(found: Plan, everything: bool = False) -> None:
    """Print the headline, the check, and the budgets."""
    console, results = plain_console(), found.to_dict()
    console.say(found.headline, style="bold")
    console.say_note(results["configuration"].get("model", {}).get("note"))
    if results["check"] is not None:
        _print_check(console, results["check"])
    frame = found.to_frame().sort_values("tokens", ascending=False, kind="stable")
    shown = frame if everything else frame.head(SHOWN)
    alike = frame["tokens"].nunique() == 1
    if everything or len(shown) == len(frame):
        title = "All key heads"
    elif alike:
        title = f"{len(shown)} of {len(frame)} key heads, which all keep the same number of tokens"
    else:
        title = f"The {len(shown)} key heads that keep most tokens"
    table = plain_table(title)
    for name in ("key head", "tokens", "share", "power", "predicted error"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in shown.to_dict("records"):
        table.add_row(
            f"{row['layer']:.0f}.{row['key_head']:.0f}",
            f"{row['tokens']:,.0f}",
            f"{row['ratio']:.1%}",
            f"{row['power']:g}",
            f"{row['predicted_error']:.1%}",
        )
    console.print(table)
    if len(shown) < len(frame):
        console.say(f"{_others(frame['tokens'].tolist(), len(shown))}; --all shows them.")


def _others(tokens: list[int], shown: int) -> str:
    """What the key heads keep that are not shown; tokens are in falling order."""
    fewer = sum(n < tokens[shown - 1] for n in tokens[shown:])
    same = len(tokens) - shown - fewer
    if not same:
        return f"{fewer} more keep fewer tokens"
    if not fewer:
        return f"{same} more keep as many tokens as the last of these"
    return f"{same} more keep as many tokens as the last of these, {fewer} keep fewer"


def _print_check(console: PlainConsole, check: dict[str, Any]) -> None:
    measures = [name for name in TITLES if name in check["planned"]]
    table = plain_table(
        f"The same number of tokens in all, {check['passages']} unseen passages",
        least=("outputs", "top-1", "neighbour"),
    )
    table.add_column("", no_wrap=True)
    for name in (*(TITLES[m] for m in measures), "over planned"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in (name for name in CONFIGURATIONS if name in check):
        ratio = check["ratios"].get(name)
        table.add_row(
            name,
            *(_cell(check[name].get(m)) for m in measures),
            _ratio(ratio),
        )
    console.print(table)
    heads = check["heads"]
    if heads["within_factor"] is not None:
        console.say(
            f"Predicted head errors: {heads['within_factor']:.0%} within a factor of "
            f"{heads['factor']:g} of what they were; realised over predicted "
            f"{heads['median_ratio']:.2f} in the median."
        )
    meanings = (
        "KL: from the dense next-token law, nats; top-1: same most likely token; perplexity: over "
        "that of the dense model;"
        if "kl" in check["planned"]
        else "cosine: to the dense embedding; neighbour: same nearest passage;"
    )
    ratio = "KL" if "kl" in check["planned"] else "1 - cosine"
    console.explain(
        f"{meanings} outputs: relative error of attention outputs; over planned: ratio of {ratio}, "
        "with interval. heavy: tokens that the last queries attend (SnapKV); recent: sinks and "
        "recent tokens (StreamingLLM). In brackets half the width of the 95% interval over "
        "passages (last digits)."
    )


def _cell(found: dict[str, Any] | None) -> str:
    """A mean with half the width of its interval."""
    if found is None or found["mean"] is None:
        return ""
    mean, interval = found["mean"], found["interval"]
    if interval is None or interval[0] == interval[1]:
        return f"{mean:.3g}"
    return with_error(mean, max(interval[1] - mean, mean - interval[0]))


def _ratio(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    if found["interval"] is None:
        return f"{found['mean']:.2g}"
    return f"{found['mean']:.2g} ({found['interval'][0]:.2g}, {found['interval'][1]:.2g})"
