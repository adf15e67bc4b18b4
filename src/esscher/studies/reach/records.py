"""What cells of a reach hold, and what its result is made of."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from esscher.core.codec import Count, Estimate, Index, Interval, Name, Record

#: What can be said of a head.
Verdict: TypeAlias = Literal["retrieves", "does not", "undecided"]
#: What can be said of one thing against another.
Compared: TypeAlias = Literal["better", "worse", "undecided"]
#: Ways to scale logits that a check compares, in the order of tables.
Arm: TypeAlias = Literal["none", "log n", "yarn", "heads", "whole"]
ARMS: tuple[Arm, ...] = get_args(Arm)


class ItemCell(Record, frozen=True, kw_only=True, tag_field="kind", tag="item"):
    """A cell: a question about a text of some length. Its table has a row per head.

    Attributes
    ----------
    task, number, length
        Which item it is, and tokens of its text.
    log_probability
        Mean over the tokens of the right answer, in nats, each given those before it.
    right
        Whether the model would have given just that answer.
    others
        Keys that a longer text has more of.
    predicted
        Log-probability at every length of the study, predicted from this item; none for an item
        that is only measured.
    """

    task: Name
    number: Index
    length: Count
    log_probability: float
    right: bool
    others: Count
    predicted: tuple[float, ...]


class ArmScore(Record, frozen=True, kw_only=True):
    """A text read and a question answered with logits scaled in one way.

    Attributes
    ----------
    surprise
        Mean surprise at the last tokens of the text, in nats.
    log_probability, right
        As of an item.
    """

    surprise: float
    log_probability: float
    right: bool


class CheckCell(Record, frozen=True, kw_only=True, tag_field="kind", tag="check"):
    """A cell: an item that no scale was chosen on, with every scale."""

    task: Name
    number: Index
    length: Count
    arms: dict[Arm, ArmScore]


class AtLength(Record, frozen=True, kw_only=True):
    """A head at one length; means over items, with 95% intervals where they are estimates.

    Attributes
    ----------
    length
        Tokens of the text.
    weight
        Measured weight on the token that is copied.
    predicted
        From the shortest length alone.
    ratio
        Predicted over measured.
    advantage, spread
        z and s of the logits.
    entropy, largest
        In nats; largest weight.
    gaps
        Mean number of keys within 1, 2, 4 and 8 of the largest logit, itself counted.
    certified
        Largest number of keys that any query needed for a total variation of 1% and of 5%.
    """

    length: Count
    weight: Estimate
    predicted: float
    ratio: Estimate
    advantage: float
    spread: float
    entropy: float
    largest: float
    gaps: tuple[float, float, float, float]
    certified: tuple[Count, Count]


class HeadReach(Record, frozen=True, kw_only=True):
    """What a head does for retrieval.

    Attributes
    ----------
    layer, head
        Which one it is.
    verdict
        Whether it retrieves.
    contribution
        What the copied token adds through this head to the log-odds of a token of the answer, to
        first order, in nats.
    share
        Of all positive contributions of an item, mean over items.
    tail
        k-hat of the weights of other keys, mean over items.
    distance
        Change of other keys' logits per factor e of their distance.
    coverage, coverage_top
        Share of samples of the CLT's budget whose sum of weights is within tolerance: of all other
        keys, and with the largest ones kept.
    sampled
        Share of the other keys that the CLT's budget takes.
    slope
        Of the scale ``1 + slope ln(n/n_0)`` that keeps the weight of the shortest length.
    lengths
        Along the lengths.
    """

    layer: Index
    head: Index
    verdict: Verdict
    contribution: Estimate
    share: float
    tail: float | None
    distance: float
    coverage: float
    coverage_top: float
    sampled: float
    slope: float | None
    lengths: tuple[AtLength, ...]


class Score(Record, frozen=True, kw_only=True):
    """The model's answers at one length.

    Attributes
    ----------
    length, items
        Tokens of the text, and number of items.
    right, right_interval
        Share of right answers, with Wilson's interval.
    log_probability
        Measured, per token of the answer.
    predicted
        From the shortest length and the predicted weights of all heads, to first order.
    unchanged
        That of the shortest length: the trivial prediction.
    """

    length: Count
    items: Count
    right: float
    right_interval: Interval
    log_probability: Estimate
    predicted: Estimate
    unchanged: float


class WeightCheck(Record, frozen=True, kw_only=True):
    """Predicted against measured weights of retrieving heads at one length.

    Attributes
    ----------
    length, heads
        Tokens of the text, and number of heads.
    median_ratio, quartiles
        Predicted over measured, over heads.
    error, error_unchanged
        Mean absolute logarithm of the ratio: of the prediction, and of weights that stay what they
        were at the shortest length.
    difference
        Error less that of unchanged weights, paired by heads.
    verdict
        Whether the prediction is better than unchanged weights.
    """

    length: Count
    heads: Count
    median_ratio: float
    quartiles: Interval
    error: float
    error_unchanged: float
    difference: Estimate
    verdict: Compared


class Coverage(Record, frozen=True, kw_only=True):
    """How often budgets by the CLT keep their promise, for heads with k-hat in a range.

    Attributes
    ----------
    tail
        Ends of the range of k-hat.
    heads
        Heads in it.
    coverage, coverage_top
        Means over heads.
    """

    tail: tuple[float | None, float | None]
    heads: Count
    coverage: Estimate
    coverage_top: Estimate


class ScaleCheck(Record, frozen=True, kw_only=True):
    """A way to scale logits on held-out items of one length, against none.

    Attributes
    ----------
    arm, length, items
        Which one, tokens of the text, and number of items.
    surprise, log_probability, right
        Means over items.
    surprise_change, log_probability_change
        Less those without a scale: paired by texts, which items of the same number share, and by
        items.
    perplexity_verdict, needle_verdict
        Whether text is read and questions are answered better.
    """

    arm: Arm
    length: Count
    items: Count
    surprise: float
    log_probability: float
    right: float
    surprise_change: Estimate
    log_probability_change: Estimate
    perplexity_verdict: Compared
    needle_verdict: Compared
