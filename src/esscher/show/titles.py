"""What stands above the figures of a run: what was measured, on what, how often."""

from __future__ import annotations

from typing import Any


def title_of(results: dict[str, Any], title: str | None = None) -> str:
    """The title of a run's figures, unless one is given (an empty one is none)."""
    return _TITLES[results["kind"]](results) if title is None else title


def _probe(results: dict[str, Any]) -> str:
    c = results["configuration"]
    return (
        f"{_model(c)} on {c['text']['source']}, {c['mode']}, {c['tokens']:,} tokens, "
        f"n = {c['sizes'][0]} to {c['sizes'][-1]}, {c['replicates']} replicates"
    )


def _plan(results: dict[str, Any]) -> str:
    return (
        f"{results['model']['name']}: {results['total']['ratio']:.1%} of {results['prefix']:,} "
        "tokens kept"
    )


def _context(results: dict[str, Any]) -> str:
    c = results["configuration"]
    return (
        f"{_model(c)} on {c['text']['source']}: context used by its heads, "
        f"{c['passages']} passages, longest context {c['context']:,}"
    )


def _deep(results: dict[str, Any]) -> str:
    c = results["configuration"]
    if results["kind"] == "deep-stack":
        return (
            f"Gaussian stack: {c['depth']} layers, d = {c['dim']}, H = {c['horizon']:g}, "
            f"residual {c['residual']:g}, {c['replicates']} replicates"
        )
    return (
        f"{_model(c)} on {c['text']['source']}: {c['passages']} passages of {c['context']} tokens, "
        f"{c['draws']} draws"
    )


def _model(configuration: dict[str, Any]) -> str:
    return str(configuration["model"]["name"])


_TITLES = {
    "probe": _probe,
    "plan": _plan,
    "context": _context,
    "deep": _deep,
    "deep-stack": _deep,
}
