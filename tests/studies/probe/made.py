"""Probes that are made up: heads with given numbers, nothing measured."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import structs

from esscher.engine.models.record import ModelRecord
from esscher.engine.text.documents import TextRecord
from esscher.math.statistics import TailIndex, fit_rate
from esscher.math.statistics.records import ByMetric
from esscher.studies.probe import Probe, ProbeStudy
from esscher.studies.probe.result import (
    AtContext,
    ByTolerance,
    Curves,
    ErrorSummary,
    MeanAndCovariance,
    PredictedError,
    PredictedExponents,
    ProbeHead,
    Psi,
    Quantiles,
    ReferenceQuality,
    Sinks,
)

SIZES = (16, 32, 64)


def made_head(head: int, *, ess: float = 100.0, n: int = 1000, **changes: Any) -> ProbeHead:
    """A head of layer 0 that converges like n^-1/2, unless something else is given."""
    errors = np.array(SIZES) ** -0.5 * np.exp([[0.01], [-0.01], [0.02], [-0.02]])
    fit = fit_rate(errors, np.array(SIZES, dtype=float), seed=0)
    curve = ErrorSummary(
        mean=tuple(errors.mean(0)), median=tuple(errors.mean(0)), standard_error=None
    )
    predicted = PredictedError(
        error=(0.3, 0.2, 0.1), standard_error=(0.01, 0.01, 0.01), exponent=0.5, exponent_error=0.01
    )
    none = MeanAndCovariance(mean=0.0, cov=None)
    made = ProbeHead(
        layer=0,
        head=head,
        horizon=0.5,
        frobenius=1.0,
        tau=0.0,
        spectrum=(0.5,),
        psi=Psi(two_sided=0.25, one_sided=None),
        log_burn_in=1.0,
        frozen_share=0.0,
        khat=TailIndex(
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
        ),
        ess=Quantiles(p10=ess / 2, median=ess, p90=2 * ess),
        sinks=Sinks(count=0, share=0.0, tokens=()),
        delimiter_share=0.0,
        tails=None,
        norm=1.0,
        predicted_error=ByMetric(mean=predicted, cov=predicted, map=predicted),
        keys=n,
        predicted=PredictedExponents(
            khat=0.5,
            sharp=ByMetric(mean=0.5, cov=0.5, map=0.5),
            paper_reference=0.4,
            paper_bound=0.1,
        ),
        tokens_for=ByTolerance(percent_5=4000.0, percent_10=1000.0, percent_20=250.0),
        tokens_for_interval=ByTolerance(
            percent_5=(3000.0, 5000.0), percent_10=(900.0, 1100.0), percent_20=(200.0, 300.0)
        ),
        at_context=AtContext(n=64, error=0.1, interval=(0.09, 0.11), extrapolated=False),
        fit=ByMetric(mean=fit, cov=fit, map=fit),
        curve=Curves(norm=1.0, mean=curve, cov=curve, map=curve),
        reference=ReferenceQuality(queries=None, coarse_keys=None, standard_error=none, share=none),
        flags=(),
    )
    return structs.replace(made, **changes)


def made_probe(heads: list[ProbeHead]) -> Probe:
    """A probe of a model called tiny with these heads."""
    model = ModelRecord(
        name="tiny",
        family="BERT",
        architecture="bert",
        layers=1,
        heads=max(1, len(heads)),
        key_heads=max(1, len(heads)),
        head_dim=8,
        hidden=32,
        causal=False,
        max_positions=64,
        dtype="float32",
        note="",
        weight_hash="",
        weight_sample="",
    )
    study = ProbeStudy(
        model,
        TextRecord(source="text", hash=""),
        mode="pooled",
        tokens=300,
        context=62,
        layers=(0,),
        heads=tuple(range(len(heads))),
        sizes=SIZES,
        replicates=4,
    )
    return Probe(
        study=study,
        complete=True,
        cells=1,
        versions={},
        created="",
        headline="",
        sizes=SIZES,
        heads=tuple(heads),
        layers=(),
    )
