"""Parts of the page on reach about factors of the logits; checks that have tables of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from esscher.core.atomic import write_atomically
from esscher.core.codec import Estimate
from esscher.core.errors import InputError
from esscher.studies.reach.compare import FEWEST, scale_checks
from esscher.studies.reach.records import ARMS, ArmScore, CheckCell, ScaleCheck
from benchmarks.finding import markdown_table

#: Folder of the page, with checks that have tables of their own.
FINDING = Path(__file__).parents[2] / "docs" / "findings" / "reach"
#: Columns of a stored check: an item read with one scale is a row; CPU seconds of that reading.
COLUMNS = ("task", "number", "tokens", "scale", "surprise", "log_probability", "right", "seconds")
#: How the headline of the section begins, by which it is found again.
HEADLINE = "## Further lengths:"


def scale_table(scales: Sequence[ScaleCheck]) -> pd.DataFrame:
    """Every scale at every length, with its changes against none."""
    return pd.DataFrame(
        {
            "tokens": f"{one.length:,}",
            "scale": one.arm,
            "items": one.items,
            "surprise": f"{one.surprise:.3f}",
            "change": "" if one.arm == "none" else shown(one.surprise_change),
            "text": "" if one.arm == "none" else one.perplexity_verdict,
            "log-probability": f"{one.log_probability:.3f}",
            "its change": "" if one.arm == "none" else shown(one.log_probability_change),
            "answers": "" if one.arm == "none" else one.needle_verdict,
            "right": f"{one.right:.0%}",
        }
        for one in scales
    )


def shown(value: Estimate, decimals: int = 3) -> str:
    """A number with its interval, if it has one."""
    if value.value is None:
        return ""
    low, high = value.interval
    said = f"{value.value:.{decimals}f}"
    if low is None or high is None:
        return said
    return f"{said} ({low:.{decimals}f} to {high:.{decimals}f})"


def stored_cells(table: pd.DataFrame) -> list[CheckCell]:
    """Items of a stored check that were read with every scale.

    Raises
    ------
    InputError
        For a table that is not one of a check.
    """
    if tuple(table.columns) != COLUMNS:
        raise InputError(f"the columns of a check are {', '.join(COLUMNS)}")
    cells = []
    for (task, number, tokens), rows in table.groupby(["task", "number", "tokens"], sort=False):
        arms = {
            row["scale"]: ArmScore(
                surprise=float(row["surprise"]),
                log_probability=float(row["log_probability"]),
                right=bool(row["right"]),
            )
            for _, row in rows.iterrows()
        }
        if set(arms) == set(ARMS):
            cells.append(
                CheckCell(task=str(task), number=int(number), length=int(tokens), arms=arms)
            )
    return cells


def further_section(path: Path, trained: int, shortest: int) -> str:
    """The section on a check that has a table of its own.

    Parameters
    ----------
    path
        The table.
    trained
        Positions that the model was trained for.
    shortest
        Length up to which no factor changes anything.
    """
    table = pd.read_csv(path)
    cells = stored_cells(table)
    scales = scale_checks(cells)
    lengths = sorted(set(table["tokens"]))
    told = " and ".join(f"{n:,}" for n in lengths)
    counts = ", ".join(
        f"{sum(cell.task == task for cell in cells)} of {task}"
        for task in dict.fromkeys(cell.task for cell in cells)
    )
    left = len(table) - len(ARMS) * len(cells)
    seconds = table["seconds"]
    parts = [
        f"{HEADLINE} {told} tokens (the model was trained for {trained:,})",
        f"`python -m benchmarks.reach_check FILE --length {lengths[-1]}` takes the factors that "
        f"the run above chose (n0 = {shortest:,}, slopes of the table of heads with its six "
        "digits) and reads held-out texts with them, as `--check` does. A text is read with each "
        f"scale once, in {seconds.min():.0f} to {seconds.max():.0f} seconds of one core. Rows: "
        f"[{path.name}]({path.name}).",
    ]
    if cells:
        parts.append(
            f"{len(cells)} questions ({counts})."
            + (f" {left} readings of items without all scales are left out." if left else "")
        )
        parts += [markdown_table(scale_table(scales)), _verdict(scales)]
    else:
        parts += [
            f"**Unfinished:** {left} readings are there, and no item was read with every scale, so "
            "that nothing can be compared yet. The same command goes on.",
            markdown_table(_readings(table)),
        ]
    return "\n\n".join(parts)


def _readings(table: pd.DataFrame) -> pd.DataFrame:
    """Single readings, where there is nothing to compare."""
    return pd.DataFrame(
        {
            "tokens": f"{row['tokens']:,}",
            "task": row["task"],
            "item": row["number"],
            "scale": row["scale"],
            "surprise": f"{row['surprise']:.3f}",
            "log-probability": f"{row['log_probability']:.3f}",
            "right": bool(row["right"]),
        }
        for _, row in table.iterrows()
    )


def put_section(page: Path, section: str) -> None:
    """Put a section into a stored page, before its figures; in the place of an earlier one.

    All else stays as it is.

    Raises
    ------
    InputError
        For a page without figures.
    """
    text = page.read_text()
    text = re.sub(rf"^{re.escape(HEADLINE)}.*?\n+(?=!\[|## )", "", text, flags=re.M | re.S)
    before, mark, after = text.partition("\n![")
    if not mark:
        raise InputError(f"{page} has no figures; the section stands before them")
    write_atomically(page, f"{before.rstrip()}\n\n{section}\n\n\n![{after}".encode())


def _verdict(scales: Sequence[ScaleCheck]) -> str:
    """What the check says, at its longest length."""
    last = [one for one in scales if one.length == scales[-1].length]
    base, others = last[0], [one for one in last if one.arm != "none"]
    said = (
        "Questions with the same number are about the same text, and changes of surprise are over "
        "texts. Every second text is the same stretch but for its needles, so that with more than "
        "two their intervals are still too narrow. "
        f"Without a factor {base.right:.0%} of the answers are right at {base.length:,} tokens. "
    )
    if base.items < FEWEST:
        return said + f"With fewer than {FEWEST} items nothing is decided."
    texts = "; ".join(f"{one.arm}: {one.perplexity_verdict}" for one in others)
    answers = "; ".join(f"{one.arm}: {one.needle_verdict}" for one in others)
    return said + f"The text with factors: {texts}. Answers: {answers}."
