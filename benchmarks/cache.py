"""Caches of equal size in bytes compared: plans, uniform budgets and published rules.

    python -m benchmarks.cache DATA --out FOLDER --part curves,lengths,tasks,ablation,small

DATA is the folder that benchmarks.texts makes; plans are made from its encyclopedia. Every passage
and every item of a task is a file of its own, FOLDER/PART/.../results.json, written whole; what is
there is not done again, so that a run that was stopped goes on. A prompt is read once for all that
looks at it.

- curves: KL to dense against the share of the bytes, for all rules in 16, 8 and 4 bits; with all
  tokens kept, as "planned" for budget 1, it is rounding;
- lengths: the same at one budget, for other lengths of the prompt;
- tasks: questions about texts;
- ablation: what is lost when a part of the plan is taken away;
- small: realised KL of plans at small budgets, and what was predicted: KL on the calibration
  passages themselves (FOLDER/trial), raised by what budgets cost more on other passages.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cache_arms import Arm, ablations, compared, everything_arm, small
from benchmarks.cache_plans import Calibration, Sources, keeping_at, passages_of, watchers
from esscher.core.atomic import write_atomically
from esscher.core.errors import InputError
from esscher.engine.attention.bits import list_bytes
from esscher.engine.cache.budgets import Score
from esscher.engine.cache.cache import ObservedPrompt
from esscher.engine.cache.published import RULES
from esscher.engine.cache.repeating import CHUNK, Instruction
from esscher.engine.models.load import load_model
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.reading import PassageReader, compare_laws
from esscher.engine.text.documents import TextSource
from esscher.engine.text.items import ask, task_item
from esscher.engine.text.packing import first_passages
from esscher.studies.plan.check import PURPOSE, KeptLayers, count_kept

CALIBRATION = "wikipedia-en.txt"
#: Texts that no constant was chosen on, and the code that comes with Esscher, on which some were.
UNSEEN = (
    *("novel", "plays", "speeches", "articles", "biomedical", "tables"),
    *("python", "c", "javascript", "german", "french", "japanese", "chinese"),
)
DEVELOPMENT = "code"
#: The text in which tasks hide their sentences.
HAYSTACK, HAYSTACK_PASSAGES = "novel", 4
#: Name of the calibration text in a trial.
CALIBRATION_TEXT = "calibration"
PARTS = ("curves", "lengths", "tasks", "ablation", "small")
SCORES: tuple[Score, ...] = ("all", "last", "repeat")
#: Prefixes, budgets, and calibration passages: of tasks and other lengths there are fewer.
PREFIX, LENGTHS, TASK_PREFIXES = 2048, (1024, 4096, 8064), (1024,)
CURVE_BUDGETS = (0.05, 0.0625, 0.1, 0.125, 0.15, 0.25, 0.5)
LENGTH_BUDGET, ABLATION_BUDGETS = 0.25, (0.25, 0.125)
TASK_BUDGETS = (0.25, 0.5, 0.15, 0.1, 0.05)
SMALL_BUDGETS = (0.125, 0.0625)
CALIBRATED, FEWER = 6, 3
#: Calibration passages of prose alone that are compared.
PROSE = (1, 2, 4, 8, 16)
TASKS = ("needle", "keys", "values", "quote", "variables", "words")
#: Arms that are asked a question at the same time: each takes memory.
TOGETHER = 16
#: Results of a part are in files of this name.
RESULTS = "results.json"


class Cell:
    """The results of one passage or item, in a file; rows are added one by one.

    Parameters
    ----------
    folder
        Of the file.
    about
        What the results are of.
    """

    def __init__(self, folder: Path, **about: Any) -> None:
        self.path, self.about = folder / RESULTS, about
        self.rows: list[dict[str, Any]] = []
        if self.path.exists():
            self.rows = json.loads(self.path.read_text(encoding="utf-8"))["rows"]

    def missing(self, arms: Iterable[Arm]) -> list[Arm]:
        """Arms without results."""
        there = {(row["configuration"], row["budget"]) for row in self.rows}
        return [arm for arm in arms if (arm.name, arm.budget) not in there]

    def add(self, arm: Arm, kept: KeptLayers, calibration: Calibration, **found: Any) -> None:
        """Store the results of an arm, which must take no more bytes than all others may."""
        size = kept_bytes(kept, calibration, weighted=arm.rule is None)
        share = size / (calibration.each(1.0) * sum(map(len, kept.values())))
        # blocks of lists that are not full, if lists differ, are a percent of the shortest
        if share > 1.02 * arm.budget:
            raise AssertionError(f"{arm.name!r} takes {share:.4f} of the bytes, not {arm.budget}")
        row = {"configuration": arm.name, "budget": arm.budget, "kept": count_kept(kept)}
        row |= {"bytes": share, **found}
        self.rows.append(row if arm.optimism is None else row | {"optimism": arm.optimism})

    def write(self) -> None:
        """Bring the rows to the disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**self.about, "rows": self.rows}, indent=1)
        write_atomically(self.path, text.encode())


