"""The study: which options there are, which cells, and how they become a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from esscher.core.errors import InputError
from esscher.core.options import BY_MODEL, Seed, option
from esscher.core.validation import as_sizes
from esscher.engine.models.outline import Outline
from esscher.engine.text.tasks import as_task
from esscher.runs.cells import Cell, CellRun
from esscher.runs.executors import CellExecutor
from esscher.runs.model_study import ModelStudy
from esscher.studies.reach.records import CheckCell, ItemCell
from esscher.studies.reach.result import Reach, assemble

if TYPE_CHECKING:
    from esscher.engine.models import AnyModel, LoadedModel
    from esscher.studies.reach.work import ReachWork

#: Shortest text unless lengths are given, and the room that a question and its answer take.
SHORTEST, ROOM = 512, 128
#: Fewest tokens of a text: first, recent and other ones, and a needle.
FEWEST = 192
#: The shortest length judges heads and predicts: it has so many times the items of the others.
CALIBRATION = 4
#: Tasks whose answer is copied from one place: what a head has to find is then known.
COPIED = ("needle", "keys", "quote")
#: Longest text that a check reads, in lengths of what the model was made for.
BEYOND = 4


@dataclass(frozen=True, kw_only=True)
class ReachStudy(ModelStudy[Reach]):
    """Measure how long a text the heads of a decoder can search.

    Questions are asked about facts (needles) hidden in texts of several lengths. For every head:
    how much attention the token that answers gets, how much of the answer is due to it, and what
    the shortest length predicts for the others. With --check, scaling the logits with the length of
    the text is tried on held-out questions.
    """

    name = "reach"
    asks = "How long a text can the heads search?"
    abridged = True
    unit = "items"
    cell = ItemCell | CheckCell
    result = Reach
    examples = (
        "esscher reach demo:smollm2 --lengths 512:4096:4 --figure reach.png",
        "esscher reach ./my-model --text a.txt --check 2048,4096 --out runs/reach",
    )

    lengths: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=10**9)], ...],
        option(
            "Lengths of the texts in tokens; the shortest predicts the others (default: doubled "
            "from 512 up to the longest that the model reads).",
            metavar="A:B:K",
        ),
    ] = BY_MODEL
    tasks: Annotated[tuple[str, ...], option("Kinds of questions.")] = ("needle", "quote")
    items: Annotated[
        int,
        option("Questions per task and length; 4 times as many at the shortest.", ge=1, le=10**6),
    ] = 4
    check_lengths: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=10**9)], ...],
        option(
            "Lengths at which scaling the logits is checked on held-out questions.",
            metavar="A:B:K",
            command="check",
            changeable=True,
        ),
    ] = BY_MODEL
    check_items: Annotated[
        int, option("Held-out questions per task and length.", ge=1, le=10**6, changeable=True)
    ] = 4
    seed: Seed = 0

    def fill(self, model: Outline) -> ReachStudy:
        """Choose lengths that the model reads."""
        if not model.causal:
            raise InputError(
                f"{model.name!r} is an encoder: it writes no answers, so that no question tells "
                "which token a head has to find; choose a decoder, such as demo:smollm2"
            )
        model.check_supported()
        if model.window is not None:
            raise InputError(
                f"{model.name} has layers that see {model.window} tokens only; reach is for models "
                "whose layers see the whole text"
            )
        tasks = _copied(self.tasks)
        longest = model.max_positions - ROOM
        if longest < FEWEST:
            raise InputError(
                f"{model.name} reads at most {model.max_positions} tokens; a text with a needle, "
                f"its question and the answer take at least {FEWEST + ROOM}: choose a model that "
                "reads more"
            )
        lengths = self.lengths or _doubled(min(SHORTEST, longest), longest)
        lengths = tuple(int(n) for n in as_sizes(lengths, "lengths", smallest=FEWEST))
        if lengths[-1] > longest:
            raise InputError(
                f"lengths ends at {lengths[-1]}, but {model.name} reads at most "
                f"{model.max_positions} tokens, question and answer included; give at most "
                f"{longest}"
            )
        check: tuple[int, ...] = ()
        if self.check_lengths:
            check = tuple(int(n) for n in as_sizes(self.check_lengths, "check", smallest=FEWEST))
        if check and check[-1] > BEYOND * model.max_positions:
            raise InputError(
                f"check ends at {check[-1]}, more than {BEYOND} times what {model.name} was made "
                f"for; give at most {BEYOND * model.max_positions}"
            )
        return replace(self, lengths=lengths, tasks=tasks, check_lengths=check)

    @property
    def item_cells(self) -> dict[str, tuple[str, int, int]]:
        """Task, number and length of every measured item; the shortest first."""
        counts = {
            n: self.items * (CALIBRATION if n == self.lengths[0] else 1) for n in self.lengths
        }
        return {
            f"{task}-{i}-{n}": (task, i, n)
            for n, task in product(self.lengths, self.tasks)
            for i in range(counts[n])
        }

    @property
    def check_cells(self) -> dict[str, tuple[str, int, int]]:
        """Task, number and length of every held-out item."""
        found = product(self.check_lengths, self.tasks, range(self.check_items))
        return {f"check-{task}-{i}-{n}": (task, i, n) for n, task, i in found}

    def cells(self) -> list[str]:
        """One cell per item and length."""
        return [*self.item_cells, *self.check_cells]

    def usual(self, name: str) -> bool:
        """Whether an option has the value that the model gives it."""
        if name == "lengths":
            longest = self.model_record.max_positions - ROOM
            return self.lengths == _doubled(min(SHORTEST, longest), longest)
        return not self.check_lengths if name == "check_lengths" else super().usual(name)

    def read(self, loaded: LoadedModel, model: AnyModel, executor: CellExecutor) -> ReachWork:
        """Hide needles in the text."""
        from esscher.studies.reach.work import read_text  # brings torch

        return read_text(self, loaded, model)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Reach:
        """Judge heads, predictions and scales."""
        return assemble(self, cells, run)


def _copied(tasks: tuple[str, ...]) -> tuple[str, ...]:
    """The tasks, each once.

    Raises
    ------
    InputError
        Without any, for an unknown one, and for one whose answer is not copied.
    """
    if not tasks:
        raise InputError("tasks is empty; give at least one, such as needle")
    for name in tasks:
        if as_task(name).name not in COPIED:
            raise InputError(
                f"the answer of the task {name!r} does not stand in one place of the text, so that "
                f"no token is the one to find; choose from {', '.join(COPIED)}"
            )
    return tuple(dict.fromkeys(tasks))


def _doubled(first: int, last: int) -> tuple[int, ...]:
    """Lengths that double, and the last one."""
    found = [first]
    while 2 * found[-1] <= last:
        found.append(2 * found[-1])
    # the limit itself instead of a length just below it
    if found[-1] < last:
        found = [n for n in found if 1.5 * n <= last or n == first] + [last]
    return tuple(found)
