"""A plan in plain language."""

from __future__ import annotations

from typing import Any


def headline(results: dict[str, Any]) -> str:
    """What is kept, what it costs, and whether the plan is worth it."""
    total, check = results["total"], results["check"]
    smallest = min(min(row) for row in results["budgets"])
    largest = max(max(row) for row in results["budgets"])
    sentence = (
        f"{total['ratio']:.1%} of the tokens are kept: {smallest:,} to {largest:,} of "
        f"{results['prefix']:,} per key head. "
    )
    predicted = results["predicted"]
    if check is None:
        return sentence + (
            f"Predicted {predicted['unit']}: {_number(predicted['effect'], predicted['interval'])}"
            f", with uniform budgets {predicted['uniform_effect']:.3g}. Not checked: give a text "
            "with --check."
        )
    name = "kl" if "kl" in check["planned"] else "cosine"
    ratios = check["ratios"]
    unit = "KL to dense" if name == "kl" else "cosine to dense"
    planned, uniform = check["planned"][name], check["uniform"][name]
    sentence += (
        f"On {check['passages']} unseen passages {unit} is "
        f"{_number(planned['mean'], planned['interval'])} planned and "
        f"{_number(uniform['mean'], uniform['interval'])} uniform. "
    )
    verdict = _ratio(ratios["uniform"])
    if check["earned"]:
        sentence += f"The plan earned its place: {verdict} closer to dense than uniform budgets"
    else:
        sentence += (
            f"The plan did NOT earn its place ({verdict} closer to dense, which may be chance): "
            "use uniform budgets"
        )
    return sentence + f", and {_ratio(ratios['heavy'])} closer than heavy hitters."


def _number(value: float, interval: list[float] | None) -> str:
    if interval is None:
        return f"{value:.3g}"
    return f"{value:.3g} ({interval[0]:.3g} to {interval[1]:.3g})"


def _ratio(found: dict[str, Any]) -> str:
    if found["interval"] is None:
        return f"{found['mean']:.2g} times"
    low, high = found["interval"]
    return f"{found['mean']:.2g} ({low:.2g} to {high:.2g}) times"