def read_prompt(
    loaded: LoadedModel, ids: Any, calibration: Calibration, arms: Sequence[Arm]
) -> ObservedPrompt:
    """Read a prompt once, all that these arms need looking on."""
    rules = {arm.rule.name: arm.rule for arm in arms if arm.rule is not None}
    scores = list(dict.fromkeys(arm.score for arm in arms))
    looking = [*rules.values(), *watchers(scores)]
    # what is kept for certain depends on the budget, and is left to the arms
    keeping = keeping_at(calibration.prefix, 1.0)
    return ObservedPrompt(loaded, ids, keeping, "all", looking)


@dataclass(frozen=True)
class Comparison:
    """A model, its calibration and the unseen texts.

    Attributes
    ----------
    sources
        Model, calibration text and folder of the calibration.
    texts
        Unseen texts by name.
    out
        Folder of the results.
    chosen
        Names of the texts whose passages are read; all if left out.
    """

    sources: Sources
    texts: Mapping[str, TextSource]
    out: Path
    chosen: Sequence[str] | None = None

    @property
    def loaded(self) -> LoadedModel:
        """The model."""
        return self.sources.loaded

    def trial(self, arms: Sequence[Arm], calibration: Calibration, count: int) -> None:
        """Measure arms on the passages of prose that they were calibrated on."""
        own = {CALIBRATION_TEXT: self.sources.text}
        Comparison(self.sources, own, self.out).passages({"trial": arms}, calibration, count)

    def cell(self, part: str, prefix: int, name: str, number: int) -> Cell:
        """Results of a passage of a text."""
        return Cell(
            self.out / part / str(prefix) / f"{name}-{number}",
            part=part,
            text=name,
            passage=number,
            prefix=prefix,
            model=self.loaded.name,
        )

    def passages(
        self, arms: Mapping[str, Sequence[Arm]], calibration: Calibration, count: int
    ) -> None:
        """Measure the arms of some parts on the first passages of every text."""
        prefix, length = calibration.prefix, calibration.prefix + self.sources.queries
        found = {
            name: first_passages(self.loaded, text, count, length).passages
            for name, text in self.texts.items()
            if self.chosen is None or name in self.chosen
        }
        for number in range(count):
            for name, own in found.items():
                cells = {part: self.cell(part, prefix, name, number) for part in arms}
                missing = {part: cell.missing(arms[part]) for part, cell in cells.items()}
                if any(missing.values()):
                    self._passage(own[number], calibration, cells, missing)

    def _passage(
        self,
        passage: Any,
        calibration: Calibration,
        cells: Mapping[str, Cell],
        missing: Mapping[str, Sequence[Arm]],
    ) -> None:
        began = time.monotonic()
        prefix, loaded = calibration.prefix, self.loaded
        every = [arm for arms in missing.values() for arm in arms]
        prompt = read_prompt(loaded, passage.ids[:prefix], calibration, every)
        reader = PassageReader(loaded, passage, prefix, prompt.cache)
        known: dict[int, dict[str, float]] = {}
        with torch.no_grad():
            dense = reader.end()
            for part, arms in missing.items():
                for arm in arms:
                    kept = arm.keep(prompt, (PURPOSE, passage.number))
                    # what keeps the same tokens with the same weights need not be read twice
                    same = fingerprint(kept)
                    if same not in known:
                        law = reader.end(prompt.reduced(kept))
                        known[same] = compare_laws(dense, law, reader.next_tokens)
                    found = known[same]
                    cells[part].add(arm, kept, calibration, **found)
                cells[part].write()
        told = ", ".join(str(cell.path.parent) for part, cell in cells.items() if missing[part])
        print(f"{told}: {time.monotonic() - began:.0f} s", flush=True)

    def tasks(
        self, arms: Sequence[Arm], calibration: Calibration, tasks: Sequence[str], items: int
    ) -> None:
        """Ask questions: items in noise and in a text, in turn, as a plan's check has them."""
        prefix, length = calibration.prefix, calibration.prefix + self.sources.queries
        text = np.concatenate(
            [
                passage.ids
                for passage in first_passages(
                    self.loaded, self.texts[HAYSTACK], HAYSTACK_PASSAGES, length
                ).passages
            ]
        )
        for number in range(items):
            for task in tasks:
                haystack = text if number % 2 else None
                cell = Cell(
                    self.out / "tasks" / str(prefix) / f"{task}-{number}",
                    part="tasks",
                    task=task,
                    item=number,
                    prefix=prefix,
                    model=self.loaded.name,
                    haystack="text" if number % 2 else "noise",
                )
                missing = cell.missing(arms)
                if missing:
                    item = task_item(self.loaded, task, number, prefix, haystack=haystack)
                    self._item(item, calibration, cell, missing)

    def _item(self, item: Any, calibration: Calibration, cell: Cell, arms: Sequence[Arm]) -> None:
        began = time.monotonic()
        prompt = read_prompt(self.loaded, item.context, calibration, arms)
        (answer,) = ask(self.loaded, prompt.cache, item)
        cell.about["dense"] = _answered(*answer)
        named = (f"task {item.task} {item.haystack}", item.number)
        for some in batched(arms, TOGETHER):
            kept = [arm.keep(prompt, named) for arm in some]
            answers = ask(self.loaded, prompt.reduced(*kept), item, len(some))
            for arm, layers, answer in zip(some, kept, answers, strict=True):
                cell.add(arm, layers, calibration, **_answered(*answer))
        cell.write()
        print(f"{cell.path.parent}: {time.monotonic() - began:.0f} s", flush=True)


