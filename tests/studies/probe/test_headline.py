"""The first sentences of a probe."""

from __future__ import annotations

from msgspec.structs import replace

from esscher.studies.probe.assemble import headline
from tests.studies.probe.made import made_head


def with_interval(number, low, high):
    head = made_head(number)
    mean = replace(head.fit.mean, interval=(low, high))
    return replace(head, fit=replace(head.fit, mean=mean))


def at_context(number, error, low):
    interval = (low, 2 * error)
    return made_head(number, context=512, at_context=error, at_context_interval=interval)


def needs(number, tokens):
    return made_head(number, tokens_for={"0.05": None, "0.1": tokens, "0.2": None})


def test_rates_have_three_classes():
    heads = [with_interval(0, 0.48, 0.52), with_interval(1, 0.3, 0.4), with_interval(2, -0.4, 1.3)]
    assert headline(heads).endswith(
        "falls like 1/sqrt(n) in 1 head, more slowly in 1, undecided in 1 (measured)."
    )
    predicted = [replace(head, fit=None) for head in heads]
    assert headline(predicted).endswith("more slowly in 0, undecided in 0 (predicted).")


def test_the_answer_comes_first_and_says_what_is_extrapolated():
    assert headline([needs(0, 123.4), needs(1, 456.0), needs(2, 4321.0)]).startswith(
        "For 10% output error a typical head needs 460 tokens, the neediest (0.2) ~4,300 tokens "
        "(extrapolated). At "
    )
    never = headline([needs(number, None) for number in range(3)])
    assert "a typical head needs more tokens than can be predicted" in never


def test_error_at_the_context_comes_next():
    heads = [at_context(0, 0.02, 0.01), at_context(1, 0.04, 0.03), at_context(2, 0.9, 0.6)]
    assert (
        " At 512 tokens, the model's own context length, a typical head is 4% off its limit, the "
        "worst (0.2) 90%. 1 head (0.2) is more than 50% off: keep all tokens there."
    ) in headline(heads)
    assert "No head is certainly more than 50% off." in headline(heads[:2])
    assert "4% (extrapolated)." in headline([replace(head, keys=500) for head in heads[:2]])
