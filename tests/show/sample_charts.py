"""Small charts that have every block in them."""

from __future__ import annotations

import numpy as np

from esscher.show.cells import heatmap, picked_title, picking
from esscher.show.chart import (
    Axis,
    Series,
    bands,
    diagonal,
    figure,
    guides,
    lines,
    panel,
    points,
)
from esscher.show.theme import limits

WORDS = Series("word", ("light", "heavy"))
LETTERS = {"light": "L", "heavy": "H"}


def curves(title="Errors", names=("0.5", "2")):
    """Log-log curves with intervals, fitted and predicted lines, over many decades."""
    rng = np.random.default_rng(3)
    measured, fitted = [], []
    for name, exponent in zip(names, (0.5, 0.2), strict=True):
        for n in np.geomspace(10, 1e7, 7):
            error = 3 * n**-exponent * np.exp(0.1 * rng.normal())
            at = {"H": name, "n": round(n)}
            measured.append(
                at | {"error": error, "low": 0.8 * error, "high": 1.3 * error, "hollow": n > 1e6}
            )
            fitted += [
                at | {"error": k * n**-exponent, "line": line}
                for k, line in ((3, "fitted"), (4, "predicted"))
            ]
    measured[0]["low"] = -1.0  # reaches 0: is cut, not drawn into nowhere
    series = Series("H", names, "horizon", ordered=True)
    kinds = Series("line", ("fitted", "predicted"))
    x = Axis("n", "tokens n", log=True, limits=limits([row["n"] for row in measured], log=True))
    y = Axis(
        "error", "error", log=True, limits=limits([row["error"] for row in measured], log=True)
    )
    one = panel(
        bands(measured, x, y, series),
        lines(fitted, x, y, series, dashes=kinds),
        points(measured, x, y, series),
        title="map",
    )
    two = panel(
        diagonal(y, y, 1.5),
        points([{"error": 0.1}], y, y),
        guides([{"at": 0.1, "name": "goal"}], y, y),
        guides([{"at": 0.1}], y, y, upright=True),
        title="predicted",
    )
    return figure([one, two], title, note="points: measured")


def explorer(layers=3, heads=4):
    """Heatmaps linked to the curve of the head that is picked."""
    cells = [
        {
            "layer": layer,
            "head": head,
            "size": 10.0 ** (layer + head) or None,
            "share": (layer * head) / 5,
            "word": WORDS.names[(layer + head) % 2],
        }
        for layer in range(layers)
        for head in range(heads)
    ]
    cells[1]["size"] = float("inf")
    cells[2]["word"] = None
    tail = [
        {"layer": row["layer"], "head": row["head"], "n": n, "error": (1 + row["layer"]) / n}
        for row in cells
        for n in (1.0, 2.0, 4.0)
    ]
    pick = picking(1, 2)
    x, y = Axis("n", "n"), Axis("error", "error")
    return figure(
        [
            heatmap(cells, "size", "size", log=True, pick=pick),
            heatmap(cells, "share", "share", ends=(0.2, 1.0), pick=pick),
            heatmap(cells, "word", "word", words=WORDS, letters=LETTERS, pick=pick),
            panel(
                lines(tail, x, y, pick=pick),
                points(tail, x, y, pick=pick),
                title=picked_title("curve"),
            ),
        ],
        "Heads",
        apart=True,
        pick=pick,
    )


def pairs(names=("one", "a name that is longer than all others")):
    """Points beside each other at names, and counts of pairs of names."""
    rows = [
        {"kind": kind, "s": s, "x": 1.0 + i, "low": 0.5, "high": 3.0}
        for kind in names
        for i, s in enumerate("ab")
    ]
    series = Series("s", ("a", "b"), dashes=((1, 0), (4, 2)))
    x, y = Axis("x", "x"), Axis("kind", names=names)
    compare = [{"at": 1.0}, {"at": 2.0, "name": "two"}]
    return figure(
        [
            panel(
                guides(compare, x, y, upright=True),
                points(rows, x, y, series, across=True, beside=True),
            ),
            panel(points(rows, y, x, series, beside=True), lines(rows, y, x, series)),
        ],
        "Pairs",
        apart=True,
    )


SAMPLES = {"curves": curves, "explorer": explorer, "pairs": pairs}