def batched(arms: Sequence[Arm], count: int) -> list[Sequence[Arm]]:
    """So many arms at a time."""
    return [arms[i : i + count] for i in range(0, len(arms), count)]


def with_room(arms: Sequence[Arm], loaded: LoadedModel, prompt: int) -> list[Arm]:
    """Arms but for those whose rule repeats a prompt, if the model cannot read so many tokens."""
    try:
        Instruction.of(loaded).check_room(prompt, min(CHUNK, prompt), "leave it out")
    except InputError as error:
        print(error, flush=True)
        return [arm for arm in arms if arm.rule is None or arm.rule.reads != "repeat"]
    return list(arms)


def kept_bytes(kept: KeptLayers, calibration: Calibration, weighted: bool) -> int:
    """Bytes of what is kept; tokens of rules need no weights."""
    size, width = 0, calibration.model.head_dim
    for head in (head for layer in kept.values() for head in layer):
        exact = len(head.index) - head.coded
        size += list_bytes(
            len(head.index),
            exact,
            calibration.prefix,
            width,
            calibration.entry,
            head.bits,
            weighted,
        )
    return size


def fingerprint(kept: KeptLayers) -> int:
    """A number that tells what is kept from anything else."""
    arrays = (
        x
        for own in kept.values()
        for one in own
        for x in (one.index, one.log_weight, one.values, torch.tensor([one.coded, *one.bits]))
        if x is not None
    )
    return hash(b"".join(x.numpy().tobytes() for x in arrays))


def _answered(text: str, score: float, log_probability: float) -> dict[str, Any]:
    return {"score": score, "log_probability": log_probability, "answer": text}


