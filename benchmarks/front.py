"""The picture at the top of the README, from results that are stored.

    python -m benchmarks.front

Left and middle: how far from dense two models are with part of their cache (bytes-*-curves.csv).
Right: what a token takes with all of it and with a quarter (decode.json).
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
RESULTS = ROOT / "benchmarks" / "results"
#: Models, and their tables of caches of as many bytes.
CURVES = {
    "SmolLM2, 135M": RESULTS / "bytes-smollm2-curves.csv",
    "Qwen2.5-Coder, 1.5B": RESULTS / "bytes-qwen-curves.csv",
}
DECODE = RESULTS / "decode.json"
PICTURE = ROOT / "docs" / "images" / "front.png"
#: Configurations that are drawn: the plan, and those that readers know best; all.
DENSE = "all tokens"
SHOWN = ("planned", "uniform", "snapkv", "adakv", "kvzip", "streaming")
#: Texts that are decoded at a time.
TEXTS = 4


def draw_front(curves: dict[str, pd.DataFrame], decode: dict[str, Any]) -> Plot:
    """Draw quality against the share of the bytes, and time against the length of the prompt."""
    names = Series("configuration", [*(NAMES[name] for name in SHOWN), DENSE])
    panels = []
    tables = {
        model: table[
            (table["text"] == ALL) & table["configuration"].isin(SHOWN) & (table["budget"] < 1)
        ]
        for model, table in curves.items()
    }
    every = pd.concat(tables.values())
    x = Axis(
        "share",
        "bytes of the dense cache (%)",
        log=True,
        limits=limits((100 * every["budget"]).tolist(), log=True),
    )
    y = Axis("kl", "KL to dense (nats)", log=True, limits=limits(every["kl"].tolist(), log=True))
    for model, table in tables.items():
        rows = [
            {
                "configuration": NAMES[row["configuration"]],
                "share": 100 * row["budget"],
                "kl": row["kl"],
            }
            for _, row in table.iterrows()
        ]
        title = f"{model}: {int(table['texts'].max())} unseen texts"
        panels.append(panel(lines(rows, x, y, names), points(rows, x, y, names), title=title))
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
        title=f"SmolLM2: 25% of the tokens, {TEXTS} texts at a time",
    )
    return Plot(figure([*panels, speed], "A model with a part of its cache"))


def main() -> None:
    """Write the picture."""
    decode = json.loads(DECODE.read_text(encoding="utf-8"))
    curves = {model: pd.read_csv(path) for model, path in CURVES.items()}
    draw_front(curves, decode).save(PICTURE)
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
