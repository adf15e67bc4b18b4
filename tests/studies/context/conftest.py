"""A result of context lengths that no model made, with a hostile name."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.engine.models.record import ModelRecord
from esscher.engine.text.documents import TextRecord
from esscher.studies.context import Context, ContextStudy
from esscher.studies.context.result import HeadContext


@pytest.fixture(scope="session")
def found() -> Context:
    """Three layers of four heads: 1.1 has an open end, 1.3 is extrapolated."""
    lengths, heads = (32, 64, 128, 256), []
    for i, (layer, head) in enumerate(np.ndindex(3, 4)):
        length: float | None = 40.0 + 12 * i
        rest: list[float | None] = [0.4 / 2**j / (1 + i / 12) for j in range(4)]
        interval: tuple[float | None, float | None] = (0.9 * length, 1.2 * length)
        if i == 5:
            length, rest, interval = None, [None] * 4, (700.0, 1024.0)
        if i == 7:
            length, interval = 900.0, (300.0, 1024.0)
        heads.append(
            HeadContext(
                layer=int(layer), head=int(head), change=(0.2, 0.1, 0.05), length=length,
                interval=interval, open=length is None, limit=1024.0,
                note="still changing by 20% at 256" if length is None else "",
                extrapolated=length is not None and length > 256, exponent=1.0, rest=tuple(rest),
            )
        )  # fmt: skip
    model = ModelRecord(
        name="a $x_{$ <b> & \\frac \x07 $y$", family="", architecture="", layers=3, heads=4,
        key_heads=4, head_dim=8, hidden=32, causal=True, max_positions=1024, dtype="float32",
    )  # fmt: skip
    text = TextRecord(source="demo:docs", hash="")
    return Context(
        study=ContextStudy(model, text, context=256, query_count=64, passages=3), complete=True,
        cells=3, versions={}, created="", headline="Twelve heads.", lengths=lengths,
        heads=tuple(heads),
    )  # fmt: skip
