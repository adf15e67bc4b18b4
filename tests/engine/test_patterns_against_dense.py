"""Every pattern against a dense masked computation, and what is exact at full budget."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.core.streams import random_stream
from esscher.engine.patterns import PATTERNS, Selection, View
from tests.engine.seen import seen_keys

KEYS, HEADS, DIM = 90, 3, 5
SELECTING = [name for name in PATTERNS if name not in ("pooled", "linformer")]
VIEWS = {
    "encoder": lambda: View.of(np.arange(20, 70, 3), KEYS),
    "decoder": lambda: View.of(np.arange(10, KEYS, 5), KEYS, causal=True),
    "decoder window": lambda: View.of(np.arange(30, KEYS, 4), KEYS, causal=True, window=50),
    "encoder window": lambda: View.of(np.arange(20, 70, 3), KEYS, window=35),
    "cache": lambda: View.of(np.arange(KEYS, KEYS + 8), KEYS, causal=True),
}


def head_arrays(view: View, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    rng = random_stream(seed, "test")
    logits = torch.from_numpy(2 * rng.standard_normal((HEADS, len(view.queries), KEYS)))
    logits = logits.masked_fill(~torch.from_numpy(view.visible()), -torch.inf)
    return logits, torch.from_numpy(rng.standard_normal((HEADS, KEYS, DIM)))


def dense_masked(sight: Selection, logits: torch.Tensor, values: torch.Tensor) -> np.ndarray:
    """Softmax over an explicit [queries, keys] table of log-weights, head by head, in numpy."""
    heads, queries, keys = logits.shape
    output = np.empty((heads, queries, values.shape[-1]))
    for h in range(heads):
        for i in range(queries):
            added = np.full(keys, -np.inf)
            if sight.complete is not None and sight.complete[i]:
                added[:] = 0.0
            else:
                chosen = sight.keys.expand(heads, queries, -1)[h, i].numpy()
                weights = np.zeros(len(chosen))
                if sight.log_weights is not None:
                    weights = sight.log_weights[i].numpy()
                for key, weight in zip(chosen, weights, strict=True):
                    if np.isfinite(weight):
                        added[key] = weight
            total = logits[h, i].numpy() + added
            p = np.exp(total - total.max())
            output[h, i] = p @ values[h].numpy() / p.sum()
    return output


@pytest.mark.parametrize("view_name", VIEWS)
@pytest.mark.parametrize("name", SELECTING)
@pytest.mark.parametrize("budget", [9, 30, -1])
def test_outputs_are_those_of_a_dense_mask(name: str, view_name: str, budget: int) -> None:
    """Also with the largest budget that leaves something out of what every query sees."""
    view = VIEWS[view_name]()
    logits, values = head_arrays(view)
    if budget < 0:
        budget = max(int(view.counts.min()) - 1, PATTERNS[name].smallest)
    sight = PATTERNS[name].select(view, budget, random_stream(0, "choice"), logits)
    assert isinstance(sight, Selection)
    outputs = sight.attend(logits, values).numpy()
    np.testing.assert_allclose(outputs, dense_masked(sight, logits, values), rtol=1e-12, atol=1e-12)
    weights = sight.weights(logits)
    np.testing.assert_allclose(weights.sum(-1).numpy(), 1.0, rtol=1e-12)
    assert torch.all(weights[~torch.isfinite(logits)] == 0)


@pytest.mark.parametrize("view_name", VIEWS)
@pytest.mark.parametrize("name", [*SELECTING, "pooled"])
def test_all_keys_seen_is_dense_attention_exactly(name: str, view_name: str) -> None:
    view = VIEWS[view_name]()
    logits, values = head_arrays(view)
    sight = PATTERNS[name].select(view, KEYS, random_stream(0, "choice"), logits)
    dense = torch.softmax(logits, dim=-1) @ values
    if name == "pooled":  # sums of one number in another order
        torch.testing.assert_close(sight.attend(logits, values), dense, rtol=1e-13, atol=1e-13)
    else:
        assert torch.equal(sight.attend(logits, values), dense)


@pytest.mark.parametrize("view_name", VIEWS)
@pytest.mark.parametrize("name", [n for n in SELECTING if n != "topk"])
def test_budgets_are_kept(name: str, view_name: str) -> None:
    view = VIEWS[view_name]()
    budget = 9
    sight = PATTERNS[name].select(view, budget, random_stream(0, "choice"))
    for i in range(len(view.queries)):
        keys = seen_keys(sight, i)
        if sight.complete is not None and sight.complete[i]:
            continue
        assert len(set(keys.tolist())) == len(keys) <= budget
        assert keys.min() >= view.first[i]
        assert keys.max() < view.stop[i]
        if not (name == "block" and view.causal):
            assert len(keys) == budget


@pytest.mark.parametrize("name", [n for n in PATTERNS if n != "topk"])
def test_a_choice_does_not_depend_on_the_other_queries(name: str) -> None:
    view = View.of(np.arange(30, KEYS), KEYS, causal=True)
    logits, values = head_arrays(view)
    some = np.arange(5, 60, 7)
    rows = torch.from_numpy(some)
    whole = PATTERNS[name].select(view, 12, random_stream(3, "choice"), logits)
    part = PATTERNS[name].select(view.take(some), 12, random_stream(3, "choice"), logits[:, rows])
    torch.testing.assert_close(
        part.attend(logits[:, rows], values),
        whole.attend(logits, values)[:, rows],
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize("budget", [7, KEYS])
def test_linformer_is_softmax_over_mixed_keys(budget: int) -> None:
    """Also with as many mixtures as keys, which is not dense attention."""
    rng = random_stream(2, "test")
    q, k = rng.standard_normal((6, 4)), rng.standard_normal((KEYS, 4))
    v = rng.standard_normal((KEYS, DIM))
    sight = PATTERNS["linformer"].select(
        View.of(np.arange(30, 36), KEYS), budget, random_stream(0, "choice")
    )
    entries = random_stream(0, "choice").standard_normal((budget, KEYS), dtype=np.float32)
    p = np.float64(entries * np.float32(budget**-0.5))
    expected = softmax(q @ (p @ k).T) @ (p @ v)
    outputs = sight.attend(torch.from_numpy(q @ k.T)[None], torch.from_numpy(v)[None])[0].numpy()
    np.testing.assert_allclose(outputs, expected, rtol=1e-9, atol=1e-12)
    dense = softmax(q @ k.T) @ v
    assert np.linalg.norm(outputs - dense) > 0.5 * np.linalg.norm(dense)


def test_pooled_is_attention_over_averages() -> None:
    rng = random_stream(4, "test")
    q, k = rng.standard_normal((6, 4)), rng.standard_normal((KEYS, 4))
    v = rng.standard_normal((KEYS, DIM))
    sight = PATTERNS["pooled"].select(
        View.of(np.arange(30, 36), KEYS), 9, random_stream(0, "choice")
    )
    groups = random_stream(0, "choice").permutation(KEYS).reshape(-1, 9).T  # every ninth
    means = [np.stack([x[group].mean(axis=0) for group in groups]) for x in (k, v)]
    expected = softmax(q @ means[0].T) @ means[1]
    outputs = sight.attend(torch.from_numpy(q @ k.T)[None], torch.from_numpy(v)[None])[0]
    np.testing.assert_allclose(outputs.numpy(), expected, rtol=1e-10)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
