"""Probes that are made up: heads with given numbers, nothing measured."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import structs

from esscher.math.statistics import TailIndex, fit_rate
from esscher.math.statistics.records import ByMetric
from esscher.studies.probe.result import PredictedError, ProbeHead

SIZES = (16, 32, 64)


def made_head(head: int, *, n: int = 1000, **changes: Any) -> ProbeHead:
    """A head of layer 0 that converges like n^-1/2, unless something else is given."""
    errors = np.array(SIZES) ** -0.5 * np.exp([[0.01], [-0.01], [0.02], [-0.02]])
    fit = fit_rate(errors, np.array(SIZES, dtype=float), seed=0)
    predicted = PredictedError(
        error=(0.3, 0.2, 0.1), standard_error=(0.01, 0.01, 0.01), exponent=0.5, exponent_error=0.01
    )
    khat = TailIndex(
        exponent=0.5,
        exponent_interval=(0.5, 0.5),
        k=0.1,
        interval=(0.0, 0.2),
        standard_error=0.05,
        k_with_sinks=0.1,
        sinks=(),
        sink_share=0.0,
        n=n,
        tail_count=90,
        minimum_size=400,
        level=0.95,
        trusted=True,
        reasons=(),
        clusters=90,
        effective_count=90.0,
    )
    made = ProbeHead(
        layer=0,
        head=head,
        horizon=0.5,
        frobenius=1.0,
        tau=0.0,
        spectrum=(0.5,),
        psi=0.25,
        psi_one_sided=None,
        paper_reference=0.4,
        paper_bound=0.1,
        paper_reference_one_sided=None,
        paper_bound_one_sided=None,
        sharp=ByMetric(mean=0.5, cov=0.5, map=0.5),
        log_burn_in=1.0,
        frozen_share=0.0,
        khat=khat,
        ess={"p10": 50.0, "median": 100.0, "p90": 200.0},
        sinks=(),
        sink_share=0.0,
        delimiter_share=0.0,
        tails=None,
        norm=1.0,
        predicted_error=ByMetric(mean=predicted, cov=predicted, map=predicted),
        keys=n,
        tokens_for={"0.05": 4000.0, "0.1": 1000.0, "0.2": 250.0},
        tokens_for_interval=dict.fromkeys(("0.05", "0.1", "0.2"), (None, None)),
        context=64,
        at_context=0.1,
        at_context_interval=(0.09, 0.11),
        fit=ByMetric(mean=fit, cov=fit, map=fit),
        reference_share=0.0,
        flags={},
    )
    return structs.replace(made, **changes)
