"""Plans against the presses of kvpress, on thirteen texts that nothing was made from.

    python -m benchmarks.kvpress_rivals TEXTS --out FOLDER

TEXTS is the folder that benchmarks.texts makes; plans are made from its encyclopedia. Two things
are compared, each at several budgets:

- tokens: a plan in full precision and presses that keep as many tokens;
- bytes: a plan that chooses bits, and presses with as many tokens as its bytes hold in 4 bits,
  scales counted. kvpress does not round what heads keep, and so every press has these tokens in
  full precision: what is measured is a bound in its favour.

KL is that of the next tokens from dense, measured for plans here and for presses in kvpress's
environment, each against its own dense model; the two dense models are compared, too. What is
measured is stored passage by passage in FOLDER, and not done again. The table goes to
benchmarks/results/kvpress-rivals.csv.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from benchmarks.cache import CALIBRATED, CALIBRATION, RESULTS, UNSEEN, Cell, Comparison
from benchmarks.cache_arms import Arm, budgets_arm, planned_arm, uniform_arm
from benchmarks.cache_plans import Calibration, Sources, keeping_at, passages_of
from benchmarks.cache_tables import paired_over, wide_table
from benchmarks.kvpress import ENVIRONMENT, MODEL, press_for
from benchmarks.kvpress_environment import other_python, run_presses
from esscher.core.errors import InputError
from esscher.core.untrusted import read_json
from esscher.engine.attention.bits import EXACT, list_bytes
from esscher.engine.models.load import load_model
from esscher.engine.reading import PassageReader
from esscher.engine.text.packing import Passage, first_passages

STORED = Path(__file__).parent / "results" / "kvpress-rivals.csv"
PREFIX, BUDGETS, PART = 1024, (0.25, 0.125, 0.0625), "rivals"
#: Presses and how each is made. LUKVPress has no budgets for this model: it gets those of a plan.
PRESSES = {
    "snapkv": "snapkv",
    "adakv": "adakv",
    "criticaladakv": "critical",
    "expected": "expected",
    "compactor": "compactor",
    "kvzip": "kvzip",
    "kvgrad": "kvgrad",
    "plan in lukv": "lukv",
}
#: What is equal in a comparison.
COMPARED = ("tokens", "bytes")
#: Bits in whose bytes presses keep tokens that they do not round.
PRESSED = (4, 4)
#: Divergence of the two dense models that is rounding.
SAME = 1e-6


def arms_of(calibration: Calibration, budget: float) -> list[Arm]:
    """Plans and equal budgets, with bits of their choice and in full precision."""
    exact, _ = calibration.plan(budget, bits=EXACT)
    equal, _ = calibration.uniform(budget, bits=EXACT)
    return [
        planned_arm(calibration, budget),
        uniform_arm(calibration, budget),
        budgets_arm("planned 16", budget, exact, calibration),
        budgets_arm("uniform 16", budget, equal, calibration),
    ]


def tokens_each(calibration: Calibration, budget: float) -> dict[str, int]:
    """Tokens of a key head that presses keep on average, by what is compared."""
    prefix, record = calibration.prefix, calibration.model
    planned, _ = calibration.plan(budget, bits=EXACT)
    counts = np.arange(prefix + 1)
    sizes = list_bytes(
        counts, 0, prefix, record.head_dim, calibration.entry, PRESSED, weighted=False
    )
    return {
        "tokens": int(np.ceil(planned.tokens.mean())),
        "bytes": int(counts[sizes <= calibration.taken(budget)].max()),
    }


def presses_of(
    calibration: Calibration, budgets: tuple[float, ...]
) -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
    """Describe all presses; returns arrays that they need, too."""
    presses, arrays = [], {}
    for budget in budgets:
        for compared, each in tokens_each(calibration, budget).items():
            for name, kind in PRESSES.items():
                press = press_for(kind, calibration.prefix, each)
                about = {"configuration": f"{name} {compared}", "budget": budget}
                press |= {"name": f"{name} {compared} {budget}", "each": each, "about": about}
                if kind == "lukv":
                    press |= {
                        "scorer": "expected",
                        "recent": keeping_at(calibration.prefix, budget).recent,
                    }
                    press["curves"] = f"{compared}-{budget}.npy"
                    nbytes = each * (2 * calibration.model.head_dim * calibration.entry + 4)
                    plan, _ = calibration.plan(budget, "last", "topk", bits=EXACT, each=nbytes)
                    shares = plan.tokens / calibration.prefix
                    arrays[press["curves"]] = np.tile(1 - shares, (99, 1, 1))
                presses.append(press)
    return presses, arrays


def measure_presses(
    python: Path,
    loaded: Any,
    passage: Passage,
    cell: Cell,
    presses: list[dict[str, Any]],
    arrays: dict[str, NDArray[Any]],
) -> None:
    """Measure presses on a passage that are not in its file, and add them to it."""
    there = {(row["configuration"], row["budget"]) for row in cell.rows}
    missing = [p for p in presses if tuple(p["about"].values()) not in there]
    if not missing:
        return
    prefix, heads = cell.about["prefix"], loaded.shape.layers * loaded.shape.key_heads
    with torch.no_grad():
        dense = PassageReader(loaded, passage, prefix).end()
    arrays = arrays | {"dense.npy": dense[None].numpy()}
    found, _ = run_presses(python, loaded, passage.ids[None], prefix, missing, arrays)
    (apart,) = found["dense"]
    assert abs(apart) < SAME, f"the dense models are {apart} nats apart"
    for press in missing:
        (kl,), (kept,) = (found[press["name"]][name] for name in ("kl", "kept"))
        # a plan's budgets for LUKVPress are of as many bytes: heads that keep all save weights
        assert -heads <= kept - press["each"] * heads <= 0.02 * kept, (press["name"], kept)
        cell.rows.append(press["about"] | {"kept": kept, "kl": kl, "dense": apart})
    cell.write()


def table_of(folder: Path) -> pd.DataFrame:
    """Rows of all passages: KL of every press and plan, and its ratio to the plan's."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob(f"{PART}/*/*/{RESULTS}")):
        cell = read_json(path)
        for row in cell["rows"]:
            name, _, compared = row["configuration"].rpartition(" ")
            if compared not in COMPARED:
                name, compared = row["configuration"].partition(" ")[::2]
                compared = "tokens" if compared == "16" else "bytes"
            about = {key: cell[key] for key in ("text", "passage")}
            about |= {"budget": row["budget"], "compared": compared, "press": name}
            rows.append(about | {"kept": row["kept"], "kl": row["kl"]})
    if not rows:
        raise InputError(f"there are no results in {folder}")
    out = pd.DataFrame(rows)
    keys = ["text", "passage", "budget", "compared"]
    plan = out[out["press"] == "planned"].set_index(keys)["kl"].rename("plan")
    out = out.join(plan, on=keys)
    out["ratio"] = out["kl"] / out.pop("plan")
    return out.sort_values(["compared", "budget", *keys[:2]], ascending=False, kind="stable")


