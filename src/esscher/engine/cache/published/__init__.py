"""Published rules for what a decoder keeps of a prompt, one per file.

They are written from the papers and agree with kvpress 0.5.5 where that has them
(``benchmarks/kvpress.py`` measures how far). Unlike a plan they keep heads' best tokens and forget
the others.
"""

from __future__ import annotations

from esscher.core.errors import InputError
from esscher.engine.cache.published.adakv import AdaKV
from esscher.engine.cache.published.criticalkv import CriticalKV
from esscher.engine.cache.published.duo import Duo
from esscher.engine.cache.published.expected import Expected
from esscher.engine.cache.published.kvzip import KVzip
from esscher.engine.cache.published.looking import Looking
from esscher.engine.cache.published.lukv import LUKV
from esscher.engine.cache.published.prefilled import Prefilled, prefilled_layer
from esscher.engine.cache.published.profile import LayerProfile, Profile, measure_profile
from esscher.engine.cache.published.pyramid import Pyramid
from esscher.engine.cache.published.repeat import repeat_prompt
from esscher.engine.cache.published.rule import Rule, Scorer, Scores
from esscher.engine.cache.published.snapkv import SnapKV
from esscher.engine.cache.published.streaming import Streaming
from esscher.engine.cache.published.tova import Tova

__all__ = [
    "RULES",
    "SCORERS",
    "LayerProfile",
    "Looking",
    "Prefilled",
    "Profile",
    "Rule",
    "Scorer",
    "Scores",
    "measure_profile",
    "prefilled_layer",
    "repeat_prompt",
    "rule_named",
]

#: Rules by name.
RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Streaming(), SnapKV(), Tova(), Expected(), Pyramid(), AdaKV(), CriticalKV(), KVzip(),
        LUKV(), Duo(),
    )
}  # fmt: skip
#: Rules over which others work.
SCORERS: dict[str, Scorer] = {
    name: rule for name, rule in RULES.items() if isinstance(rule, Scorer)
}


def rule_named(name: str) -> Rule:
    """Return the rule of a name; ``adakv:expected`` is AdaKV over the scores of another rule.

    AdaKV, CriticalKV and LU-KV work over any scorer. Over expected attention CriticalKV takes
    weights without the norms of values: it has norms of its own.

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
    if rule == "criticalkv" and scorer in SCORERS:
        return CriticalKV(Expected(norms=False) if scorer == "expected" else SCORERS[scorer])
    if rule == "lukv" and scorer in SCORERS:
        return LUKV(SCORERS[scorer])
    raise InputError(
        f"there is no rule {name!r}; choose among {', '.join(RULES)}, or adakv, criticalkv and "
        f"lukv with a colon and one of {', '.join(SCORERS)}"
    )
