"""The study: its options, what they amount to, and the variables of its cells and results.

A cell is a passage, an item of a task or an article: calibration passages under dense attention,
the same under the plan (trials), held-out passages, questions about texts, and articles that a file
has questions about. All but the first need the budgets, which follow from the calibration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from esscher.core.codec import Count, Name, Record
from esscher.core.errors import InputError
from esscher.core.options import AtMost, Seed, option
from esscher.core.shown import shortened
from esscher.core.variables import Data, Variable, var
from esscher.engine.attention.bits import ALL_BITS, ENTRY_BYTES, list_bytes
from esscher.engine.cache.budgets import Keeping, Score, SelectionKind, keeping_for
from esscher.engine.models.outline import ModelRecord, Outline
from esscher.engine.text.documents import TextRecord, check_text
from esscher.engine.text.questions import QuestionsRecord, read_questions
from esscher.engine.text.tasks import TASKS
from esscher.runs.executors import CellExecutor
from esscher.runs.model_study import ModelStudy
from esscher.runs.result import NotFinished
from esscher.runs.study import Setup, Work
from esscher.studies.plan.result import PLAN, Plan, PlanResult, read_plan

if TYPE_CHECKING:
    import xarray as xr

    from esscher.engine.models.choice import AnyModel
    from esscher.engine.models.loaded import LoadedModel
    from esscher.engine.text.documents import TextSource
else:  # types of options are evaluated, and this needs torch
    TextSource = Any

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
#: Published rules by the names that ``--against`` takes.
PUBLISHED = ("streaming", "snapkv", "adakv", "kvzip")
#: Configurations that are measured besides published rules.
BASE = ("dense", "planned", "uniform")
#: A head's prediction counts as right within this factor.
FACTOR = 1.5
#: Label of the totals on the axis of tasks.
ALL = "all"
#: Forms of a budget, and its units in bytes.
_BUDGET = re.compile(r"([0-9.]+(?:e-?[0-9]+)?)\s*(tokens?|kB|MB|GB|)", re.IGNORECASE)
_SIZES = {"k": 1e3, "m": 1e6, "g": 1e9}
#: What exact match and F1 are.
SQUAD = "mean over questions, without case, punctuation, and a, an, the, as for SQuAD"
#: Bounds of a number of tokens.
COUNTED: Mapping[str, Any] = {"ge": 1, "le": 10**15}
#: Rounding of attention in float32: no tolerance below this can be told from 0.
SMALLEST_TOLERANCE = 1e-4


def _measure(label: str = "", **options: Any) -> Variable:
    """Declare a distance from dense, of every configuration."""
    return var("configuration bound", label, "s3", interval="short", **options)


class CalibrationCell(Data):
    """A calibration passage: what budgets would cost each head; see ``effects.py``."""

    effect = var("layer key_head selection bits budget")
    square = var("layer key_head query selection bits budget")
    norm = var("layer key_head query")
    sliding = var("layer", kind="b")


class PassageCell(Data):
    """A passage that was read under every configuration: a trial, or one of the check."""

    kl = var("passage configuration")
    top1 = var("passage configuration")
    nll = var("passage configuration")
    error = var("passage configuration layer")
    kept = var("passage configuration", kind="i")
    nbytes = var("passage configuration", kind="i")
    realised_error = var("passage layer key_head query")


class ItemCell(Data):
    """An item of a task: what every configuration answered."""

    score = var("item configuration")
    log_probability = var("item configuration")
    reply = var("item configuration", kind="U")
    kept = var("item configuration", kind="i")
    haystack = var("item", kind="U")
    answer = var("item", kind="U")


class ArticleCell(Data):
    """An article: what every configuration replied to questions about it."""

    exact_match = var("question configuration")
    f1 = var("question configuration")
    answer_probability = var("question configuration")
    reply = var("question configuration", kind="U")
    asked = var("question", kind="U")
    answer = var("question", kind="U")


class PlanData(Data):
    """The result: a plan, what it is predicted to cost (``predict.py``), and what it cost.

    Without a check there is no ``configuration``, no ``passage`` and no ``task``. Totals over the
    tasks that the dense model can do are the task ``all``.

    ``query`` numbers the query heads that share a key head. ``budget_effect`` and ``budget_error``
    are of a key head that alone keeps so many tokens in its bits, without a fit. ``question``
    numbers those of a file of questions; differences are from dense and from the plan.
    """

    tokens = var("layer key_head", "tokens kept", "n0", kind="i", terminal="tokens")
    power = var(
        "layer key_head",
        "power of scores",
        terminal="power",
        help="tokens are drawn with score^power",
    )
    key_bits = var("layer key_head", "bits of keys", "n0", kind="i")
    value_bits = var("layer key_head", "bits of values", "n0", kind="i")
    nbytes = var("layer key_head", "bytes", "n0", kind="i", page=False)
    sliding = var("layer", kind="b")
    predicted_kl = var("bound")
    predicted_uniform_kl = var()
    predicted_retrieval_kl = var()
    predicted_error = var(
        "layer key_head query bound",
        "predicted error",
        "s2",
        terminal="predicted error",
        help="relative output error of the worst query head of the group",
    )
    budget_effect = var("layer key_head budget", "predicted KL", "s3")
    budget_error = var("layer key_head query budget", "predicted error", "s3")

    kl = _measure(
        "KL to dense", terminal="KL", help="from the dense next-token distribution, nats per token"
    )
    top1 = _measure(
        "same most likely token", terminal="top-1", help="share with the same most likely token"
    )
    perplexity = _measure()
    perplexity_ratio = _measure(
        "perplexity / dense", terminal="perplexity", help="over that of the dense model"
    )
    error = _measure(
        "error of outputs", terminal="outputs", help="relative error of attention outputs"
    )
    over_planned = var(
        "configuration bound",
        "KL over the plan's",
        "two",
        terminal="over planned",
        missing="",
        help="geometric mean over passages of the ratio of KL. In brackets half the width of the "
        "95% interval (last digits), or its ends: over passages, which says nothing about other "
        "texts",
    )
    over_best = var("configuration bound", "KL over the closest", "two", page=False)
    closest = var(
        "configuration", "closest to dense", kind="b", help="or not to be told from the closest"
    )
    kept = var("configuration", "tokens kept", "n0", kind="i", terminal="tokens")
    bytes_share = var("configuration", "bytes of dense", "p2", terminal="bytes")
    bits = var(
        "configuration",
        "bits",
        kind="U",
        terminal="bits",
        help="of keys and values; published methods have 4 or 8, whichever is closer to dense",
    )
    layer_error = var("configuration layer bound")
    passage_kl = var("configuration passage")
    realised_error = var(
        "layer key_head query bound", "realised error", "s2", help="the same on held-out text"
    )
    within_factor = var()
    median_ratio = var()
    verdict = var(kind="U")
    passages_needed = var()
    dense_bytes = var()
    score = var("task configuration bound", "right answers", "p0", help="Wilson's interval")
    log_probability = var(
        "task configuration bound", "log-probability", help="of the right answer, nats per token"
    )
    over_dense = var("task configuration bound", "over dense", help="log-probability minus dense")
    items = var("task", "questions", "n0", kind="i")
    dense_can = var("task", "dense can", kind="b", help="whether the dense model is right in half")

    exact_match = var("configuration bound", format="p0", terminal="exact match", help=SQUAD)
    f1 = var("configuration bound", "F1", "p0", terminal="F1", help=SQUAD)
    answer_probability = var(
        "configuration bound",
        "log-probability",
        terminal="log-probability",
        help="of the first right answer, nats per token",
    )
    exact_match_over = var("configuration reference bound", "exact match, difference", "p0")
    f1_over = var("configuration reference bound", "F1, difference", "p0", terminal="F1 -")
    answer_probability_over = var("configuration reference bound", "log-probability, difference")
    article = var("question", kind="U")
    asked = var("question", "question", kind="U")
    answer = var("question", "right answer", kind="U")
    reply = var("question configuration", kind="U")
    reply_f1 = var("question configuration", "F1", "p0")


class PlanSettings(Record, frozen=True, kw_only=True):
    """What the options amount to; of the calibration ``passages``, the last are ``retrieval``."""

    budget: float | None
    tolerance: float | None
    prefix: Count
    sinks: Count
    recent: Count
    query_count: Count
    passages: Count
    retrieval: Count
    check_passages: Count
    score: Score
    selection: SelectionKind
    against: tuple[Name, ...]
    tasks: tuple[Name, ...]
    task_items: Count
    seed: int

    @property
    def length(self) -> int:
        """Tokens of a passage."""
        return AtMost.unless(self.prefix, self.prefix + self.query_count)

    @property
    def keeping(self) -> Keeping:
        """What is kept for certain."""
        return Keeping(sinks=self.sinks, recent=self.recent)

    @property
    def prose(self) -> int:
        """Calibration passages that are prose: the first."""
        return self.passages - self.retrieval

    def cells(self, kind: str) -> list[str]:
        """Names of the cells of calibration, trial, check or a task."""
        counts = {"check": self.check_passages} | dict.fromkeys(self.tasks, self.task_items)
        return [f"{kind}-{i}" for i in range(counts.get(kind, self.passages))]


@dataclass(frozen=True, kw_only=True)
class PlanStudy(ModelStudy[PlanSettings]):
    """Plan how many tokens each head keeps, in how many bits, and check the plan.

    A pass over the calibration text predicts what each budget costs each head, and a number of
    bytes is shared out to cost least in all. With --check the plan is compared on held-out text
    with uniform budgets and with published methods, all keeping the same number of bytes. (How long
    a context each head uses: esscher context.)
    """

    settings, data, result = PlanSettings, PlanData, PlanResult
    cell: ClassVar = (
        {"calibration": CalibrationCell}
        | dict.fromkeys(("trial", "check"), PassageCell)
        | dict.fromkeys(TASKS, ItemCell)
        | {"questions": ArticleCell}
    )
    records: ClassVar = {
        "model": ModelRecord,
        "text": TextRecord | None,
        "check": TextRecord | None,
        "questions": QuestionsRecord | None,
        "plan": Plan | None,
    }
    asks = "How small can the cache be, head by head, and what does it cost?"
    next_step = "esscher generate MODEL --plan RUN --prompt FILE --compare"
    unit = "passages"
    sources: ClassVar[frozenset[str]] = frozenset({"model", "text", "check", "questions", "plan"})
    saves = True
    examples = (
        "esscher plan demo:smollm2 --text demo:docs --check demo:code --budget 0.125 --prefix 1024",
        "esscher plan ./my-model --text a.txt --check b.txt --tolerance 0.1 --save plan.json",
    )

    check: Annotated[
        TextSource | None,
        option("Held-out text to check the plan on; without it the plan is not checked."),
    ] = None
    budget: Annotated[
        float | str | None,
        option(
            "Bytes to keep: a share of the dense cache, such as 0.0625, a size, such as 64MB, or "
            "as much as some of its tokens take, such as '1024 tokens'."
        ),
    ] = None
    tolerance: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        option("Instead of a budget: relative error that no head may exceed, such as 0.1."),
    ] = None
    plan: Annotated[
        Plan | None,
        option("Or a plan that exists, to check it: nothing is predicted.", command=None),
    ] = None
    prefix: Annotated[
        int | None,
        option("Tokens in the cache (default: up to 4096, or what the model allows).", **COUNTED),
    ] = None
    query_count: Annotated[
        int | None,
        option(
            "Tokens after the cache at which errors are measured (default: up to 128).",
            command=None,
            **COUNTED,
        ),
    ] = None
    passages: Annotated[
        int | None, option(f"Calibration passages (default: up to {PASSAGES}).", ge=1, le=10**6)
    ] = None
    check_passages: Annotated[
        int | None,
        option(f"Held-out passages to check on (default: up to {CHECKED}).", ge=1, le=10**6),
    ] = None
    score: Annotated[
        Score,
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
            "tokens; sample: without the fit; topk: keep the tokens with the largest scores, "
            "without weights and in the type of the model, as other runtimes do."
        ),
    ] = "fitted"
    against: Annotated[
        tuple[str, ...] | None,
        option(
            "Published methods to compare the plan with (default snapkv,streaming; "
            f"all: {', '.join(PUBLISHED)})."
        ),
    ] = None
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
    questions: Annotated[
        Path | None,
        option(
            "Also ask what this file asks about its articles, which are read whole: JSON in "
            "SQuAD's format, 1.1 or 2.0; impossible questions are left out."
        ),
    ] = None
    seed: Seed = 0

    def resolve(self, model: Outline) -> PlanSettings:
        """Choose passages that the model reads, and refuse budgets that it cannot keep."""
        if not model.causal:
            raise InputError(
                f"{model.name} is an encoder and has no cache; plans are for decoders, such as "
                "demo:smollm2"
            )
        model.check_supported()
        if sum(x is not None for x in (self.budget, self.tolerance, self.plan)) != 1:
            raise InputError("give either a budget, such as 0.25, or a tolerance, such as 0.1")
        if self.plan is not None and self.check is None:
            raise InputError("a plan that exists is checked; give a text with check")
        queries = self.query_count or max(1, min(QUERIES, model.max_positions // 4))
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
        keys = keys if self.plan is None else self.plan.prefix
        if not FEWEST_KEYS <= keys <= longest:
            raise InputError(
                f"prefix is {keys}; it must be at least {FEWEST_KEYS}, and {queries} queries "
                f"follow it, but {model.name} reads at most {model.max_positions} tokens at a "
                f"time: the longest possible prefix is {longest}"
            )
        budget = None
        if self.budget is not None:
            budget = share_of(self.budget, keys, model)
        keeping = keeping_for(keys, budget or 1.0)
        keeping = keeping if self.plan is None else self.plan.keeping
        if budget is not None:
            width, entry = model.shape.head_dim, ENTRY_BYTES[model.weights]
            kinds = ALL_BITS[:1] if self.selection == "topk" else ALL_BITS
            least = min(
                list_bytes(keeping.count + 1, keeping.count, keys, width, entry, bits)
                for bits in kinds
            )
            smallest = math.ceil(least / (2 * width * entry * keys) * 1e4) / 1e4
            if budget < smallest:
                raise InputError(
                    f"budget is {self.budget}, {budget:.2g} of the dense cache; every head always "
                    f"keeps {keeping.count} of {keys} tokens and at least one more, so the "
                    f"smallest possible budget is {smallest:g}, the largest 1"
                )
        if self.tolerance is not None and self.tolerance < SMALLEST_TOLERANCE:
            raise InputError(
                f"tolerance is {self.tolerance:g}; errors below {SMALLEST_TOLERANCE:g} cannot be "
                "distinguished from rounding, so the smallest possible tolerance is "
                f"{SMALLEST_TOLERANCE:g}"
            )
        passages = AtMost.unless(self.passages, self.passages or PASSAGES)
        # one in three is asked for what it says; of a default length, it is known from the text
        retrieval = passages // RETRIEVAL_OF or min(1, passages - 1)
        retrieval = retrieval if keys >= SHORTEST_RETRIEVAL else 0
        if isinstance(keys, AtMost) or isinstance(passages, AtMost):
            retrieval = AtMost(retrieval)
        if self.plan is not None:
            passages = retrieval = 0
        return self.settings_with(
            budget=budget,
            prefix=keys,
            sinks=keeping.sinks,
            recent=AtMost(keeping.recent) if isinstance(keys, AtMost) else keeping.recent,
            query_count=AtMost.unless(self.query_count, queries),
            passages=passages,
            retrieval=retrieval,
            check_passages=self._checked(),
            selection=self.selection if self.plan is None else self.plan.selection,
            against=self._rules(),
            tasks=tuple(t for t in TASKS if t in self.tasks or "all" in self.tasks),
        )

    def _checked(self) -> int:
        """Passages of the check; of a default number there may be fewer."""
        if self.tasks:
            _check_names("tasks", self.tasks, tuple(TASKS), "all")
        if self.check is None:
            for name in ("tasks", "questions"):
                if getattr(self, name):
                    raise InputError(f"{name} are part of a check; give a text with --check")
            return 0
        return AtMost.unless(self.check_passages, self.check_passages or CHECKED)

    def _rules(self) -> tuple[str, ...]:
        """Published rules that the plan is compared with."""
        if self.against is None:
            return () if self.check is None else ("snapkv", "streaming")
        _check_names("against", self.against, PUBLISHED, "all")
        if self.check is None:
            raise InputError("against is part of a check; give a text with --check")
        return PUBLISHED if "all" in self.against else tuple(dict.fromkeys(self.against))

    def check_texts(self) -> None:
        """Refuse texts that cannot be read."""
        for source in (self.text if self.plan is None else None, self.check):
            if source is not None:
                check_text(source, self.column)
        if self.questions is not None:
            read_questions(self.questions)

    def run(self) -> PlanResult:
        """Make the plan; it is also stored as a file of its own."""
        result = super().run()
        assert isinstance(result, PlanResult)
        if self.out is not None:
            result.save(Path(self.out) / PLAN)
        return result

    def read(
        self, settings: PlanSettings, loaded: LoadedModel, model: AnyModel, executor: CellExecutor
    ) -> Work:
        """Take passages from the beginnings of the texts."""
        from esscher.studies.plan.measure import read_texts  # brings torch

        return read_texts(self, settings, loaded, model, executor)

    @classmethod
    def from_json(cls, tree: dict[str, Any], place: str) -> Plan:
        """Return the plan of a file that people may have edited."""
        return read_plan(tree, place)

    @staticmethod
    def cells(setup: Setup[PlanSettings]) -> list[str]:
        """One cell per passage, of calibration and of the check, per item of a task and article."""
        kinds = ("calibration", "trial", "check", *setup.settings.tasks)
        names = [name for kind in kinds for name in setup.settings.cells(kind)]
        return names + PlanStudy.articles(setup)

    @staticmethod
    def articles(setup: Setup[PlanSettings]) -> list[str]:
        """Names of the cells of articles."""
        record = setup.records["questions"]
        return [f"questions-{i}" for i in range(len(record.titles) if record else 0)]

    @staticmethod
    def combine(setup: Setup[PlanSettings], cells: Mapping[str, xr.Dataset]) -> PlanData:
        """Choose budgets, and say what they cost.

        Raises
        ------
        NotFinished
            If there are not all passages: a part of a plan is none.
        """
        if len(cells) < len(PlanStudy.cells(setup)):
            raise NotFinished(
                "the plan is not finished; run the command that began it again to resume"
            )
        from esscher.studies.plan.measure import combine  # brings torch

        return combine(setup, cells)


def share_of(budget: float | str, prefix: int, model: Outline) -> float:
    """Return what a budget is as a share of the dense cache of so many tokens, above 0 to 1.

    Raises
    ------
    InputError
        If it is no share, no size and no number of tokens, or more than there is.
    """
    parts = _BUDGET.fullmatch(str(budget).strip())
    if parts is None:
        raise InputError(
            f"budget is {shortened(budget)}; write a share of the dense cache, such as 0.0625, a "
            "size, such as 64MB, or a number of its tokens, such as '1024 tokens'"
        )
    number, unit = float(parts[1]), parts[2].lower()
    share = number
    if unit.startswith("token"):
        share = number / prefix
    elif unit:
        shape = model.shape
        token = 2 * shape.layers * shape.key_heads * shape.head_dim * ENTRY_BYTES[model.weights]
        share = number * _SIZES[unit[0]] / (token * prefix)
    if not 0 < share <= 1 and (not unit or share <= 0):
        slip = f"; did you mean {number / 100:g}?" if 2 <= number <= 100 else ""
        raise InputError(
            f"budget is {shortened(budget)}; a share must be above 0 and at most 1{slip}"
        )
    return min(share, 1.0)


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
