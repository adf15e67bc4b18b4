"""Arrays and options that do not belong together are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.attention import attention_statistics


def tensors():
    g = torch.Generator().manual_seed(0)
    return {name: torch.randn(2, 20, d, generator=g) for name, d in (("q", 4), ("k", 4), ("v", 3))}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": (5, 3)}, "strictly increasing"),
        ({"sizes": (21,)}, "only 20 keys"),
        ({"scales": ()}, "scales is empty"),
        ({"scales": (1.0, -1.0)}, r"scales\[1\]"),
        ({"factor": 0.0}, "factor"),
        ({"queries": "others"}, "'tokens' or 'separate'"),
        ({"dtype": torch.float16}, "float16"),
        ({"limit": torch.zeros(3, 2, 20, 3)}, "limit has shape"),
        ({"q": torch.zeros(2, 20, 5)}, "same last axis"),
        ({"q": torch.zeros(2, 19, 4)}, "queries='separate'"),
        ({"q": torch.zeros(3, 20, 4)}, "multiple"),
        ({"q": torch.zeros(20, 4)}, "same number of axes"),
        ({"v": torch.zeros(2, 19, 3)}, "k and v"),
        ({"v": torch.zeros(2, 20, 0)}, "empty"),
        ({"v": np.zeros((2, 20, 3))}, "v is not an array of the library"),
    ],
)
def test_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        attention_statistics(**{**tensors(), "sizes": (5, 20), **change})


@pytest.mark.parametrize("name", ["q", "k", "v", "limit"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_entries_that_are_not_finite_are_refused(name, bad):
    x = tensors() | {"limit": torch.zeros(2, 20, 3)}
    x[name][1, 7, 2] = bad
    with pytest.raises(InputError, match=f"{name} is not finite"):
        attention_statistics(**x, sizes=(20,))


def test_finite_entries_whose_sum_overflows_are_accepted():
    x = tensors()
    x["v"][:, :2] = 3e38
    result = attention_statistics(**x, sizes=(20,), dtype=torch.float64)
    assert np.isfinite(result.mean).all()


def test_numbers_beyond_the_range_of_the_arithmetic_are_refused():
    x = tensors()
    with pytest.raises(InputError, match=r"v has entries .* dtype='float64'"):
        attention_statistics(**{**x, "v": 1e30 * x["v"]}, sizes=(20,))
    large = {**x, "q": 1e30 * x["q"], "k": 1e10 * x["k"]}
    with pytest.raises(InputError, match=r"logits .* dtype='float64'"):
        attention_statistics(**large, sizes=(20,))
    wide = attention_statistics(**large, sizes=(20,), dtype=torch.float64)
    best = (large["q"].double() @ large["k"].double().mT).argmax(2)
    one_key = torch.stack([v[i] for v, i in zip(x["v"].double(), best, strict=True)])
    np.testing.assert_allclose(wide.mean[:, 0, 0], one_key.mean(1), rtol=1e-6)


def test_masks_that_leave_no_query_are_refused():
    late = torch.arange(20) >= 5
    with pytest.raises(InputError, match="no query among the first 5"):
        attention_statistics(**tensors(), sizes=(5, 20), query_mask=late)
    counts = attention_statistics(**tensors(), sizes=(6, 20), query_mask=late).query_counts
    assert counts.tolist() == [[1, 15], [1, 15]]
