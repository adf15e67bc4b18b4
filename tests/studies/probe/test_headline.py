"""The first sentences of a probe."""

from __future__ import annotations

from msgspec.structs import replace

from esscher.studies.probe.assemble import headline
from esscher.studies.probe.result import AtContext
from tests.studies.probe.made import made_head


def with_interval(head, low, high):
    mean = replace(head.fit.mean, interval=(low, high))
    return replace(head, fit=replace(head.fit, mean=mean))


def at(head, error, low, extrapolated=False):
    context = AtContext(n=512, error=error, interval=(low, 2 * error), extrapolated=extrapolated)
    return replace(head, at_context=context)


def test_rates_have_three_classes():
    heads = [
        with_interval(made_head(0), 0.48, 0.52),
        with_interval(made_head(1), 0.30, 0.40),
        with_interval(made_head(2), -0.4, 1.3),
    ]
    assert headline(heads).endswith(
        "falls like 1/sqrt(n) in 1 head, more slowly in 1, undecided in 1 (measured)."
    )
    wide = [with_interval(head, 0.1, 0.9) for head in heads]
    assert headline(wide).endswith("in 0 heads, more slowly in 0, undecided in 3 (measured).")
    predicted = [replace(head, fit=None, curve=None) for head in heads]
    assert headline(predicted).endswith("more slowly in 0, undecided in 0 (predicted).")


def needs(head, tokens, keys=1000):
    return replace(head, keys=keys, tokens_for=replace(head.tokens_for, percent_10=tokens))


def test_the_answer_comes_first_and_says_what_is_extrapolated():
    heads = [needs(made_head(0), 123.4), needs(made_head(1), 456.0), needs(made_head(2), 4321.0)]
    assert headline(heads).startswith(
        "For 10% output error a typical head needs 460 tokens, the neediest (0.2) ~4,300 tokens "
        "(extrapolated). At "
    )
    never = [needs(head, None) for head in heads]
    assert "a typical head needs more tokens than can be predicted" in headline(never)


def test_error_at_the_context_comes_next():
    heads = [at(made_head(0), 0.02, 0.01), at(made_head(1), 0.04, 0.03), at(made_head(2), 0.9, 0.6)]
    assert (
        " At 512 tokens, the model's own context length, a typical head is 4% off its limit, the "
        "worst (0.2) 90%. 1 head (0.2) is more than 50% off: keep all tokens there."
    ) in headline(heads)
    assert "No head is certainly more than 50% off." in headline(heads[:2])
    beyond = [at(head, 0.04, 0.03, extrapolated=True) for head in heads]
    assert "4% (extrapolated)." in headline(beyond)


def test_nothing():
    assert headline([]) == "Nothing has been measured yet."
