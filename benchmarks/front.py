"""The picture at the top of the README, from results that are stored.

    python -m benchmarks.front

Left: how far from dense a model is with part of its cache (cache-smollm2-curves.csv). Right: what a
token takes with all of it and with a quarter (decode.json).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.cache_tables import ALL
from esscher.show.chart import Axis, Series, figure, lines, panel, points
from esscher.show.content import Plot
from esscher.show.theme import limits
from esscher.studies.plan.view import NAMES

ROOT = Path(__file__).parents[1]
CURVES = ROOT / "benchmarks" / "results" / "cache-smollm2-curves.csv"
DECODE = ROOT / "benchmarks" / "results" / "decode.json"
PICTURE = ROOT / "docs" / "images" / "front.png"
#: Configurations that are drawn: the plan, and those that readers know best; all.
DENSE = "all tokens"
SHOWN = ("planned", "uniform", "snapkv", "adakv", "kvzip", "streaming")
#: Texts that are decoded at a time.
TEXTS = 4


def draw_front(curves: pd.DataFrame, decode: dict[str, Any]) -> Plot:
    """Draw quality against the share kept, and time against the length of the prompt."""
    every = curves[(curves["text"] == ALL) & curves["configuration"].isin(SHOWN)]
    kept = [
        {
            "configuration": NAMES[row["configuration"]],
            "kept": 100 * row["budget"],
            "kl": row["kl"],
        }
        for _, row in every.iterrows()
    ]
    x = Axis(
        "kept", "tokens kept (%)", log=True, limits=limits([r["kept"] for r in kept], log=True)
    )
    y = Axis("kl", "KL to dense (nats)", log=True, limits=limits([r["kl"] for r in kept], log=True))
    names = Series("configuration", [*(NAMES[name] for name in SHOWN), DENSE])
    quality = panel(
        lines(kept, x, y, names),
        points(kept, x, y, names),
        title=f"Quality: means over {int(every['texts'].max())} held-out texts",
    )
    result = [row for row in decode["tokens"]["result"] if row["batch"] == TEXTS]
    times = [
        {"configuration": name, "length": row["length"], "ms": row[key]}
        for row in result
        for name, key in ((DENSE, "dense_ms"), (NAMES["planned"], "planned_ms"))
    ]
    x = Axis(
        "length", "prompt (tokens)", log=True, limits=limits([r["length"] for r in times], log=True)
    )
    y = Axis("ms", "milliseconds per token", limits=limits([0.0, *(r["ms"] for r in times)]))
    speed = panel(
        lines(times, x, y, names),
        points(times, x, y, names),
        title=f"Speed: 25% kept, {TEXTS} texts at a time",
    )
    return Plot(figure([quality, speed], "SmolLM2 with a part of its cache"))


def main() -> None:
    """Write the picture."""
    decode = json.loads(DECODE.read_text(encoding="utf-8"))
    draw_front(pd.read_csv(CURVES), decode).save(PICTURE)
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
