"""``esscher domains``: the same probe on several corpora, and what differs beyond chance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from esscher.cli.cluster import chosen_cluster, executor_options
from esscher.cli.endings import finish, save_figure
from esscher.cli.options import (
    check_figure,
    model_options,
    plain_console,
    plain_table,
    whole_numbers,
)
from esscher.cli.stopping import resumable
from esscher.core.errors import InputError
from esscher.core.shown import with_error
from esscher.show.tables import PlainConsole

if TYPE_CHECKING:
    from esscher.studies.domains import Domains

#: Statistics of the table of corpora, as many as a terminal has room for.
SHOWN = ("tokens", "ess", "khat", "horizon")


@click.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--text",
    "texts",
    metavar="NAME=SOURCE",
    multiple=True,
    help="A corpus: a file, folder, -, demo:docs, demo:code or hf:NAME. At least two.",
)
@click.option("--blocks", type=int, default=6, show_default=True, help="Blocks of every corpus.")
@click.option(
    "--block-tokens",
    type=int,
    help="Tokens of a block (default 2000 pooled, one passage in context mode).",
)
@click.option(
    "--mode",
    type=click.Choice(["pooled", "context"]),
    help="Tokens of a block as one cloud (default for encoders), or real sequences.",
)
@click.option(
    "--context", type=int, help="Tokens of a passage (default 512; 1024 in context mode)."
)
@click.option("--layers", metavar="LIST", help="Such as 0,3 or 0-5 (default: all).")
@click.option("--heads", metavar="LIST", help="Such as 0,3 or 0-5 (default: all).")
@click.option("--alpha", type=float, default=0.05, show_default=True, help="False discovery rate.")
@click.option("--measure", is_flag=True, help="Also measure the exponent of every block.")
@click.option("--replicates", type=int, default=8, show_default=True, help="Samples for --measure.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of places and samples.")
@model_options
@executor_options
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the run.")
@click.option("--figure", type=click.Path(path_type=Path), help="Figure: .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def domains(
    model: str,
    texts: tuple[str, ...],
    layers: str | None,
    heads: str | None,
    workers: int,
    scheduler: str | None,
    cluster: Path | None,
    out: Path | None,
    figure: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure every head of MODEL on several corpora, and test what differs.

    Every corpus is cut into blocks; they say how much a number varies within it. Stopped or
    killed, the same command with --out resumes.

    \b
    Examples:
      esscher domains demo:minilm --text prose=demo:docs --text code=demo:code
      esscher domains ./my-model --text wiki=wiki.txt --text law=law.jsonl \\
        --out runs/domains --figure domains.png
    """  # noqa: D301 - click's mark for verbatim lines
    check_figure(figure)
    named = named_texts(texts)
    # Imported here: torch and transformers take seconds that `esscher --help` should not.
    from esscher.studies.domains import domains as run

    with resumable(out), chosen_cluster(scheduler, cluster, workers) as executor:
        found = run(
            model,
            named,
            layers=whole_numbers(layers, "--layers"),
            heads=whole_numbers(heads, "--heads"),
            out=out,
            executor=executor,
            **options,
        )
    save_figure("domains", found, figure)
    finish(found.to_dict, lambda: print_domains(found), as_json, out, {"Figure": figure})


def named_texts(texts: tuple[str, ...]) -> dict[str, str]:
    """Read ``NAME=SOURCE`` options; a name is given once."""
    named: dict[str, str] = {}
    for text in texts:
        name, mark, source = text.partition("=")
        name = name.strip()
        if not mark or not name or not source:
            raise InputError(
                f"--text {text!r} has no {'source' if mark and name else 'name'}; write "
                "NAME=SOURCE, such as wiki=articles.txt"
            )
        if name in named:
            raise InputError(
                f"--text {text!r}: the name {name!r} is taken by {named[name]!r}; give every "
                "corpus a name of its own"
            )
        named[name] = source
    if len(named) < 2:
        raise InputError(
            f"{len(named) or 'no'} corpus given; comparing takes at least two, such as "
            "--text wiki=a.txt --text code=demo:code"
        )
    return named


def print_domains(found: Domains) -> None:
    """Print the headline, the corpora, what differs, and where the variance comes from."""
    console = plain_console()
    console.say(found.headline, "bold")
    console.say_note(found.results["configuration"].get("model", {}).get("note"))
    if not found.results["blocks"]:
        return
    _print_corpora(console, found)
    _print_differences(console, found)
    _print_variance(console, found)
    _print_notes(console, found)


