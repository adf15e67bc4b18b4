"""Lists of kept tokens in flat arrays, small and large."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch

from esscher.engine.cache.selection import Kept
from esscher.engine.cache.storage import SMALLEST, bytes_of, chosen_lists, one_list, packed


def random_lists(lengths, width=8, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    out = []
    for length in lengths:
        keys, values = (torch.randn(3 * length + 1, width, generator=generator) for _ in range(2))
        index = torch.randperm(3 * length + 1, generator=generator)[:length].sort().values
        weight = torch.rand(length, generator=generator)
        out.append((keys.to(dtype), values.to(dtype), Kept(index, weight)))
    return out


# the second: arrays with memory of their own
@pytest.mark.parametrize("lengths", [(3, 0, 5), (0, 2000, 1500)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lists_are_what_was_chosen(lengths, dtype):
    lists = random_lists(lengths, dtype=dtype)
    found = packed(lists)
    assert (found.keys.nbytes >= SMALLEST) == (max(lengths) == 2000 and dtype == torch.float32)
    for copied in (found, copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        for number, (keys, values, kept) in enumerate(lists):
            own = one_list(copied, number)
            expected = (keys[kept.index], values[kept.index], kept.log_weight)
            assert all(map(torch.equal, own, expected))
    total = sum(lengths)
    assert bytes_of(found) == total * (2 * 8 * found.keys.itemsize + 4) + 2 * 8 * len(lengths)
    # it can be written to: attention does not, and nobody else should be surprised
    found.keys[:1] = 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lists_with_other_values(dtype):
    first, (keys, values, kept) = random_lists((3, 5), dtype=dtype)
    other = torch.randn(5, 8)
    found = packed([first, (keys, values, replace(kept, values=other))])
    assert torch.equal(one_list(found, 1)[1], other.to(dtype))
    assert torch.equal(one_list(found, 0)[1], first[1][first[2].index])


def test_the_same_text_several_times_is_not_copied():
    found = packed(random_lists((3, 4, 5, 6)))
    chosen = chosen_lists(found, torch.tensor([1, 1, 0]), 2)
    assert chosen.keys is found.keys
    lengths = (chosen.stop - chosen.start).tolist()
    assert lengths == [5, 6, 5, 6, 3, 4]
