"""The study: which options there are, which cells, and how they become a result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from esscher.core.errors import InputError
from esscher.core.options import BY_MODEL, AtMost, Seed, option
from esscher.engine.cache.budgets import Keeping, SelectionKind, keeping_for
from esscher.engine.models.outline import Outline
from esscher.engine.text.documents import TextRecord, check_text
from esscher.engine.text.tasks import TASKS
from esscher.runs.executors import CellExecutor
from esscher.runs.folder import Cell, CellRun
from esscher.runs.old_model_study import ModelStudy
from esscher.runs.result import NotFinished
from esscher.studies.plan.result import PLAN, PUBLISHED, Plan, PlanCell

if TYPE_CHECKING:
    from esscher.engine.models.choice import AnyModel
    from esscher.engine.models.loaded import LoadedModel
    from esscher.engine.text.documents import TextSource
    from esscher.studies.plan.work import PlanWork
else:
    # what is stored in the place of a text; see Study.sources
    TextSource = TextRecord

#: Longest cache unless a length is given.
PREFIX = 4_096
#: Tokens after a decoder's cache unless a number is given; at most a quarter of what it reads.
QUERIES = 128
#: Shortest cache of which budgets can be kept.
FEWEST_KEYS = 16
#: Calibration passages unless a number is given.
PASSAGES = 6
#: Held-out passages unless a number is given.
CHECKED = 16
#: One calibration passage of so many is asked for what it says, if both kinds are wanted.
RETRIEVAL_OF = 3
#: Shortest cache in which retrieval passages can hide what they ask for.
SHORTEST_RETRIEVAL = 192
#: Kinds of calibration passages.
KINDS = ("prose", "retrieval")
#: Rules over whose scores AdaKV can work, besides SnapKV.
WRAPPED = ("streaming", "expected")
#: Rounding of attention in float32: no tolerance below this can be told from 0.
SMALLEST_TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class PlanStudy(ModelStudy[Plan]):
    """Plan how many tokens each head keeps, and check the plan.

    A pass over the calibration text predicts what each budget costs each head, and budgets are
    chosen to cost least in all. With --check the plan is compared on held-out text with uniform
    budgets and with published methods, all keeping the same number of tokens. (How long a context
    each head uses: esscher context.)
    """

    name = "plan"
    asks = "How many tokens can each head drop, and what does it cost?"
    next_step = "esscher generate MODEL --plan RUN --prompt FILE --compare"
    abridged = True
    unit = "passages"
    cell = PlanCell
    result = Plan
    sources: ClassVar[frozenset[str]] = frozenset({"model", "text", "check"})
    saves = True
    examples = (
        "esscher plan demo:smollm2 --text demo:docs --check demo:code --budget 0.25 --prefix 1024",
        "esscher plan ./my-model --text a.txt --check b.txt --tolerance 0.1 --save plan.json",
    )

    check: Annotated[
        TextSource | None,
        option("Held-out text to check the plan on; without it the plan is not checked."),
    ] = None
    budget: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        option("Share of the tokens to keep, such as 0.25."),
    ] = None
    tolerance: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        option("Instead of a budget: relative error that no head may exceed, such as 0.1."),
    ] = None
    prefix: Annotated[
        int,
        option(
            "Tokens in the cache (default: up to 4096, or what the model allows).",
            ge=1,
            le=10**15,
        ),
    ] = BY_MODEL
    query_count: Annotated[
        int,
        option(
            "Tokens after the cache at which errors are measured (default: up to 128).",
            ge=0,
            le=10**15,
            command=None,
        ),
    ] = BY_MODEL
    passages: Annotated[
        int,
        option(
            f"Calibration passages (default: up to {PASSAGES}).",
            ge=1,
            le=10**6,
        ),
    ] = BY_MODEL
    check_passages: Annotated[
        int, option(f"Held-out passages to check on (default: up to {CHECKED}).", ge=0, le=10**6)
    ] = BY_MODEL
    calibrate: Annotated[
        tuple[str, ...],
        option(
            "Kinds of calibration passages: prose, retrieval (questions about facts hidden in "
            "text or noise), or both, one passage in three being retrieval (default)."
        ),
    ] = BY_MODEL
    score: Annotated[
        Literal["all", "last", "repeat"],
        option(
            "Which queries score tokens: all of the prompt, as if they came after it; "
            "its last 64 (faster, forgets more); or also those of a repetition of the prompt "
            "(reads it twice)."
        ),
    ] = "all"
    selection: Annotated[
        SelectionKind,
        option(
            "fitted: keep a weighted sample, fitted to what the prompt's own queries get from all "
            "tokens (default); sample: without the fit; topk: keep the tokens with the largest "
            "scores, without weights, as other runtimes do."
        ),
    ] = BY_MODEL
    against: Annotated[
        tuple[str, ...],
        option(
            "Published methods to compare the plan with (default snapkv,streaming; "
            f"all: {', '.join(PUBLISHED)}; also adakv:expected and the like)."
        ),
    ] = BY_MODEL
    tasks: Annotated[
        tuple[str, ...],
        option(f"Also ask questions about texts: all, or some of {', '.join(TASKS)}."),
    ] = ()
    task_items: Annotated[
        int,
        option(
            "Questions per task, half of them about texts of noise.", ge=2, le=10**5, command=None
        ),
    ] = 20
    seed: Seed = 0

    def fill(self, model: Outline) -> PlanStudy:
        """Choose passages that the model reads, and refuse budgets that it cannot keep."""
        if not model.causal:
            raise InputError(
                f"{model.name} is an encoder and has no cache; plans are for decoders, such as "
                "demo:smollm2"
            )
        model.check_supported()
        if (self.budget is None) == (self.tolerance is None):
            raise InputError("give either a budget, such as 0.25, or a tolerance, such as 0.1")
        queries = self.query_count
        if queries is None:
            queries = max(1, min(QUERIES, model.max_positions // 4))
        elif queries < 1:
            raise InputError(
                f"query_count is {queries}; a decoder's errors are measured at 1 or more"
            )
        longest = model.max_positions - queries
        if longest < FEWEST_KEYS:
            fewer = model.max_positions - FEWEST_KEYS
            remedy = "choose a model that reads more"
            if fewer > 0:
                remedy = f"give at most {fewer} queries"
            raise InputError(
                f"{model.name} reads at most {model.max_positions} tokens, and a plan takes a "
                f"prefix of at least {FEWEST_KEYS}; {remedy}"
            )
        keys = AtMost.unless(self.prefix, self.prefix or min(PREFIX, longest))
        if keys > longest:
            raise InputError(
                f"prefix is {keys} and {queries} queries follow it, but {model.name} reads at most "
                f"{model.max_positions} tokens at a time; the longest possible prefix is {longest}"
            )
        if keys < FEWEST_KEYS:
            raise InputError(f"prefix is {keys}; it must be at least {FEWEST_KEYS}")
        certain = keeping_for(keys, self.budget or 1.0).count
        if self.budget is not None and self.budget < (certain + 1) / keys:
            smallest = math.ceil((certain + 1) / keys * 1e4) / 1e4
            raise InputError(
                f"budget is {self.budget:g}; every head always keeps {certain} of {keys} tokens "
                f"and at least one more, so the smallest possible budget is {smallest:g}, the "
                "largest 1"
            )
        if self.tolerance is not None and self.tolerance < SMALLEST_TOLERANCE:
            raise InputError(
                f"tolerance is {self.tolerance:g}; errors below {SMALLEST_TOLERANCE:g} cannot be "
                "distinguished from rounding, so the smallest possible tolerance is "
                f"{SMALLEST_TOLERANCE:g}"
            )
        checked = 0
        if self.check is not None:
            checked = AtMost(CHECKED) if self.check_passages is None else self.check_passages
            if not checked:
                raise InputError(
                    "check_passages is 0, but there is a text to check on; give at least 1"
                )
        kinds = self.calibrate
        if kinds is not None:
            _check_names("calibrate", kinds, KINDS)
            if "retrieval" in kinds and keys < SHORTEST_RETRIEVAL:
                raise InputError(
                    "calibrate has 'retrieval', which takes a prefix of at least "
                    f"{SHORTEST_RETRIEVAL} tokens; {model.name} is planned with {keys}"
                )
            kinds = tuple(kind for kind in KINDS if kind in kinds)
        elif not isinstance(keys, AtMost):  # of a default length, they are known from the text
            kinds = _default_kinds(keys)
        against = self.against
        if against is None:
            against = () if self.check is None else ("snapkv", "streaming")
        elif against or self.check is not None:
            wrapped = tuple(f"adakv:{name}" for name in WRAPPED)
            _check_names("against", against, (*PUBLISHED, *wrapped), "all")
            if self.check is None:
                raise InputError("against is part of a check; give a text with --check")
            names = (*PUBLISHED, *against) if "all" in against else against
            against = tuple(dict.fromkeys(name for name in names if name != "all"))
        if self.tasks:
            _check_names("tasks", self.tasks, tuple(TASKS), "all")
            if self.check is None:
                raise InputError("tasks are part of a check; give a text with --check")
        return replace(
            self,
            prefix=keys,
            query_count=AtMost.unless(self.query_count, queries),
            passages=AtMost.unless(self.passages, self.passages or PASSAGES),
            check_passages=checked,
            calibrate=kinds,
            selection=self.selection or "fitted",
            against=against,
            tasks=tuple(t for t in TASKS if t in self.tasks or "all" in self.tasks),
        )

    def check_texts(self) -> None:
        """Refuse texts that cannot be read."""
        for source in (self.text,) if self.check is None else (self.text, self.check):
            check_text(source, self.column)

    @property
    def length(self) -> int:
        """Tokens of a passage."""
        return AtMost.unless(self.prefix, self.prefix + self.query_count)

    @property
    def keeping(self) -> Keeping:
        """What is kept for certain."""
        return keeping_for(self.prefix, self.budget or 1.0)

    @property
    def kinds(self) -> list[str]:
        """Kind of every calibration passage; retrieval comes last."""
        kinds = self.calibrate or _default_kinds(self.prefix)
        if len(kinds) == 1:
            return [kinds[0]] * self.passages
        retrieval = self.passages // RETRIEVAL_OF or min(1, self.passages - 1)
        return ["prose"] * (self.passages - retrieval) + ["retrieval"] * retrieval

    @property
    def task_cells(self) -> list[str]:
        """Names of the cells of the items of tasks."""
        return [f"{task}-{i}" for task in self.tasks for i in range(self.task_items)]

    @property
    def calibration_cells(self) -> list[str]:
        """Names of the cells of the first stage."""
        return [f"calibration-{i}" for i in range(self.passages)]

    @property
    def trial_cells(self) -> list[str]:
        """Names of the cells in which calibration passages are read under the plan."""
        return [f"trial-{i}" for i in range(self.passages)]

    @property
    def check_cells(self) -> list[str]:
        """Names of the cells of the second stage."""
        return [f"check-{i}" for i in range(self.check_passages)]

    def cells(self) -> list[str]:
        """One cell per passage, of calibration and of the check, and per item of a task."""
        return self.calibration_cells + self.trial_cells + self.check_cells + self.task_cells

    def run(self) -> Plan:
        """Make the plan; it is also stored as a file of its own."""
        result = super().run()
        if self.out is not None and result.folder is not None:
            result.save(result.folder / PLAN)
        return result

    def read(self, loaded: LoadedModel, model: AnyModel, executor: CellExecutor) -> PlanWork:
        """Take passages from the beginnings of the texts."""
        from esscher.studies.plan.work import read_texts  # brings torch

        return read_texts(self, loaded, model, executor)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Plan:
        """Choose budgets, and say what they cost.

        Raises
        ------
        NotFinished
            If there are not all passages: a part of a plan is none.
        """
        if len(cells) < len(self.cells()):
            raise NotFinished(
                f"the plan in {run.folder} is not finished; run the command that began it again "
                "to resume"
            )
        from esscher.studies.plan.work import assemble  # brings torch

        return assemble(self, cells, run)


def _check_names(
    option: str, given: tuple[str, ...], known: tuple[str, ...], everything: str | None = None
) -> None:
    """Refuse names that are not known."""
    for name in given:
        if name not in known and name != everything:
            choices = known if everything is None else (everything, *known)
            raise InputError(f"{option} has {name!r}; choose from {', '.join(choices)}")
    if not given:
        raise InputError(f"{option} is empty; choose from {', '.join(known)}")


def _default_kinds(keys: int) -> tuple[str, ...]:
    """Kinds of calibration passages: short caches have prose alone."""
    return KINDS if keys >= SHORTEST_RETRIEVAL else KINDS[:1]
