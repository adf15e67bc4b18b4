"""The first sentences of a probe."""

from __future__ import annotations

from msgspec.structs import replace

from esscher.studies.probe.headline import headline
from esscher.studies.probe.records import AtContext
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
        "Exponents of the mean output, measured: 1 at 1/2, 1 below, 1 undecided."
    )
    wide = [with_interval(head, 0.1, 0.9) for head in heads]
    assert headline(wide).endswith("0 at 1/2, 0 below, 3 undecided.")
    predicted = [replace(head, fit=None, curve=None) for head in heads]
    assert headline(predicted).endswith("predicted: 3 at 1/2, 0 below, 0 undecided.")


def test_error_at_the_context_comes_first():
    heads = [at(made_head(0), 0.02, 0.01), at(made_head(1), 0.04, 0.03), at(made_head(2), 0.9, 0.6)]
    assert headline(heads).startswith(
        "At 512 tokens, the model's own context length, the output of a typical head is 4% from "
        "its limit, that of the worst (0.2) 90%. 1 head (0.2) is more than 50% off: leave"
    )
    assert "No head is surely more than 50% off." in headline(heads[:2])
    beyond = [at(head, 0.04, 0.03, extrapolated=True) for head in heads]
    assert "4%, extrapolated beyond the tokens that were read." in headline(beyond)


def test_nothing():
    assert headline([]) == "Nothing has been measured yet."
