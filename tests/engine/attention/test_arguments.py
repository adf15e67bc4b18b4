"""Everything a caller can get wrong is named."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.attention import attention_statistics


def tensors(heads=(2,), key_heads=None, n=20, m=None, d=4):
    g = torch.Generator().manual_seed(0)
    shape = heads if key_heads is None else key_heads
    return {
        "q": torch.randn(*heads, m or n, d, generator=g),
        "k": torch.randn(*shape, n, d, generator=g),
        "v": torch.randn(*shape, n, 3, generator=g),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": ()}, "non-empty"),
        ({"sizes": (5, 3)}, "strictly increasing"),
        ({"sizes": (3, 3)}, "strictly increasing"),
        ({"sizes": (0, 3)}, "at least 1"),
        ({"sizes": (2.5,)}, "whole numbers"),
        ({"sizes": (21,)}, "only 20 keys"),
        ({"scales": ()}, "scales is empty"),
        ({"scales": (1.0, -1.0)}, r"scales\[1\]"),
        ({"scales": (float("nan"),)}, r"scales\[0\]"),
        ({"factor": 0.0}, "factor"),
        ({"queries": "others"}, "'tokens' or 'separate'"),
        ({"queries": "separate", "causal": True}, "query_mask"),
        ({"received_sizes": (7,)}, "not one of sizes"),
        ({"weights": ("entropy",)}, "entropy"),
        ({"dtype": torch.float16}, "float16"),
        ({"block": (0, 5)}, "at least 1"),
        ({"block": 7}, r"\(queries, keys\)"),
        ({"limit": torch.zeros(2, 20, 4)}, "limit has shape"),
        ({"limit": torch.zeros(3, 2, 20, 3)}, "limit has shape"),
        ({"key_mask": torch.ones(19, dtype=torch.bool)}, "broadcast"),
        ({"key_mask": torch.ones(20)}, "bool"),
        ({"q": torch.zeros(2, 20, 5)}, "same last axis"),
        ({"q": torch.zeros(2, 19, 4)}, "queries='separate'"),
        ({"q": torch.zeros(3, 20, 4)}, "multiple"),
        ({"q": torch.zeros(20, 4)}, "same number of axes"),
        ({"v": torch.zeros(2, 19, 3)}, "k and v"),
        ({"v": torch.zeros(2, 20, 0)}, "empty"),
        ({"v": np.zeros((2, 20, 3))}, "v is ndarray"),
        ({"k": torch.zeros(2, 20, 4, dtype=torch.int64)}, "k is torch.int64"),
    ],
)
def test_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        attention_statistics(**{**tensors(), "sizes": (5, 20), **change})


@pytest.mark.parametrize("name", ["q", "k", "v", "limit"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_entries_that_are_not_finite_are_named(name, bad):
    x = tensors()
    x["limit"] = torch.zeros(2, 20, 3)
    x[name][1, 7, 2] = bad
    place = r"\(0, 7, 2\)" if name == "limit" else r"\(7, 2\)"
    with pytest.raises(InputError, match=rf"{name} is not finite: entry {place} of head \(1,\)"):
        attention_statistics(**x, sizes=(20,))


def test_finite_entries_whose_sum_overflows_are_accepted():
    x = tensors()
    x["v"][:, :2] = 3e38
    result = attention_statistics(**x, sizes=(20,), dtype=torch.float64)
    assert np.isfinite(result.mean).all()


def test_numbers_beyond_the_range_of_the_arithmetic_are_refused():
    x = tensors()
    with pytest.raises(InputError, match=r"v of head .* dtype=torch.float64"):
        attention_statistics(**{**x, "v": 1e30 * x["v"]}, sizes=(20,))
    with pytest.raises(InputError, match=r"logits .* dtype=torch.float64"):
        attention_statistics(**{**x, "q": 1e30 * x["q"], "k": 1e10 * x["k"]}, sizes=(20,))
    wide = attention_statistics(
        **{**x, "q": 1e30 * x["q"], "k": 1e10 * x["k"], "v": 1e30 * x["v"]},
        sizes=(20,),
        dtype=torch.float64,
        weights=("largest",),
    )
    assert (wide.largest.mean == 1).all()


def test_queries_with_nothing_to_attend_are_refused():
    x = tensors()
    late = torch.ones(20, dtype=torch.bool)
    late[:5] = False
    with pytest.raises(InputError, match="no key among the first 5"):
        attention_statistics(**x, sizes=(5, 20), key_mask=late)
    with pytest.raises(InputError, match=r"query 0 of head .* may attend nothing"):
        attention_statistics(**x, sizes=(6, 20), key_mask=late, causal=True)
    with pytest.raises(InputError, match="no query among the first 5"):
        attention_statistics(**x, sizes=(5, 20), query_mask=late)
    with pytest.raises(InputError, match="leaves no query"):
        attention_statistics(**x, sizes=(20,), queries="separate", query_mask=late & ~late)
    good = attention_statistics(**x, sizes=(6, 20), key_mask=late, query_mask=late, causal=True)
    assert good.query_counts.tolist() == [[1, 15], [1, 15]]


def test_map_rms_needs_a_limit():
    x = tensors()
    with pytest.raises(InputError, match="limit="):
        _ = attention_statistics(**x, sizes=(20,)).map_rms
    got = attention_statistics(**x, sizes=(20,), limit=torch.zeros(2, 20, 3)).map_rms
    assert got.shape == (2, 1, 1)
