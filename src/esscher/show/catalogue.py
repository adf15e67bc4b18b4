"""Which figures each kind of run offers, and how to draw one of them.

The main figure of a kind stands first. Nothing that draws is imported before it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from esscher.core.errors import InputError
from esscher.math.theory import Prediction
from esscher.runs.folder import CONFIG
from esscher.runs.registry import has_part, result_of
from esscher.runs.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _nothing(results: Any) -> str | None:
    """Why a figure cannot be drawn; None if it can."""
    return None


@dataclass(frozen=True)
class Drawing:
    """A figure that a kind of run offers.

    Attributes
    ----------
    place
        ``"module:function"`` below ``esscher.show``.
    about
        What it shows, in one line.
    heads
        Whether heads can be chosen.
    missing
        Takes the results, and says why there is nothing to draw; None if there is.
    """

    place: str
    about: str
    heads: bool = False
    missing: Callable[[Any], str | None] = _nothing

    def load(self) -> Callable[..., Figure]:
        """The function that draws it."""
        module, name = self.place.split(":")
        function: Callable[..., Figure] = getattr(import_module(f"esscher.show.{module}"), name)
        return function


def _no_heads_together(results: Any) -> str | None:
    there = any(layer["heads_together"] is not None for layer in results["layers"])
    return None if there else "no layer has more than one head, measured on at least 4 replicates"


def _no_check(results: Any) -> str | None:
    return None if results["check"] is not None else "the plan was not checked (--check TEXT)"


def _no_stack(results: Any) -> str | None:
    return None if results.get("limit") else "only a Gaussian stack has a known limit"


def _no_end(results: Any) -> str | None:
    return None if results.get("end") else "only a model has an end to compare"


def _no_terciles(results: Any) -> str | None:
    if _no_end(results) or results.get("terciles") is None:
        return "heads were not sampled by terciles of the horizon"
    curves = results["end"].get("kl") or results["end"].get("cosine", {})
    return None if "low" in curves else "heads were not sampled by terciles of the horizon"


CATALOGUE: dict[str, dict[str, Drawing]] = {
    "probe": {
        "heads": Drawing("heatmaps:draw_heads", "six numbers of every head, layer by head"),
        "tokens": Drawing("probes:draw_tokens", "tokens for 10% error of every head, sorted"),
        "curves": Drawing(
            "probes:draw_curves",
            "errors of single heads against n, fitted and predicted (--head)",
            heads=True,
        ),
        "predicted": Drawing("probes:draw_predicted", "measured against predicted exponents"),
        "layers": Drawing(
            "manyheads:draw_layers", "the heads of each layer together", missing=_no_heads_together
        ),
    },
    "sweep": {
        "curve": Drawing("sweeps:draw_curve", "errors against n with fitted law and prediction"),
        "exponents": Drawing("sweeps:draw_sweep_exponents", "exponents against the horizon"),
        "study": Drawing("sweeps:draw_sweep", "both, in the layout of the published study"),
    },
    "deep": {
        "depth": Drawing("depth:draw_depth", "errors and exponents by layer, and the end"),
        "errors": Drawing("depth:draw_errors_figure", "relative errors by layer"),
        "exponents": Drawing("depth:draw_exponents_figure", "exponents by layer"),
        "growth": Drawing("depth:draw_growth_figure", "growth of the error from layer to layer"),
        "limit": Drawing(
            "depth:draw_limit_figure", "measured limit against the exact recursion",
            missing=_no_stack,
        ),
        "end": Drawing(
            "depth:draw_end_figure", "divergence of the model's end from dense", missing=_no_end
        ),
        "terciles": Drawing(
            "depth:draw_terciles_figure", "the same, a third of the heads sampled",
            missing=_no_terciles,
        ),
    },
    "plan": {
        "plan": Drawing("plans:draw_plan", "budgets, cost, layers and calibration"),
        "budgets": Drawing("plans:draw_budgets_figure", "tokens that every key head keeps"),
        "predicted": Drawing("plans:draw_predicted_figure", "predicted errors of the heads"),
        "cost": Drawing(
            "plans:draw_cost_figure", "what the plan costs on unseen text", missing=_no_check
        ),
        "layers": Drawing(
            "plans:draw_layers_figure", "errors of attention outputs by layer", missing=_no_check
        ),
        "calibration": Drawing(
            "plans:draw_calibration_figure", "realised against predicted errors of heads",
            missing=_no_check,
        ),
    },
    "context": {
        "context": Drawing("contexts:draw_context", "share of heads done, and lengths by head"),
        "saturation": Drawing("contexts:draw_saturation", "share of heads done at every length"),
        "lengths": Drawing("contexts:draw_lengths", "context that every head uses"),
        "curves": Drawing(
            "contexts:draw_changes",
            "what is still to come at every length, for single heads (--head)",
            heads=True,
        ),
    },
    "theory": {
        "curves": Drawing("figures:draw_prediction", "predicted errors and local exponents"),
    },
}  # fmt: skip
CATALOGUE["deep-stack"] = CATALOGUE["deep"]
#: Drawings that take the result object, not its results, by module.
_OBJECTS = ("heatmaps", "probes", "manyheads", "depth", "sweeps", "figures")
#: What is empty in the results of a run in which nothing is measured yet.
_MEASURED = {"probe": "heads", "context": "heads", "deep": "layers", "deep-stack": "layers"}
#: Narrowest and widest figure, in inches.
NARROW, WIDE = 2.0, 20.0


def figure(
    run: Any,
    kind: str | None = None,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    width: float | str = "double",
    title: str | None = None,
) -> Any:
    """Draw a figure of a stored run, or of results that are there already.

    Parameters
    ----------
    run
        Directory of a run, the file of a plan, or what :func:`esscher.probe`,
        :func:`esscher.sweep`, :func:`esscher.predict` and so on returned.
    kind
        Name of the figure; :func:`figures_of` lists them. None: the main one.
    heads
        (layer, head) of the heads to draw, for figures of single heads.
    width
        ``"single"`` or ``"double"`` column of a paper (3.4 and 7 inches), or inches.
    title
        Above everything; None: what was measured; empty: none.

    Returns
    -------
    Figure
        A figure of matplotlib, which no window manager knows: ``figure.savefig("name.pdf")``.
    """
    kind_of_run, found = read(run)
    return draw(kind_of_run, found, kind, heads=heads, width=width, title=title)


def figures_of(run: Any) -> dict[str, str]:
    """Names of the figures that a run offers, the main one first, and what they show."""
    return offered(*read(run))


def read(run: Any) -> tuple[str, Any]:
    """Kind and result object of a run's directory, or of a result.

    Raises
    ------
    InputError
        If it is no run, is damaged, or has no results yet.
    """
    if isinstance(run, Prediction):
        return "theory", run
    from esscher.show.stored import read_runs

    # a directory of runs would be read whole, which takes long: here it must be one
    if isinstance(run, str | PathLike) and Path(run).is_dir() and not (Path(run) / CONFIG).exists():
        raise InputError(f"{run} is not a run: it has no {CONFIG}")
    (found,) = read_runs([run])
    return found.kind, found.found


def offered(kind_of_run: str, found: Any) -> dict[str, str]:
    """What :func:`figures_of` returns, for results that were read."""
    if _has_charts(found):
        return dict(found.charts())
    results = _results(found)
    return {
        name: drawing.about
        for name, drawing in _drawings(kind_of_run).items()
        if drawing.missing(results) is None
    }


def draw(
    kind_of_run: str,
    found: Any,
    name: str | None = None,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    width: float | str = "double",
    title: str | None = None,
) -> Any:
    """Draw one of the figures that a kind of run offers.

    Parameters
    ----------
    kind_of_run
        One of ``CATALOGUE``: ``"probe"``, ``"sweep"``, ...
    found
        The result object, or its results as plain numbers, lists and strings.
    name, heads, width, title
        As for :func:`figure`.

    Raises
    ------
    InputError
        If there is no such figure, or this run has not what it shows.
    """
    if _has_charts(found):
        return found.plot(name, heads=heads, title=title)
    if isinstance(found, Prediction):
        return found.plot(title=title)
    drawings = _drawings(kind_of_run)
    chosen = next(iter(drawings)) if name is None else name
    if chosen not in drawings:
        raise InputError(
            f"a {kind_of_run} has no figure {chosen!r}; choose from {', '.join(drawings)}"
        )
    drawing, results = drawings[chosen], _results(found)
    if heads is not None and not drawing.heads:
        choosing = [other for other, about in drawings.items() if about.heads]
        remedy = f"that is for {', '.join(choosing)}" if choosing else "leave them out"
        raise InputError(f"the figure {chosen!r} of a {kind_of_run} takes no heads; {remedy}")
    options: dict[str, Any] = {} if heads is None else {"heads": list(heads)}
    inches = as_width(width)
    try:
        if kind_of_run in _MEASURED and not results[_MEASURED[kind_of_run]]:
            raise InputError("there is nothing to draw yet: no part of the run is complete")
        reason = drawing.missing(results)
        if reason is not None:
            raise InputError(f"there is no figure {chosen!r} of this {kind_of_run}: {reason}")
        subject = _object(kind_of_run, found) if _takes_object(drawing) else results
        return drawing.load()(subject, title, width=inches, **options)
    except (LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"the results of this {kind_of_run} are not what this version of Esscher writes "
            f"({type(error).__name__}: {error}); run its command again, which makes them anew"
        ) from error


def _has_charts(found: Any) -> bool:
    return isinstance(found, Result) and has_part(found.study.name, "charts")


def as_width(width: float | str) -> float:
    """Inches of ``"single"``, ``"double"``, or a number."""
    from esscher.show.style import DOUBLE, SINGLE

    columns = {"single": SINGLE, "double": DOUBLE}
    if width in columns:
        return columns[str(width)]
    try:
        inches = float(width)
    except (TypeError, ValueError):
        inches = np.nan
    if not NARROW <= inches <= WIDE:
        raise InputError(
            f"width is {width!r}; it must be single, double, or inches from {NARROW:g} to {WIDE:g}"
        )
    return inches


def _drawings(kind_of_run: str) -> dict[str, Drawing]:
    if kind_of_run not in CATALOGUE:
        raise InputError(
            f"there are no figures of a run of kind {kind_of_run!r}; there are of "
            f"{', '.join(CATALOGUE)}"
        )
    return CATALOGUE[kind_of_run]


def _takes_object(drawing: Drawing) -> bool:
    return drawing.place.split(":")[0] in _OBJECTS


def _results(found: Any) -> Any:
    return found.to_dict() if isinstance(found, Result) else getattr(found, "results", found)


def _object(kind_of_run: str, found: Any) -> Any:
    if not isinstance(found, dict):
        return found
    return result_of(found | {"kind": kind_of_run}, f"the result of this {kind_of_run}")
