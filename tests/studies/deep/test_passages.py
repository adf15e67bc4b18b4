"""Draws of one passage are not independent: intervals are over passages, and cover."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from esscher.core.streams import random_stream
from esscher.math.statistics import resample
from esscher.studies.deep.assemble import grows, growth_factors, independent_errors, model_headline
from esscher.studies.deep.result import Damage, DeepEnd, Growth

PASSAGES, DRAWS, LAYERS = 8, 4, 3
#: Spread of a passage and of a draw, in every layer: two thirds of the variance are the passage's.
OF_PASSAGE, OF_DRAW = 0.2, 0.14


def errors_of(seed: int) -> np.ndarray:
    """Errors [passage and draw, layer] that double from layer to layer, whose noise is shared."""
    rng = random_stream(seed, "passages")
    passage = OF_PASSAGE * rng.standard_normal((PASSAGES, 1, LAYERS))
    draw = OF_DRAW * rng.standard_normal((PASSAGES, DRAWS, LAYERS))
    return (2.0 ** np.arange(LAYERS) * np.exp(passage + draw)).reshape(-1, LAYERS)


def z_scores(studies: int, draws_are_replicates: bool) -> np.ndarray:
    """Deviation of the overall growth from 2, in its standard errors."""
    form = np.array([[-0.5, 0.0, 0.5]])
    scores = []
    for seed in range(studies):
        values = errors_of(seed)
        used = values if draws_are_replicates else independent_errors(values, DRAWS)
        found = resample(used, np.arange(1.0, LAYERS + 1), "mean", seed)
        deviation = (form @ found.log_errors)[0] - np.log(2.0)
        scores.append(deviation / found.standard_errors(form)[0])
    return np.array(scores)


def test_standard_errors_over_passages_are_right() -> None:
    scores = z_scores(200, draws_are_replicates=False)
    # Student with 7 degrees of freedom: variance 7/5; 200 studies know it to 15%
    assert np.sqrt(np.mean(scores**2)) == pytest.approx(np.sqrt(7 / 5), rel=0.2)
    wrong = z_scores(200, draws_are_replicates=True)
    # the variance of a mean is that of 8 passages, not of 32 draws
    expected = np.sqrt((OF_PASSAGE**2 + OF_DRAW**2 / 4) / 8 / ((OF_PASSAGE**2 + OF_DRAW**2) / 32))
    assert np.sqrt(np.mean(wrong**2)) == pytest.approx(expected, rel=0.2)


def test_intervals_over_passages_cover() -> None:
    inside = 0
    for seed in range(100):
        found = growth_factors(independent_errors(errors_of(seed), DRAWS), seed).overall
        inside += found.interval[0] <= 2.0 <= found.interval[1]
    # 95 are expected; fewer than 88 have probability 0.001
    assert inside >= stats.binom.ppf(0.001, 100, 0.95)


def test_one_passage_leaves_its_draws() -> None:
    values = errors_of(0)[:DRAWS]
    assert np.array_equal(independent_errors(values, DRAWS), values)
    both = independent_errors(errors_of(0)[: 2 * DRAWS], DRAWS)
    assert both.shape == (2, LAYERS)


def test_what_cannot_be_told_is_said() -> None:
    assert "is undecided" in grows(Growth(factor=1.1, interval=(0.9, 1.3)))
    assert "shrinks" in grows(Growth(factor=0.8, interval=(0.7, 0.9)))
    cosine = {"shared": Damage(mean=(0.9,), interval=(None,), standard_error=(None,), fit=None)}
    said = model_headline([8], "shared", [40], [None], [], DeepEnd(cosine=cosine), None)
    assert said.endswith("not other texts.")