def show(rows: pd.DataFrame) -> None:
    """Print mean KL of the plan, and geometric means of ratios to it over texts."""
    for compared in COMPARED:
        own = rows[rows["compared"] == compared]
        budgets = sorted(set(own["budget"]), reverse=True)
        print(f"\n| equal {compared} | {' | '.join(f'{budget:.4g}' for budget in budgets)} |")
        print("|---" * (len(budgets) + 1) + "|")
        lines: dict[str, list[str]] = {}
        for budget in budgets:
            named = own[own["budget"] == budget].rename(columns={"press": "configuration"})
            wide = wide_table(named)
            for name in wide:
                over = paired_over(wide, name)
                low, high = over["over_planned_low"], over["over_planned_high"]
                cell = f"{over['over_planned']:.3g} ({low:.2g} to {high:.2g})"
                if name == "planned":
                    cell = f"KL {wide[name].mean():.3g}, {len(wide)} passages"
                lines.setdefault(name, []).append(cell)
        for name, cells in lines.items():
            print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("texts", type=Path, help="folder with the texts")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--passages", type=int, default=1, help="of each text")
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT)
    given = parser.parse_args()
    loaded, python = load_model(MODEL), other_python(given.environment)
    texts = {name: given.texts / f"{name}.txt" for name in UNSEEN}
    sources = Sources(loaded, given.texts / CALIBRATION, given.out / "calibration")
    wanted = [(score, budget) for budget in BUDGETS for score in ("all", "last")]
    calibration = sources.calibration(PREFIX, *passages_of(CALIBRATED), wanted)
    comparison = Comparison(sources, texts, given.out)
    arms = [arm for budget in BUDGETS for arm in arms_of(calibration, budget)]
    presses, arrays = presses_of(calibration, BUDGETS)
    length = PREFIX + sources.queries
    for number in range(given.passages):
        for name, text in texts.items():
            one = Comparison(sources, {name: text}, given.out)
            one.passages({PART: arms}, calibration, number + 1)
            passage = first_passages(loaded, text, number + 1, length).passages[number]
            cell = comparison.cell(PART, PREFIX, name, number)
            measure_presses(python, loaded, passage, cell, presses, arrays)
    rows = table_of(given.out)
    rows.to_csv(STORED, index=False, lineterminator="\n", float_format="%.6g")
    show(rows)


if __name__ == "__main__":
    main()