def _print_corpora(console: PlainConsole, found: Domains) -> None:
    from esscher.studies.domains.statistics import BY_NAME

    configuration = found.results["configuration"]
    table = plain_table(
        f"{configuration['model']['name']}, {configuration['mode']} mode, "
        f"{found.results['blocks']} blocks of {configuration['block_tokens']:,} tokens: medians"
        " over heads",
        least=("unknown",),
    )
    shown = [name for name in SHOWN if name in found.results["statistics"]]
    table.add_column("corpus")
    table.add_column("unknown", justify="right", no_wrap=True)
    for name in shown:
        table.add_column(BY_NAME[name].short, justify="right", no_wrap=True)
    for corpus in found.results["corpora"]:
        numbers = [corpus["median"][name] for name in shown]
        table.add_row(corpus["name"], f"{corpus['unknown']:.1%}", *(short(n) for n in numbers))
    console.print(table)


def _print_differences(console: PlainConsole, found: Domains) -> None:
    from esscher.studies.domains.statistics import BY_NAME

    rows, count = found.results["strongest"], found.results["correction"]["pairs_found"]
    table = plain_table(
        f"Largest differences between two corpora (of {count:,} found)", least=("p",)
    )
    for name in ("of", "head", "a", "b", "b / a or b - a", "p"):
        last = name in ("head", "b / a or b - a", "p")
        table.add_column(name, justify="right" if last else "left", no_wrap=last or name == "of")
    for row in rows:
        statistic = BY_NAME[row["statistic"]]
        low, high = row["interval"]
        signs = "" if statistic.logarithmic else "+"
        effect = f"{row['effect']:{signs}.2f} ({low:{signs}.2f}, {high:{signs}.2f})"
        where = f"{row['layer']}.{row['head']}"
        table.add_row(statistic.short, where, row["a"], row["b"], effect, f"{row['adjusted']:.1g}")
    if rows:
        console.print(table)
    else:
        console.say("No two corpora differ in any head beyond chance.")


def _print_variance(console: PlainConsole, found: Domains) -> None:
    from esscher.studies.domains.statistics import BY_NAME
    from esscher.studies.domains.variance import SOURCES

    counts, ranks = found.results["counts"], found.results["rank"]
    table = plain_table(
        "Where the variance comes from (%), heads that differ, and their ranks",
        least=("Holm", "rank"),
    )
    titles = ("both" if source == "head x corpus" else source for source in SOURCES)
    for name in ("", *titles, "differ", "Holm", "rank"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, parts in found.results["variance"].items():
        cells = [
            "" if parts is None else _percent(parts["shares"][s], parts["standard_errors"][s])
            for s in SOURCES
        ]
        rank = ranks[name]
        median = None if rank is None else rank["median"]
        table.add_row(
            BY_NAME[name].short,
            *cells,
            str(counts[name]["heads"]),
            str(counts[name]["heads_holm"]),
            "" if median is None else f"{median:.2f}",
        )
    console.print(table)


def _print_notes(console: PlainConsole, found: Domains) -> None:
    results = found.results
    test, rate = results["correction"], f"{100 * results['alpha']:g}%"
    notes = [
        f"differ: of {len(results['units'])} heads, those in which corpora differ (permutation "
        f"test, {test['omnibus_tests']:,} of them, false discovery rate {rate}; Holm: "
        f"family-wise). Pairs: Welch's t, {test['pair_tests']:,} tests, intervals of level "
        f"{100 * test['interval_level']:.3g}%, so that {100 - 100 * results['alpha']:g}% of those "
        "found hold; p is adjusted. In brackets: half the interval, or the standard error, in last "
        "digits. both: heads that react to a corpus in their own way; block: text within a corpus. "
        "rank: median Spearman correlation of the heads between two corpora."
    ]
    if test["halves_rejected"] is not None:
        notes.append(
            f"Check: between halves of the same corpus Welch's p is below {results['alpha']:g} in "
            f"{test['halves_rejected']:.1%} of {test['halves_tests']:,} tests."
        )
    if test["smallest_p"] * test["omnibus_tests"] > results["alpha"]:
        notes.append(
            f"With these blocks no permutation p-value is below {test['smallest_p']:.2g}, so the "
            "family-wise count must be 0: give more blocks, or more corpora."
        )
    for note in notes:
        console.say(note)


def short(number: dict[str, Any]) -> str:
    """A number with half its interval in brackets, in units of the last digit."""
    value, (low, high) = number["value"], number["interval"]
    return with_error(value, (high - low) / 2, 0 if value >= 100 else 1 if value >= 10 else 2)


def _percent(share: float, error: float) -> str:
    return with_error(100 * share, 100 * error, 0)
