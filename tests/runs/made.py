"""A small run of every kind, made once per process; models have hostile names.

Tests take their results, or copies of their directories. And probes of any size: the heads of the
small one, varied.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from msgspec import structs

import esscher
from esscher.core.streams import random_stream
from esscher.engine.models.loaded import wrap_model
from esscher.runs.result import Result
from esscher.runs.study import Setup
from esscher.studies.paper import claims
from esscher.studies.paper.synthetic import LAWS
from esscher.studies.probe.study import ProbeSettings, ProbeStudy
from tests.engine.models.folders import WORDS, decoder_tokenizer, encoder_tokenizer
from tests.engine.models.tiny import tiny_model

#: What a formula, a tag, or a broken file could be made of.
HOSTILE = "a $x_{$ <b> & \\frac \x07 $y$"
SIZES = (16, 32, 64)


def wrapped(name: str, called: str = HOSTILE, **options: Any) -> Any:
    """A tiny model with its tokenizer."""
    model = tiny_model(name, **options)
    tokenizer = decoder_tokenizer() if model.family.decoder else encoder_tokenizer()
    return wrap_model(model.model, tokenizer, name=called)


def random_text(seed: int = 0, count: int = 2500) -> list[str]:
    """Random words that the tiny models know."""
    return [" ".join(np.random.default_rng([seed, 11]).choice(WORDS, size=count))]


@cache
def make(name: str) -> tuple[str, Any]:
    """Kind and result object."""
    return name.split("-")[0], _MAKERS[name](out=_PLACE / name)


#: Where the runs are made.
_PLACE = Path(tempfile.mkdtemp(prefix="esscher-small-"))
atexit.register(shutil.rmtree, _PLACE, ignore_errors=True)


def unpack(name: str, folder: Path) -> Path:
    """Return a copy of the directory of a run, in a folder."""
    make(name)
    unwanted = shutil.ignore_patterns("lock", "run.log")
    return Path(shutil.copytree(_PLACE / name, folder / name, ignore=unwanted))


def _probe(out: Path, **options: Any) -> Any:
    text, small = random_text(), {"tokens": 300, "context": 62, "sizes": SIZES}
    return esscher.probe(wrapped("bert"), text, **small, **options, out=out)


def _paper(out: Path) -> Any:
    """A claim of the ledger, in units of few replicates."""
    whole = claims.MEASUREMENTS["limit"]
    unit = {"law": list(LAWS), "sizes": [50, 200], "replicates": 8}
    claims.MEASUREMENTS["limit"] = replace(whole, scales={"quick": unit})
    try:
        return esscher.paper(("limit",), out=out)
    finally:
        claims.MEASUREMENTS["limit"] = whole


#: How each run is made, by name.
_MAKERS: dict[str, Callable[..., Any]] = {
    "probe": partial(_probe, layers=[0, 2], heads=[0, 1, 2], replicates=4),
    "probe-one": partial(_probe, layers=[1], heads=[2], replicates=3),
    "sweep": lambda out: esscher.sweep(
        esscher.gaussian_head(1.0, 2), SIZES, 8, alpha=(0.5, 1.0, 2.0), out=out
    ),
    "sweep-one": lambda out: esscher.sweep(
        esscher.gaussian_head(0.6, 2), SIZES, 8, predict=True, out=out
    ),
    "sweep-laplace": lambda out: esscher.sweep(
        esscher.law_head(esscher.laws.standard_law("laplace", 2), horizon=0.5),
        SIZES,
        6,
        reference_tokens=500,
        out=out,
    ),
    "sparse": lambda out: esscher.sparse(
        wrapped("bert"),
        random_text(),
        context=62,
        passages=2,
        draws=2,
        layers=[0],
        budgets=[8, 16, 32],
        patterns="window,topk",
        out=out,
    ),
    "sparse-law": lambda out: esscher.sparse_law(
        "gaussian",
        horizon=0.5,
        dim=2,
        tokens=256,
        replicates=8,
        query_count=16,
        budgets=[16, 32, 64],
        patterns="window,topk,linformer",
        out=out,
    ),
    "deep": lambda out: esscher.deep(
        wrapped("llama"), random_text(), context=48, passages=2, draws=2, sizes=[4, 10, 28], out=out
    ),
    "deep-stack": lambda out: esscher.deep_stack(
        depth=3, dim=2, horizon=0.4, sizes=[32, 64, 128], replicates=8, out=out
    ),
    "tails": lambda out: esscher.tails(
        wrapped("bert"),
        random_text(),
        tokens=1000,
        context=48,
        layers=[0, 1],
        heads=[0, 3],
        out=out,
    ),
    "domains": lambda out: esscher.domains(
        wrapped("bert"),
        {"one": random_text(1), "$2_{$ & <b>": random_text(2), "$3$": random_text(3)},
        blocks=4,
        block_tokens=120,
        context=62,
        layers=[0, 2],
        heads=[0, 3],
        out=out,
    ),
    "plan": lambda out: esscher.plan(
        wrapped("llama"),
        random_text(1),
        check=random_text(2),
        budget=0.5,
        prefix=40,
        query_count=8,
        passages=2,
        check_passages=3,
        against="streaming",
        out=out,
    ),
    "context": lambda out: esscher.context(
        wrapped("llama", max_position_embeddings=512),
        random_text(),
        context=128,
        passages=2,
        out=out,
    ),
    "paper": _paper,
    "theory": lambda out: esscher.predict(
        esscher.gaussian_head(0.8, 1), [100, 1000], queries="population"
    ),
}
RUNS = tuple(_MAKERS)


def changed(result: Any, change: Callable[[Any], Any]) -> Any:
    """A result with another dataset: what ``change`` makes of a copy."""
    return replace(result, data=change(result.data.copy(deep=True)))


def wide_probe(layers: int = 30, heads: int = 9, name: str = "wide") -> Result[ProbeSettings]:
    """Results of a probe with this many layers and heads, every head another one."""
    small = make("probe")[1]
    rng, shape = random_stream(0, "wide probe"), (layers, heads)
    places = {"layer": range(layers), "head": range(heads), "other": range(heads)}
    data = small.data.isel(
        {axis: np.arange(len(names)) % small.data.sizes[axis] for axis, names in places.items()}
    ).assign_coords({axis: list(names) for axis, names in places.items()})
    factor = xr.DataArray(rng.lognormal(0.0, 0.5, shape), dims=("layer", "head"))
    axes = ("layer", "head", "metric")
    noise = xr.DataArray(rng.normal(0.0, 0.02, (*shape, data.sizes["metric"])), dims=axes)
    data["horizon"] = data["horizon"] * factor
    data["tokens"] = data["tokens"] * factor
    data["exponent"] = data["exponent"] + noise
    settings = structs.replace(
        small.setup.settings, layers=tuple(range(layers)), heads=tuple(range(heads))
    )
    model = structs.replace(small.setup.model, layers=layers, heads=heads, name=name)
    setup = Setup(settings, small.setup.records | {"model": model})
    attributes = {
        "cells": json.dumps(ProbeStudy.cells(setup)),
        "configuration": json.dumps(setup.configuration()),
    }
    return Result(ProbeStudy, setup, data.assign_attrs(attributes))
