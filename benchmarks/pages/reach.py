"""The page on reach: rules against exact weights, and heads that retrieve in a real model."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.pages.reach_scales import FINDING, further_section, scale_table, shown
from esscher.core.errors import InputError
from esscher.math.laws import standard_law
from esscher.math.theory import Planted, predict_needle, simulate_needle
from esscher.math.theory.reach_chart import draw_needle
from esscher.runs.registry import load
from esscher.show.drawing import Plot
from esscher.studies.reach import Reach
from esscher.studies.reach.compare import FEWEST
from esscher.studies.reach.measure import RECENT, SINKS
from esscher.studies.reach.printed import percent, tail_range
from benchmarks.finding import Finding, markdown_table

#: Advantages in spreads, and scales as shares of the rule's best one.
ADVANTAGES, SHARES = (3.0, 4.0, 5.0, 6.0), (0.25, 0.5, 0.75, 1.0, 2.0)
#: Heads that the table lists.
LISTED = 12
#: Charts of a run that the page shows.
CHARTS = ("reach", "curves", "phases", "growth", "scales")


def reach_finding(runs: Sequence[Path]) -> Finding:
    """Make the page from stored runs of ``esscher reach``, one per model.

    Raises
    ------
    InputError
        Without runs, and for one in which nothing is measured yet.
    """
    if not runs:
        raise InputError("there are no runs to make a page of; give directories of esscher reach")
    rules = _rules()
    tables = {"reach-rules": rules}
    figures: dict[str, Plot] = {"reach-needle": _needle_figure()}
    sections, trouble = [_theory(rules)], []
    for folder in runs:
        found = load(folder)
        if not isinstance(found, Reach):
            raise InputError(f"{folder} holds a run of {found.study.name}, not of reach")
        if not found.heads:
            raise InputError(f"{folder}: {found.headline} Run its command again.")
        name = re.sub(r"[^a-z0-9]+", "-", found.study.model_record.name.lower()).strip("-")
        if not found.complete:
            trouble.append(f"{name} is incomplete: {found.cells} cells are there.")
        sections.append(_section(found))
        trained = found.study.model_record.max_positions
        sections += [
            further_section(path, trained, found.lengths[0])
            for path in sorted(FINDING.glob(f"reach-{name}-check-*.csv"))
        ]
        tables[f"reach-{name}-heads"] = found.table()
        tables[f"reach-{name}-weights"] = _long(found)
        offered = found.charts()
        title = _subject(found)
        figures |= {
            f"reach-{name}-{kind}": found.plot(kind, title=title)
            for kind in CHARTS
            if kind in offered
        }
    return Finding(
        "reach",
        "Reach: how long a text heads can search, and at which scale",
        "\n\n".join(sections),
        tables,
        figures,
        tuple(trouble),
    )


def _rules() -> pd.DataFrame:
    """Exact half-weight lengths over the rules, for Gaussian logits of spread 1."""
    rows = []
    law = standard_law("gaussian", 1)
    for z in ADVANTAGES:
        planted = Planted(law, 1.0, z)
        limit = math.exp(z * z / 2)
        row: dict[str, float | str] = {"z/s": f"{z:g}", "exp(z²/2s²)": f"{limit:,.0f}"}
        for share in SHARES:
            b = share * z
            rule = math.exp(b * z - b * b / 2) if share <= 1 else limit
            row[f"b = {share:g} z/s²"] = planted.half_length(b) / rule
        row["hardmax"] = planted.limit_length() / limit
        rows.append(row)
    return pd.DataFrame(rows)


def _needle_figure() -> Plot:
    law = standard_law("gaussian", 1)
    sizes = np.geomspace(1e3, 1e9, 13).round()
    prediction = predict_needle(law, 6.0, sizes, spread=1.2, scale=3.0)
    check = simulate_needle(law, 6.0, [1e3, 1e4, 1e5], spread=1.2, scale=3.0, replicates=200)
    return draw_needle(prediction, law, check)


def _theory(rules: pd.DataFrame) -> str:
    return "\n\n".join(
        [
            "## Rules for Gaussian logits, and how far off they are",
            "Half-weight length (the number of other keys at which the needle has half of the "
            "attention), exact, over the rule: `exp(bz - b²s²/2)` up to the best scale `z/s²`, "
            "`exp(z²/2s²)` beyond it and for hardmax.",
            markdown_table(rules, 2),
            "Where weights vary little the rule is exact. At the best scale half of the sum that "
            "it counts is missing (keys larger than the needle hardly ever occur), and the needle "
            "reaches nearly twice as far. Beyond that scale nothing is lost: the expected weight "
            "still grows with b, up to hardmax, whose limit is "
            "`ln 2 / P(X > z) ~ 1.74 (z/s) exp(z²/2s²)`. So `z/s²` is not where the weight is "
            "largest but where growing b stops to pay exponentially. Far beyond the limit a "
            "finite scale near `z/s²` is best again, with weights that find nothing.",
        ]
    )


def _section(found: Reach) -> str:
    study = found.study
    lengths = ", ".join(f"{n:,}" for n in found.lengths)
    parts = [
        f"## {_subject(found)}",
        f"Tasks: {', '.join(study.tasks)}; texts of {lengths} tokens; {_counts(found)} questions "
        f"at these lengths; heads are judged at {found.lengths[0]:,}, from which all else is "
        f"predicted; seed {study.seed}. {found.headline}",
        "Heads that add most to the answers. Adds: log-odds of an answer token that the copied "
        "token brings through the head, to first order, in nats; share of all positive ones; "
        "weight on the copied token; z and s: advantage and spread of logits.",
        markdown_table(_heads(found)),
        f"**Predicted against measured weights.** A prediction takes the logits at "
        f"{found.lengths[0]:,} tokens (the first {SINKS}, the last {RECENT}, needle and question "
        "stay; the others are drawn more often) and nothing else. Error: mean absolute logarithm "
        "of predicted over measured, beside that of weights that stay what they were.",
        markdown_table(_checks(found), 2) if found.weights else "No head was found to retrieve.",
        _gaussian(found),
        "**Answers.** Share that is right with Wilson's interval, and log-probability per answer "
        "token; predicted and unchanged: from the same questions at the shortest length.",
        markdown_table(_scores(found)),
        f"**Budgets by the CLT** at {found.lengths[-1]:,} tokens: share of samples whose sum of "
        "weights is within 10%, promised 90%; of all other keys, and with the 32 largest kept.",
        markdown_table(_budgets(found)),
        _growth(found),
    ]
    if found.scales:
        parts += [
            f"**Scales** on held-out items, from the first token of the text on, beyond "
            f"{found.lengths[0]:,} keys: log n: `ln n / ln n0`; yarn: `(1 + 0.1 ln(n/n0))²`; "
            "heads: every retrieving head for which a scale keeps the weight it had, "
            f"{_scaled(found)}; whole: their mean on all heads. Changes against none, of "
            "surprise paired by texts (items of the same number share one), of answers by items. "
            f"Surprise: lower is better. With fewer than {FEWEST} texts or items nothing is "
            "decided, whatever the intervals are.",
            markdown_table(scale_table(found.scales)),
        ]
    parts.append(
        f"**Weakest point.** {_counts(found)} questions, from one text; needles "
        "are generated sentences, and the tasks are ones that the model can do in short texts. "
        "Intervals are over questions; heads of a model are not independent. At the longest length "
        "every second text is the same stretch with other needles, so that intervals of surprise "
        "are too narrow there. How heads are judged "
        "(by shares, on log-odds, with four times as many questions at the shortest length) was "
        f"settled after trials on this text. {_beyond(found)}Encoders answer no questions: "
        "all-MiniLM-L6-v2 is refused."
    )
    return "\n\n".join(part for part in parts if part)


def _beyond(found: Reach) -> str:
    """That a check of this run ends within what the model was trained for, if it does."""
    trained = found.study.model_record.max_positions
    if any(one.length > trained for one in found.scales):
        return ""
    return f"No length of this run is beyond the {trained:,} that the model was trained for. "


def _subject(found: Reach) -> str:
    """Model and text; not where the text was."""
    study = found.study
    return f"{study.model_record.name} on {Path(study.text_record.source).name}"


def _counts(found: Reach) -> str:
    """Numbers of items along the lengths."""
    return ", ".join(f"{one.items}" for one in found.scores)


def _gaussian(found: Reach) -> str:
    """What Gaussian phases make of the heads that retrieve, at the longest length."""
    n, last = found.lengths[-1], [head.lengths[-1] for head in found.retrieving]
    if not last:
        return ""
    lost = [one for one in last if one.advantage < one.spread * math.sqrt(2 * math.log(n))]
    shown = ", ".join(f"{one.weight.value:.2f}" for one in lost)
    return (
        f"**Gaussian phases** would call {len(lost)} of the {len(last)} retrieving heads lost at "
        f"{n:,} tokens (z below s sqrt(2 ln n))"
        + (
            f", where their measured weights are {shown}: logits of real keys are not Gaussian, "
            "and the cloud that the prediction uses does not assume it."
            if lost
            else "."
        )
    )


def _heads(found: Reach) -> pd.DataFrame:
    ordered = sorted(found.heads, key=lambda head: -head.share)[:LISTED]
    first, last = found.lengths[0], found.lengths[-1]
    return pd.DataFrame(
        {
            "head": f"{head.layer}.{head.head}",
            "verdict": head.verdict,
            "adds": shown(head.contribution),
            "share": f"{head.share:.1%}",
            f"weight at {first:,}": shown(head.lengths[0].weight),
            f"at {last:,}": shown(head.lengths[-1].weight),
            "predicted": f"{head.lengths[-1].predicted:.3f}",
            "z": f"{head.lengths[0].advantage:.1f}",
            "s": f"{head.lengths[0].spread:.1f}",
            "k-hat": "" if head.tail is None else f"{head.tail:.2f}",
            "keys for 1%, 5%": "{:,}, {:,}".format(*head.lengths[-1].certified),
            "slope of scale": "none" if head.slope is None else f"{head.slope:.3f}",
        }
        for head in ordered
    )


def _checks(found: Reach) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "tokens": f"{one.length:,}",
            "heads": one.heads,
            "median ratio": one.median_ratio,
            "quartiles": f"{one.quartiles[0]:.2f} to {one.quartiles[1]:.2f}",
            "error": one.error,
            "error, unchanged": one.error_unchanged,
            "difference": shown(one.difference, 2),
            "prediction is": one.verdict,
        }
        for one in found.weights
    )


def _scores(found: Reach) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "tokens": f"{one.length:,}",
            "items": one.items,
            "right": "{:.0%} ({:.0%} to {:.0%})".format(one.right, *one.right_interval),
            "log-probability": shown(one.log_probability),
            "predicted": shown(one.predicted),
            "unchanged": one.unchanged,
        }
        for one in found.scores
    )


def _budgets(found: Reach) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "k-hat": tail_range(one.tail),
            "heads": one.heads,
            "kept": percent(one.coverage),
            "kept, the 32 largest apart": percent(one.coverage_top),
        }
        for one in found.budgets
    )


def _scaled(found: Reach) -> str:
    own = [head for head in found.retrieving if head.slope]
    return f"{len(own)} of {len(found.retrieving)}"


def _growth(found: Reach) -> str:
    """Medians over all heads at both ends of the lengths."""
    ends = [[head.lengths[i] for head in found.heads] for i in (0, -1)]

    def medians(pick: str) -> str:
        return " and ".join(f"{np.median([getattr(one, pick) for one in end]):.2f}" for end in ends)

    gaps = [[np.median([one.gaps[i] for one in end]) for i in range(4)] for end in ends]
    keys = [[np.median([one.certified[i] for one in end]) for i in (0, 1)] for end in ends]
    first, last = found.lengths[0], found.lengths[-1]
    return (
        f"**What grows**, medians over all heads at {first:,} and {last:,} tokens (other "
        f"questions at the one than at the other): entropy "
        f"{medians('entropy')} nats, largest weight {medians('largest')}; keys within 1, 2, 4 and "
        f"8 of the largest logit {_list(gaps[0])} and {_list(gaps[1])}; keys that the worst query "
        f"needs for a total variation of 1% and 5%: {_list(keys[0])} and {_list(keys[1])}."
    )


def _list(values: Sequence[float]) -> str:
    return "/".join(f"{value:,.0f}" for value in values)


def _long(found: Reach) -> pd.DataFrame:
    """Weights of every head at every length."""
    return pd.DataFrame(
        {
            "layer": head.layer,
            "head": head.head,
            "verdict": head.verdict,
            "tokens": one.length,
            "weight": one.weight.value,
            "predicted": one.predicted,
            "ratio": one.ratio.value,
            "advantage": one.advantage,
            "spread": one.spread,
            "entropy": one.entropy,
            "largest": one.largest,
        }
        for head in found.heads
        for one in head.lengths
    )
