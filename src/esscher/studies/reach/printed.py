"""The result in a terminal."""

from __future__ import annotations

from esscher.core.codec import Estimate
from esscher.core.next_steps import Step, once_more, plan_step
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.reach.records import HeadReach
from esscher.studies.reach.result import Reach

#: Heads that the table shows unless all are asked for.
SHOWN = 12


def print_result(found: Reach, console: PlainConsole, everything: bool = False) -> None:
    """Print the heads that answers owe most to, scores and what was checked."""
    if not found.heads:
        return
    heads = sorted(found.heads, key=lambda head: -head.share)
    console.print(_heads(found, heads if everything else heads[:SHOWN], everything))
    console.explain(
        "adds: what the copied token adds to the log-odds of an answer token through the head, to "
        "first order. weight: on the copied token. predicted: from the shortest length alone. z, "
        "s: advantage and spread of logits. k: most keys that a query needed for a total variation "
        "of 5%."
    )
    console.print(_scores(found))
    if found.weights:
        console.print(_weights(found))
    if found.budgets:
        console.print(_budgets(found))
    if found.scales:
        console.print(_scales(found))


def next_steps(found: Reach) -> list[Step]:
    """Ask more where heads are undecided; check scales; keep retrieval under a plan."""
    study = found.study
    if not found.heads:
        return []
    steps = []
    if not found.scales:
        why = "Would scaling the logits help at this length? Checked on held-out questions."
        steps.append(once_more(study.name, why, check=found.lengths[-1]))
    elif any(head.verdict == "undecided" for head in found.heads):
        why = "Some heads are undecided: ask more questions."
        steps.append(once_more(study.name, why, items=4 * study.items))
    why = "Can tokens be dropped without losing answers? Checked on held-out text."
    plan = plan_step(study.text_record.source, why)
    return [*steps, Step(plan.command, why, {**plan.options, "--tasks": "needle,quote"})]


def _heads(found: Reach, shown: list[HeadReach], everything: bool) -> PlainTable:
    last = found.lengths[-1]
    title = "All heads" if everything else f"The {len(shown)} heads that add most to the answers"
    table = PlainTable(title, least=("k", "z", "s", "k-hat"))
    names = ("head", "verdict", "adds", f"weight at {found.lengths[0]:,}", f"at {last:,}",
             "predicted", "z", "s", "k-hat", "k")  # fmt: skip
    for name in names:
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    for head in shown:
        first, end = head.lengths[0], head.lengths[-1]
        table.add_row(
            f"{head.layer}.{head.head}",
            head.verdict,
            between(head.contribution),
            f"{first.weight.value:.3f}",
            between(end.weight),
            f"{end.predicted:.3f}",
            f"{first.advantage:.1f}",
            f"{first.spread:.1f}",
            "-" if head.tail is None else f"{head.tail:.2f}",
            f"{end.certified[1]:,}",
        )
    return table


def _scores(found: Reach) -> PlainTable:
    table = PlainTable("Answers")
    for name in ("tokens", "items", "right", "log-probability", "predicted", "unchanged"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found.scores:
        low, high = one.right_interval
        table.add_row(
            f"{one.length:,}", f"{one.items}", f"{one.right:.0%} ({low:.0%} to {high:.0%})",
            between(one.log_probability), between(one.predicted), f"{one.unchanged:.3f}",
        )  # fmt: skip
    return table


def _weights(found: Reach) -> PlainTable:
    table = PlainTable("Weights of retrieving heads, predicted over measured")
    names = ("tokens", "heads", "median ratio", "quartiles", "error", "unchanged", "prediction is")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for one in found.weights:
        table.add_row(
            f"{one.length:,}", f"{one.heads}", f"{one.median_ratio:.2f}",
            f"{one.quartiles[0]:.2f} to {one.quartiles[1]:.2f}", f"{one.error:.2f}",
            f"{one.error_unchanged:.2f}", one.verdict,
        )  # fmt: skip
    table.caption = (
        "Error: mean absolute logarithm of the ratio, of the prediction and of weights that stay "
        "what they were; judged by the interval of the paired difference over heads."
    )
    return table


def _budgets(found: Reach) -> PlainTable:
    table = PlainTable(f"Budgets by the CLT at {found.lengths[-1]:,} tokens, promise 90%")
    for name in ("k-hat", "heads", "kept", "kept with the largest 32 apart"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found.budgets:
        table.add_row(tail_range(one.tail), f"{one.heads}", percent(one.coverage),
                      percent(one.coverage_top))  # fmt: skip
    return table


def _scales(found: Reach) -> PlainTable:
    table = PlainTable("Scales on held-out items, against none")
    names = ("tokens", "scale", "items", "surprise", "text is", "answers", "right", "answers are")
    for name in names:
        table.add_column(name, justify="left" if name == "scale" else "right", no_wrap=True)
    for one in found.scales:
        none = one.arm == "none"
        table.add_row(
            f"{one.length:,}", one.arm, f"{one.items}",
            f"{one.surprise:.3f}" if none else between(one.surprise_change, "+"),
            "" if none else one.perplexity_verdict,
            f"{one.log_probability:.3f}" if none else between(one.log_probability_change, "+"),
            f"{one.right:.0%}", "" if none else one.needle_verdict,
        )  # fmt: skip
    table.caption = (
        "Surprise at the last tokens of the text and log-probability of answer tokens, in nats: of "
        "none, and changes from it with 95% intervals (surprise over texts, answers over items)."
    )
    return table


def between(value: Estimate, sign: str = "") -> str:
    """A number with half the width of its interval, if it has one."""
    assert value.value is not None
    low, high = value.interval
    said = f"{value.value:{sign}.3f}"
    return said if low is None or high is None else f"{said} ± {(high - low) / 2:.3f}"


def percent(value: Estimate) -> str:
    """A share with the ends of its interval, if it has one."""
    assert value.value is not None
    low, high = value.interval
    said = f"{value.value:.0%}"
    return said if low is None or high is None else f"{said} ({low:.0%} to {min(high, 1):.0%})"


def tail_range(ends: tuple[float | None, float | None]) -> str:
    """A range of k-hat in words."""
    low, high = ends
    if low is None:
        return f"below {high:g}"
    return f"{low:g} and more" if high is None else f"{low:g} to {high:g}"
