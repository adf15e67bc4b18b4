"""The page on tails: whether the tokens of real models are sub-Gaussian, made from stored runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.finding import Finding, markdown_table
from esscher.core.errors import InputError
from esscher.math.tails.verdict import KINDS
from esscher.runs.registry import load
from esscher.show.drawing import Plot
from esscher.studies.tails import Tails
from esscher.studies.tails.result import estimate

#: Caveat for readers of what the halves say.
CAVEAT = (
    "**How far to believe it.** Every head is judged twice, by two halves of the text. A verdict "
    "on a single head is given only if the lower end of the interval of Cohen's kappa over the "
    "heads is at least 0.6. What a half says rests on the rule that a tail which is lighter "
    "further out is not heavy; without it hardly any head would be called sub-Gaussian. The rule "
    "was chosen after the first results were seen, so it is a description, not a test that was "
    "fixed in advance. The variance proxy needs no such rule."
)


def tails_finding(runs: Sequence[Path]) -> Finding:
    """Make the page from stored runs of ``esscher tails``, one per model.

    Raises
    ------
    InputError
        Without runs, and for one in which nothing has been measured yet.
    """
    if not runs:
        raise InputError("there are no runs to make a page of; give directories of esscher tails")
    sections, trouble = [], []
    tables: dict[str, pd.DataFrame] = {}
    figures: dict[str, Plot] = {}
    for folder in runs:
        found = load(folder)
        assert isinstance(found, Tails)
        if not found.heads:
            raise InputError(f"{folder}: {found.headline} Run its command again.")
        name = _name(found, set(figures))
        if not found.complete:
            count = len(found.layers)
            trouble.append(f"{name} is incomplete: {count} layers are there.")
        sections.append(_section(found))
        tables |= {f"{name}-heads": found.table(), f"{name}-layers": found.layers_table()}
        figures[name] = found.plot()
    return Finding(
        "tails",
        "Tails: are the tokens of real models sub-Gaussian?",
        "\n\n".join([CAVEAT, *sections]),
        tables,
        figures,
        tuple(trouble),
    )


def _name(found: Tails, taken: set[str]) -> str:
    """Name of a model for files, unlike those that are taken."""
    plain = re.sub(r"[^a-z0-9]+", "-", found.study.model_record.name.lower())
    name, number = f"tails-{plain.strip('-')}", 2
    while name in taken:
        name, number = f"tails-{plain.strip('-')}-{number}", number + 1
    return name


def _section(found: Tails) -> str:
    study = found.study
    table = found.table()
    return "\n".join(
        [
            f"## {study.model_record.name} on {study.text_record.source}",
            "",
            f"{found.headline} {study.tokens:,} text tokens in passages of "
            f"{study.context}, {len(table)} heads{_layers_named(found)}, seed {study.seed}. Worst "
            "directions are searched for in one half of the passages and judged on the other, "
            "both ways. Heads that share their keys are counted once:",
            "",
            markdown_table(_halves(found)),
            "",
            "Median over heads, with the 10% and 90% quantiles; the noise of a single head is in "
            "the table of heads.",
            "",
            markdown_table(_quantiles(table), 2),
            "",
            _words(found),
            "",
            "Hidden states that enter the layers:",
            "",
            markdown_table(_layers(found), 2),
        ]
    )


def _layers_named(found: Tails) -> str:
    """The layers, if they are not all of the model's."""
    study = found.study
    if study.usual("layers"):
        return ""
    return f" of layers {', '.join(map(str, study.layers))}"


def _halves(found: Tails) -> pd.DataFrame:
    """What each half of the text says, and both, with their agreement."""
    rows = []
    for what, said in found.agreement.items():
        for i, kind in enumerate(KINDS):
            counts = {"one half": said.first[i], "the other": said.second[i], "both": said.both[i]}
            rows.append(
                {"of": what, "called": kind, **counts, "kappa": "" if i else estimate(said.kappa)}
            )
    return pd.DataFrame(rows)


def _apart(found: Tails) -> str:
    """Describe the tokens that were set apart."""
    causal = found.study.model_record.causal
    return "delimiters and first tokens" if causal else "delimiters"


def _quantiles(table: pd.DataFrame) -> pd.DataFrame:
    names = {
        "proxy": "variance proxy / variance",
        "kurtosis": "excess kurtosis, worst direction",
        "largest": "furthest token, standard deviations",
        "norms_k": "k-hat of key norms",
        "logits_k": "k-hat of logits",
    }
    rows = []
    for column, words in names.items():
        values = table[column].astype(float).dropna()
        low, middle, high = values.quantile([0.1, 0.5, 0.9])
        rows.append({"": words, "10%": float(low), "median": float(middle), "90%": float(high)})
    return pd.DataFrame(rows)


def _words(found: Tails) -> str:
    """Which tokens make the worst directions, and what delimiters would have done."""
    ends: dict[str, int] = {}
    keys = found.key_heads
    for head in keys:
        token = head.tokens_in_tail[0].token
        ends[token] = ends.get(token, 0) + 1
    often = sorted(ends.items(), key=lambda item: -item[1])[:5]
    listed = ", ".join(f"{token!r} ({count})" for token, count in often)
    ending = sum(head.decided_by.tau_interval[0] > 2 for head in keys)
    sentence = (
        f"The token that reaches furthest along a key head's worst direction is most often {listed}"
        f", of {len(keys)} key heads. In {ending} of them the deciding tail of all tokens "
        "together is lighter than Gaussian beyond uncertainty: it ends, as a cluster of equal "
        "tokens does."
    )
    pairs = [
        (h.norms.value, h.with_delimiters.norms.value)
        for h in found.heads
        if h.with_delimiters is not None
    ]
    known = [(own, other) for own, other in pairs if own is not None and other is not None]
    if known:
        own, other = (float(np.median(values)) for values in zip(*known, strict=True))
        sentence += (
            f" With {_apart(found)} in the cloud the median k-hat of norms goes from {own:.2f} to "
            f"{other:.2f}."
        )
    return sentence


def _layers(found: Tails) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for row in found.layers_table().to_dict("records"):
        rows.append(
            {
                "layer": row["layer"],
                "proxy": f"{row['proxy']:.2f} ({row['proxy_low']:.2f} to {row['proxy_high']:.2f})",
                "kurtosis": f"{row['kurtosis']:.0f} ({row['kurtosis_low']:.0f} to "
                f"{row['kurtosis_high']:.0f})",
                "halves say": f"{row['first_half']}; {row['second_half']}",
            }
        )
    return pd.DataFrame(rows)
