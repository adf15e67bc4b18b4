"""Simulation on the line against exact attention."""

from __future__ import annotations

import pytest
from benchmarks.direct import attend
from benchmarks.line import line_errors

import esscher
from esscher.core.streams import random_stream


def test_the_line_is_attention_in_one_dimension() -> None:
    """The grid of tilts against exact attention of every token."""
    for h in (0.6, -2.0):
        run = line_errors(h, [50, 300], replicates=2, seed=1)
        for r in range(2):
            sample = random_stream(1, "line", r).standard_normal(300)
            for i, n in enumerate((50, 300)):
                x = sample[:n, None]
                output = attend(h * x, x, x)
                # cubic interpolation on 201 nodes
                assert run.mean[r, i] == pytest.approx(output.mean(), abs=2e-4)
                assert run.cov[r, i] == pytest.approx(output.var() - h * h, abs=2e-3)
    with pytest.raises(esscher.InputError, match="not 0"):
        line_errors(0.0, [10], replicates=1, seed=0)