def run_parts(comparison: Comparison, parts: Sequence[str], options: argparse.Namespace) -> None:
    """Run parts; those on the same passages share the reading of prompts."""
    sources, scores = comparison.sources, options.scores
    together: dict[str, Sequence[Arm]] = {}
    if {"curves", "ablation", "small"} & set(parts):
        budgets = {
            "curves": options.curve_budgets,
            "small": SMALL_BUDGETS,
            "ablation": options.budgets,
        }
        wanted: list[tuple[Score, float]] = [
            ("all", budget) for part in parts for budget in budgets.get(part, ())
        ]
        if "ablation" in parts:
            wanted += [(score, budget) for score in scores for budget in options.budgets]
        calibration = sources.calibration(options.prefix, *passages_of(CALIBRATED), wanted)
        if "curves" in parts:
            rules, bits = options.rules, options.bits
            together["curves"] = [
                everything_arm(calibration),
                *compared(calibration, options.curve_budgets, rules=rules, bits=bits),
            ]
        if "small" in parts:
            together["small"] = small(calibration, SMALL_BUDGETS)
            comparison.trial(together["small"], calibration, passages_of(CALIBRATED)[0])
        if "ablation" in parts:
            plain: list[tuple[Score, float]] = [("all", budget) for budget in options.budgets]
            more = sources.calibration(options.prefix, max(options.prose), 0, plain)
            together["ablation"] = ablations(
                calibration, options.budgets, scores, options.prose, more
            )
        comparison.passages(together, calibration, options.passages or 3)
    if "tasks" in parts:
        wanted = [(score, budget) for score in scores for budget in options.task_budgets]
        for prefix in options.task_prefix:
            calibration = sources.calibration(prefix, *passages_of(FEWER), wanted)
            arms = compared(calibration, options.task_budgets, scores, options.rules, options.bits)
            comparison.tasks(arms, calibration, options.tasks, options.items)
    if "lengths" in parts:
        for prefix in options.lengths:
            calibration = sources.calibration(prefix, *passages_of(FEWER), [("all", LENGTH_BUDGET)])
            arms = with_room(compared(calibration, (LENGTH_BUDGET,)), sources.loaded, prefix)
            comparison.passages({"lengths": arms}, calibration, options.passages or 2)


def _check_folder(out: Path, loaded: LoadedModel) -> None:
    """Refuse a folder with the results of another model."""
    path = out / "setup.json"
    own = {"model": loaded.name, "weights": loaded.weight_hash}
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != own:
        raise InputError(f"{out} has results of another model; give another folder")
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(own).encode())


def _numbers(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(kind(part) for part in text.split(","))


def arguments() -> argparse.ArgumentParser:
    """What the command takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with the texts")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--part", type=_numbers(str), default=PARTS, help="such as curves,tasks")
    parser.add_argument("--model", default="demo:smollm2", help="a decoder")
    parser.add_argument("--dtype", default="bfloat16", help="of the dense cache, for its bytes")
    parser.add_argument("--weights", default="float32", help="type of the weights")
    parser.add_argument("--rules", type=_numbers(str), default=tuple(RULES), help="published")
    parser.add_argument("--bits", type=_numbers(int), default=(16, 8, 4), help="of the rules")
    parser.add_argument("--texts", type=_numbers(str), default=UNSEEN, help="unseen texts")
    parser.add_argument("--passages", type=int, help="passages of each text")
    parser.add_argument("--prefix", type=int, default=PREFIX, help="of curves, ablation and small")
    parser.add_argument("--lengths", type=_numbers(int), default=LENGTHS, help="other prefixes")
    parser.add_argument("--scores", type=_numbers(str), default=SCORES, help="scores to compare")
    parser.add_argument("--curve-budgets", type=_numbers(float), default=CURVE_BUDGETS)
    parser.add_argument(
        "--budgets", type=_numbers(float), default=ABLATION_BUDGETS, help="of the ablation"
    )
    parser.add_argument("--prose", type=_numbers(int), default=PROSE, help="prose passages")
    parser.add_argument("--tasks", type=_numbers(str), default=TASKS, help="such as needle,keys")
    parser.add_argument("--task-budgets", type=_numbers(float), default=TASK_BUDGETS)
    parser.add_argument("--task-prefix", type=_numbers(int), default=TASK_PREFIXES, help="contexts")
    parser.add_argument("--items", type=int, default=10, help="of each task, half in noise")
    return parser


def main() -> None:
    """Run parts of the comparison."""
    parser = arguments()
    options = parser.parse_args()
    if unknown := set(options.part) - set(PARTS):
        parser.error(f"there is no part {unknown.pop()!r}; choose among {', '.join(PARTS)}")
    loaded = load_model(options.model, dtype=options.weights)
    _check_folder(options.out, loaded)
    data: Path = options.data
    texts = {name: data / f"{name}.txt" for name in UNSEEN} | {DEVELOPMENT: "demo:code"}
    place = options.out / "calibration"
    sources = Sources(loaded, data / CALIBRATION, place, dtype=options.dtype)
    comparison = Comparison(sources, texts, options.out, options.texts)
    run_parts(comparison, options.part, options)


if __name__ == "__main__":
    main()
