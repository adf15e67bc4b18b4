"""Several sweeps in one chart: their exponents against the horizon, and their errors against n."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from altair.typing import ChartType

from esscher.show.chart import figure, guides, lines, panel, points
from esscher.show.content import Compared, Drawn
from esscher.show.scales import Axis, Series
from esscher.show.theme import DASHES, limits
from esscher.studies.sweep.charts import TITLES
from esscher.studies.sweep.measure import METRICS
from esscher.studies.sweep.result import Sweep

#: Sweeps of more scales are compared by their exponents alone.
MOST_SCALES = 12


def side_by_side(sweeps: Mapping[str, Sweep]) -> Compared:
    """Compare the sweeps that have a rate to fit."""
    fitted = {name: sweep for name, sweep in sweeps.items() if sweep.has_fits}
    if len(fitted) < 2:
        return Compared()
    parts = [
        Drawn(
            "Exponents of all sweeps",
            exponents(fitted),
            "With 95% intervals; hollow: not to be trusted. Dashed: what theory predicts on the "
            "sizes of the sweep.",
        )
    ]
    if sum(len(sweep.scales) for sweep in fitted.values()) <= MOST_SCALES:
        parts.append(
            Drawn(
                "Errors of all sweeps",
                errors(fitted),
                "Mean over replicates with 95% intervals (1.96 standard errors).",
            )
        )
    return Compared(parts=parts)


def exponents(sweeps: Mapping[str, Sweep]) -> ChartType:
    """Draw the exponent of every metric against the horizon, one series per sweep."""
    every = [float(h) for sweep in sweeps.values() for h in sweep.horizons]
    log = max(every) > 5 * min(every)
    x = Axis("horizon", "horizon H", log=log, limits=limits(every, log=log))
    y = Axis("exponent", "exponent β")
    runs = Series("run", tuple(sweeps))
    predicted = Series("kind", ("predicted",), dashes=(DASHES[1],))
    panels = []
    for metric in METRICS:
        rows = [row for name, sweep in sweeps.items() for row in _exponents(name, sweep, metric)]
        known = [
            row | {"exponent": row["predicted"], "kind": "predicted"}
            for row in rows
            if row["predicted"] is not None
        ]
        panels.append(
            panel(
                guides([{"at": 0.5, "name": "1/2"}], x, y),
                *([lines(known, x, y, runs, dashes=predicted)] if known else []),
                points(rows, x, y, runs),
                title=TITLES[metric],
            )
        )
    return figure(panels)


def _exponents(name: str, sweep: Sweep, metric: str) -> list[dict[str, Any]]:
    rows = []
    for place, scale in enumerate(sweep.scales):
        fit = sweep.fit(metric, place)
        low, high = fit.interval
        rows.append(
            {
                "run": name, "horizon": scale.horizon, "exponent": fit.exponent, "low": low,
                "high": high, "hollow": not fit.trusted, "predicted": fit.predicted,
            }
        )  # fmt: skip
    return rows


def errors(sweeps: Mapping[str, Sweep]) -> ChartType:
    """Draw the mean errors of every metric against n, one series per sweep and scale."""
    names = [
        _named(name, scale.horizon) for name, sweep in sweeps.items() for scale in sweep.scales
    ]
    runs = Series("run", tuple(dict.fromkeys(names)))
    sizes = [n for sweep in sweeps.values() for n in sweep.sizes]
    x = Axis("n", "tokens n", log=True, limits=limits(sizes, log=True))
    panels = []
    for metric in METRICS:
        rows = [row for name, sweep in sweeps.items() for row in _errors(name, sweep, metric)]
        ends = limits((row.get(end) for row in rows for end in ("error", "high")), log=True)
        y = Axis("error", "error", log=True, limits=ends)
        blocks = lines(rows, x, y, runs), points(rows, x, y, runs)
        panels.append(panel(*blocks, title=TITLES[metric]))
    return figure(panels)


def _errors(name: str, sweep: Sweep, metric: str) -> list[dict[str, Any]]:
    rows = []
    for scale in sweep.scales:
        summary = getattr(scale, metric)
        for n, mean, noise in zip(sweep.sizes, summary.mean, summary.standard_error, strict=True):
            row = {"run": _named(name, scale.horizon), "n": n, "error": mean}
            if noise is not None:
                row |= {"low": mean - 1.96 * noise, "high": mean + 1.96 * noise}
            rows.append(row)
    return rows


def _named(name: str, horizon: float) -> str:
    return f"{name}, H = {horizon:.3g}"
