"""What is stored about plans: cells, measures of a check, answers to questions, predictions."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, field

from esscher.core.codec import Count, Index, Interval, Name, Record
from esscher.engine.cache.budgets import Grid

#: Stands for the end of the model where the tables of cells have the number of a layer.
END = -1

Verdict: TypeAlias = Literal["better", "worse", "undecided"]
#: What is compared with dense: ``planned``, ``uniform``, and others by the names of their rules.
Configuration: TypeAlias = Name


class Shapes(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Axes of the arrays in the table of a calibration passage."""

    effect: tuple[Index, ...]
    square: tuple[Index, ...]
    norm: tuple[Index, ...]


class CacheBytes(Record, frozen=True, kw_only=True):
    """Bytes of a decoder's cache that has read the prefix: under the plan, and dense.

    Weights of sampled tokens count, and so do layers with a sliding window, which are in both.
    """

    planned: Count
    dense: Count


class PlanCell(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A cell: a calibration passage, one of the check, or an item of a task.

    Attributes
    ----------
    shapes
        Axes of the effects in the table.
    sliding
        Layers with a sliding window, which are not reduced.
    passage
        Number of the passage.
    dense_nll
        Surprise of its tokens under dense attention: of a decoder.
    cache
        What the plan's cache of a decoder takes.
    kept
        Tokens that each configuration keeps of a decoder's prompt, in all heads together.
    task, haystack, answer, answers
        Of an item: its task, what its needles are hidden in, the right answer, and what the dense
        model and every configuration answered.
    """

    shapes: Shapes | None = None
    sliding: tuple[Index, ...] = ()
    passage: Index | None = None
    dense_nll: float | None = None
    cache: CacheBytes | None = None
    kept: dict[Name, Count] | None = None
    task: Name | None = None
    haystack: Name | None = None
    answer: Name | None = None
    answers: dict[Name, Name] | None = None


class Mean(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A mean over passages, with 95% interval; None for one passage."""

    mean: float
    interval: Interval | None
    standard_error: float | None = None


class LayerMeans(Record, frozen=True, kw_only=True):
    """The same for every layer."""

    mean: tuple[float, ...]
    standard_error: tuple[float | None, ...]
    interval: tuple[Interval | None, ...]


class Measures(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How far a configuration is from dense.

    Attributes
    ----------
    kl, top1, perplexity, perplexity_ratio
        Of the next-token laws.
    error, layer_error
        Relative error of attention outputs, over all layers and by layer.
    kept
        Tokens that the key heads keep together.
    """

    kl: Mean
    top1: Mean
    perplexity: Mean
    perplexity_ratio: Mean | None = None
    error: Mean
    layer_error: LayerMeans | None = None
    kept: Count | None = None


class HeadErrors(Record, frozen=True, kw_only=True):
    """Predicted and realised relative errors of heads, and how well they agree."""

    predicted: Grid
    realised: Grid
    factor: float
    within_factor: float | None
    median_ratio: float | None


class TaskScore(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a configuration answered to the items of a task.

    Attributes
    ----------
    score, interval
        Mean share of right answers (exact match), with Wilson's 95% interval.
    n
        Number of items.
    log_probability, log_probability_interval
        Mean over the items of the right answer's log-probability, in nats per token, and Student's
        95% interval.
    of_dense
        Mean over the items of the same minus that of the dense model, with interval.
    noise, text
        Score of the items in repeated noise, and in the text of the check.
    """

    score: float
    interval: Interval
    n: Count
    log_probability: float
    log_probability_interval: Interval | None = None
    of_dense: Mean | None = None
    noise: float | None = None
    text: float | None = None


#: Scores of every configuration, dense included.
TaskScores: TypeAlias = dict[Configuration, TaskScore]
#: Published rules that have a place of their own in a check.
PUBLISHED = ("streaming", "snapkv", "expected", "adakv", "kvzip")


class Check(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a plan and others cost on unseen passages, with the same number of tokens.

    Attributes
    ----------
    passages
        How many there are.
    dense, planned, uniform
        Measures of every configuration.
    streaming, snapkv, expected, adakv, kvzip
        Published rules, as far as they were asked for.
    others
        The same for rules over others, such as ``adakv:expected``.
    ratios, over_best
        Distances from dense over that of the plan, and over that of the closest.
    verdict, earned, passages_needed
        The plan against uniform budgets, and passages that would decide where these do not.
    best
        What is closest to dense; several if they cannot be told apart.
    heads
        Predicted against realised errors of heads.
    cache
        Bytes of a decoder's cache.
    tasks
        Scores by task and configuration.
    dense_cannot
        Tasks that the dense model itself fails; they are left out of the totals.
    totals
        Scores over the items of all other tasks.
    """

    passages: Count
    dense: Measures
    planned: Measures
    uniform: Measures
    streaming: Measures | None = None
    snapkv: Measures | None = None
    expected: Measures | None = None
    adakv: Measures | None = None
    kvzip: Measures | None = None
    others: dict[Configuration, Measures] = field(default_factory=dict)
    ratios: dict[Configuration, Mean]
    verdict: Verdict
    earned: bool
    passages_needed: Annotated[int, Meta(ge=2, le=10**6)] | None
    best: Annotated[tuple[Configuration, ...], Meta(min_length=1)]
    over_best: dict[Configuration, Mean]
    heads: HeadErrors
    cache: CacheBytes | None = None
    tasks: dict[Name, TaskScores] = field(default_factory=dict)
    dense_cannot: tuple[Name, ...] = ()
    totals: TaskScores = field(default_factory=dict)

    @property
    def configurations(self) -> dict[Configuration, Measures]:
        """Measures by name, but for dense."""
        named = {
            name: getattr(self, name) for name in ("planned", "uniform", *PUBLISHED)
        } | self.others
        return {name: found for name, found in named.items() if found is not None}


class Total(Record, frozen=True, kw_only=True):
    """Tokens of all key heads together, and as a share of all; layers with a window apart."""

    tokens: Count
    ratio: float


class Prediction(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What the plan is predicted to cost; see ``predict.py``.

    ``effect`` is that on prose, ``retrieval`` that where the text is asked for what it says.
    """

    unit: Name
    effect: float
    interval: Interval | None
    uniform_effect: float
    uniform_powers: Grid
    retrieval: float | None = None
    head_error: Grid
    price: float | None
    gap: float | None
