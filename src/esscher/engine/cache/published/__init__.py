"""Published rules for what a decoder keeps of a prompt, one per file.

They are written from the papers and agree with kvpress 0.5.5 where that has them
(``benchmarks/kvpress.py`` measures how far). Unlike a plan they keep heads' best tokens and forget
the others.
"""

from __future__ import annotations

from esscher.core.errors import InputError
from esscher.engine.cache.published.adakv import AdaKV
from esscher.engine.cache.published.expected import Expected
from esscher.engine.cache.published.kvzip import KVzip
from esscher.engine.cache.published.looking import Looking
from esscher.engine.cache.published.prefilled import Prefilled, prefilled_layer
from esscher.engine.cache.published.repeat import repeat_prompt
from esscher.engine.cache.published.rule import Rule, Scorer, Scores
from esscher.engine.cache.published.snapkv import SnapKV
from esscher.engine.cache.published.streaming import Streaming

__all__ = [
    "RULES",
    "SCORERS",
    "Looking",
    "Prefilled",
    "Rule",
    "Scorer",
    "Scores",
    "prefilled_layer",
    "repeat_prompt",
    "rule_named",
]

#: Rules by name.
RULES: dict[str, Rule] = {
    rule.name: rule for rule in (Streaming(), SnapKV(), Expected(), AdaKV(), KVzip())
}
#: Rules over which others work.
SCORERS: dict[str, Scorer] = {
    name: rule for name, rule in RULES.items() if isinstance(rule, Scorer)
}


def rule_named(name: str) -> Rule:
    """Return the rule of a name; ``adakv:expected`` is AdaKV over the scores of another rule.

    Raises
    ------
    InputError
        Naming the rules that there are.
    """
    rule, _, scorer = name.partition(":")
    if not scorer and name in RULES:
        return RULES[name]
    if rule == "adakv" and scorer in SCORERS:
        return AdaKV(SCORERS[scorer])
    raise InputError(
        f"there is no rule {name!r}; choose among {', '.join(RULES)}, or adakv with a colon and "
        f"one of {', '.join(SCORERS)}"
    )
