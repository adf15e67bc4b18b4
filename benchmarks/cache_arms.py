"""What :mod:`benchmarks.cache` compares: plans, uniform budgets, published rules, ablations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cache_plans import Calibration, scores_of
from esscher.engine.attention.bits import ALL_BITS, EXACT, Bits
from esscher.engine.cache.budgets import Score
from esscher.engine.cache.cache import ObservedPrompt
from esscher.engine.cache.published import RULES, Rule
from esscher.engine.cache.selection import select_keys
from esscher.studies.plan.check import KeptLayers, Named, bits_of, kept_by_rule, sample_start
from esscher.studies.plan.predict import Budgets

#: Seeds of the samples that are compared with the first one.
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Arm:
    """One way to keep part of a prompt.

    Attributes
    ----------
    name, budget
        What it is called, and the share of a dense cache's bytes that it may take.
    keep
        Chooses the tokens of a prompt that has a name and a number.
    rule
        Published rule that has to look on; None for plans.
    score
        By which queries tokens are scored.
    optimism
        How much more it costs on passages that its budgets were not made from, if that is known.
    """

    name: str
    budget: float
    keep: Callable[[ObservedPrompt, Named], KeptLayers]
    rule: Rule | None = None
    score: Score = "all"
    optimism: float | None = None


def budgets_arm(
    name: str,
    budget: float,
    budgets: Budgets,
    calibration: Calibration,
    score: Score = "all",
    seed: int = 0,
    **about: Any,
) -> Arm:
    """An arm that keeps given budgets."""
    certain = calibration.certain(budget)

    def keep(prompt: ObservedPrompt, named: Named) -> KeptLayers:
        # budgets have a row for every layer that is reduced
        out: KeptLayers = {}
        for row, (layer, scores) in enumerate(scores_of(prompt, score).items()):
            out[layer] = [
                select_keys(
                    budgets.selection,
                    head,
                    certain,
                    int(budgets.tokens[row, g]),
                    float(budgets.powers[row, g]),
                    sample_start(named, seed, layer, g),
                ).in_codes(bits_of(budgets.bits[row, g]), certain)
                for g, head in enumerate(scores)
            ]
            if budgets.selection == "fitted":
                out[layer] = prompt.fit(layer, out[layer])
        return out

    return Arm(name, budget, keep, score=score, **about)


def rule_arm(rule: Rule, budget: float, calibration: Calibration, bits: Bits = EXACT) -> Arm:
    """An arm that keeps what a published rule does, with all tokens in so many bits."""
    nbytes, certain, entry = (
        calibration.taken(budget),
        calibration.certain(budget),
        calibration.entry,
    )

    def keep(prompt: ObservedPrompt, named: Named) -> KeptLayers:
        return kept_by_rule(rule, prompt, certain, nbytes, bits, entry)

    name = rule.name if bits == EXACT else f"{rule.name} {bits[0]}"
    return Arm(name, budget, keep, rule=rule)


def planned_arm(calibration: Calibration, budget: float, score: Score = "all") -> Arm:
    """The plan."""
    budgets, plan = calibration.plan(budget, score)
    return budgets_arm(
        "planned" if score == "all" else f"planned:{score}",
        budget,
        budgets,
        calibration,
        score,
        optimism=plan.optimism,
    )


def uniform_arm(calibration: Calibration, budget: float) -> Arm:
    """Equal budgets."""
    budgets, uniform = calibration.uniform(budget)
    return budgets_arm(
        "uniform",
        budget,
        budgets,
        calibration,
        optimism=uniform.optimism,
    )


def compared(
    calibration: Calibration,
    budgets: Iterable[float],
    scores: Sequence[Score] = ("all",),
    rules: Sequence[str] = tuple(RULES),
    bits: Sequence[int] = (16, 8, 4),
) -> list[Arm]:
    """The plan, uniform budgets and all published rules, these in 16, 8 and 4 bits."""
    return [
        arm
        for budget in budgets
        for arm in (
            *(planned_arm(calibration, budget, score) for score in scores),
            uniform_arm(calibration, budget),
            *(
                rule_arm(rule, budget, calibration, (each, each))
                for rule in map(RULES.__getitem__, rules)
                for each in bits
            ),
        )
    ]


def ablations(
    calibration: Calibration,
    budgets: Iterable[float],
    scores: Sequence[Score],
    prose: Sequence[int],
    more: Calibration,
) -> list[Arm]:
    """The plan, and what is left of it when something is taken away.

    Parameters
    ----------
    calibration
        That of the plan.
    budgets
        Shares of the tokens.
    scores
        Scores to compare.
    prose
        Numbers of calibration passages, all of prose.
    more
        A calibration that has so many of them.
    """
    arms = []
    for budget in budgets:
        plan, _ = calibration.plan(budget)
        others = {
            "not fitted": plan._replace(selection="sample"),
            "planned for samples": calibration.plan(budget, selection="sample")[0],
            "largest scores": plan._replace(selection="topk"),
            "planned for largest scores": calibration.plan(budget, selection="topk")[0],
        }
        for keys, values in ALL_BITS:
            others[f"all in {keys}/{values} bits"] = calibration.plan(budget, bits=(keys, values))[
                0
            ]
        for count in prose:
            others[f"{count} prose"] = more.plan(budget, prose=count)[0]
        arms += [planned_arm(calibration, budget, score) for score in scores]
        arms.append(uniform_arm(calibration, budget))
        arms += [budgets_arm(name, budget, own, calibration) for name, own in others.items()]
        arms += [
            budgets_arm(f"seed {seed}", budget, plan, calibration, seed=seed) for seed in SEEDS
        ]
    return arms


def small(calibration: Calibration, budgets: Iterable[float]) -> list[Arm]:
    """Plans and equal budgets."""
    return [
        arm
        for budget in budgets
        for arm in (planned_arm(calibration, budget), uniform_arm(calibration, budget))
    ]
