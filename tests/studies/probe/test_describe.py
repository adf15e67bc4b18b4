"""What is said about a head: tails of its keys, and the norm in the published bound."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.engine.models import head_weights
from esscher.engine.sampled.layer import HeadNumbers
from esscher.engine.text import iterate_passages, read_passages
from esscher.math.tails.verdict import HEAVY, judge
from esscher.studies.probe.describe import MOST, key_tails, one_sided_psi
from tests.engine.models.folders import tiny, words


def numbers_of(keys, passages=None):
    none = np.zeros((0, keys.shape[1]))
    return HeadNumbers(
        tilts=none, keys=keys, values=none, outputs=none, logits=lambda rows: none, own=None,
        participation=np.zeros(0), received=np.zeros(0), norm=1.0, passages=passages,
    )  # fmt: skip


def judged(numbers):
    return judge(numbers).verdict


def test_tails_of_keys():
    rng = np.random.default_rng(4)
    gaussian = key_tails(numbers_of(rng.standard_normal((4000, 5))), 0)
    assert judged(gaussian) not in HEAVY
    keys = rng.standard_normal((MOST + 500, 5))
    keys[:, 2] = rng.standard_t(3, size=len(keys))
    heavy = key_tails(numbers_of(keys @ rng.standard_normal((5, 5))), 0)
    assert heavy.tokens == MOST
    assert judged(heavy) in HEAVY
    # one passage cannot be split: no verdict, no flag
    assert key_tails(numbers_of(keys, np.zeros(len(keys), dtype=int)), 0) is None
    assert key_tails(numbers_of(keys[:50]), 0) is None


def test_one_sided_psi():
    loaded = tiny("bert")
    (passage,) = read_passages(loaded, [words(60)], tokens=30, context=40, keep_short=True)
    for _, capture in iterate_passages(loaded, [passage], layers=[0]):
        hidden = capture.hidden[0].double().numpy()
        weights = head_weights(loaded, 0)
        psi = one_sided_psi(weights, hidden)
        covariance = np.cov(hidden.T, bias=True)
        values, vectors = np.linalg.eigh(covariance)
        root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
        for h in range(4):
            exact = values[-1] * np.linalg.norm(root @ weights.A(h), 2) ** 2
            assert psi[h] == pytest.approx(exact, rel=1e-6)
