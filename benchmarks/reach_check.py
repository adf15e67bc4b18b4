"""The check of ``esscher reach`` at further lengths, with the factors that a stored table chose.

A run of the study measures heads before it checks factors of their logits. Its table of heads
(``docs/findings/reach/reach-MODEL-heads.csv``) has everything that the factors are made of, so that
a check at another length needs no new measurement: held-out texts and questions are those that the
study itself would take, and so is what is done with each. Every row is written when it is known:
the same command goes on where it stopped. Processes with different ``--tasks`` can share a file.

    python -m benchmarks.reach_check FILE --length 10240          # read, then write the section
    python -m benchmarks.reach_check FILE --length 10240 --page   # write the section again
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from benchmarks.pages.reach_scales import COLUMNS, FINDING, further_section, put_section
from esscher.engine.models import load_model
from esscher.engine.models.scaling import LogitScale
from esscher.studies.reach.check import check_item
from esscher.studies.reach.result import scales_of
from esscher.studies.reach.study import ReachStudy
from esscher.studies.reach.work import read_text

#: The run whose table is stored: model, questions per task and length, shortest length.
MODEL, ITEMS, SHORTEST = "demo:smollm2", 3, 512
HEADS = FINDING / "reach-demo-smollm2-heads.csv"


def stored_scales(table: pd.DataFrame, shortest: int) -> dict[str, LogitScale | None]:
    """Factors by arm, from a table of heads; its numbers have six digits."""
    shape = int(table["layer"].max()) + 1, int(table["head"].max()) + 1
    chosen = table[(table["verdict"] == "retrieves") & table["slope"].notna()]
    own = [
        (int(row.layer), int(row.head), float(row.slope), float(row.share))
        for row in chosen.sort_values("share", ascending=False).itertuples()
    ]
    return scales_of(shape, float(shortest), own)


def check(
    study: ReachStudy, scales: Mapping[str, LogitScale | None], out: Path, most: int | None = None
) -> None:
    """Read every held-out item of a study with every scale and append what came of it.

    Parameters
    ----------
    study
        With the lengths of its check.
    scales
        By arm.
    out
        A CSV file; items and scales that it has are left out.
    most
        Rows to add at most.
    """
    done = set()
    if out.exists():
        with out.open(newline="") as file:
            done = {
                (row["task"], int(row["number"]), int(row["tokens"]), row["scale"])
                for row in csv.DictReader(file)
            }
    else:
        out.write_text(",".join(COLUMNS) + "\n")
    loaded = load_model(study.model)
    work = read_text(study.fill(loaded.outline), loaded, loaded)
    # one item of every task, then the next ones: a check that is stopped has all tasks
    items = sorted(work.held_out.values(), key=lambda item: (len(item.context), item.number))
    wanted = [(item, arm) for item in items for arm in scales]
    missing = [
        (item, arm)
        for item, arm in wanted
        if (item.task, item.number, len(item.context), arm) not in done
    ]
    for item, arm in missing[:most]:
        start = time.process_time()
        found = check_item(loaded, item, {arm: scales[arm]})[arm]
        row = (
            item.task, item.number, len(item.context), arm, repr(found.surprise),
            repr(found.log_probability), int(found.right),
            f"{time.process_time() - start:.0f}",
        )  # fmt: skip
        with out.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)
        print(*row, flush=True)


def main() -> None:
    """Read the options, check, and put what is stored into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("text", type=Path, help="the text of the stored run")
    parser.add_argument("--length", type=int, required=True, help="tokens of the held-out texts")
    parser.add_argument("--items", type=int, default=4, help="questions per task")
    parser.add_argument("--tasks", default="needle,quote", help="those of this process")
    parser.add_argument("--heads", type=Path, default=HEADS, help="table of the stored run")
    parser.add_argument("--out", type=Path, help="table to write")
    parser.add_argument("--page", action="store_true", help="write the page, read nothing")
    options = parser.parse_args()
    out = options.out or FINDING / f"reach-demo-smollm2-check-{options.length}.csv"
    study = ReachStudy(
        MODEL, str(options.text), items=ITEMS, tasks=tuple(options.tasks.split(",")),
        check_lengths=(options.length,), check_items=options.items,
    )  # fmt: skip
    if not options.page:
        check(study, stored_scales(pd.read_csv(options.heads), SHORTEST), out)
    trained = study.choice.outline.max_positions
    put_section(FINDING / "reach.md", further_section(out, trained, SHORTEST))


if __name__ == "__main__":
    main()
