"""Keys and values in a few bits: what comes back, and in how many bytes."""

from __future__ import annotations

import pytest
import torch

from esscher.engine.attention.bits import BLOCK, coded_bytes
from esscher.engine.attention.coded import Codes, decode, encode, rounded_keys


@pytest.mark.parametrize("bits", [(8, 8), (8, 4), (4, 8), (4, 4)])
@pytest.mark.parametrize(("tokens", "d_k", "d_v"), [(0, 4, 4), (5, 7, 9), (32, 8, 16), (99, 64, 3)])
def test_what_comes_back_is_a_step_away_at_most(tokens, d_k, d_v, bits):
    g = torch.Generator().manual_seed(tokens)
    keys = 5 * torch.randn(1, d_k, generator=g) + torch.randn(tokens, d_k, generator=g)
    values, weight = torch.randn(tokens, d_v, generator=g), torch.rand(tokens, generator=g)
    data = encode(keys, values, weight, bits)
    assert len(data) == coded_bytes(tokens, d_k, d_v, bits)
    k, v, w = decode(data, tokens, d_k, d_v, bits)
    torch.testing.assert_close(w, weight, rtol=2**-11, atol=1e-6)
    assert torch.equal(rounded_keys(keys, bits[0]), k)
    for block in range(0, tokens, BLOCK):
        at = slice(block, block + BLOCK)
        # half a step, and the rounding of least entry and scale to 16 bits
        for x, y, b, dim in ((keys[at], k[at], bits[0], 0), (values[at], v[at], bits[1], 1)):
            low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
            most = 0.5 * (high - low) / (2**b - 1) + 2**-10 * (low.abs() + high - low) + 1e-6
            assert bool(((x - y).abs() <= most).all())


def test_constant_channels_and_large_numbers():
    keys = torch.full((40, 3), 7.0)
    keys[:, 1], keys[3, 2] = 0.0, 1e6
    k, v, _ = decode(encode(keys, keys, torch.zeros(40), (4, 4)), 40, 3, 3, (4, 4))
    assert torch.equal(k[:, :2], keys[:, :2])
    assert bool(torch.isfinite(k).all())
    assert bool(torch.isfinite(v).all())


def test_copies_of_lists_have_memory_of_their_own():
    g = torch.Generator().manual_seed(0)
    parts = [encode(*torch.randn(2, n, 6, generator=g), torch.zeros(n), (8, 4)) for n in (40, 3)]
    sizes = torch.tensor([[0, 40, 8, 4, 0], [len(parts[0]), 3, 8, 4, 40]])
    codes = Codes(torch.cat(parts), sizes[[1, 0, 1]])
    copied = codes.copied(6, 6)
    assert copied.table[:, 0].tolist() == [0, len(parts[1]), len(parts[1]) + len(parts[0])]
    assert copied.table[:, 4].tolist() == [0, 3, 43]
    for number in range(3):
        expected = codes.decoded(number, 6, 6)
        assert all(map(torch.equal, copied.decoded(number, 6, 6), expected))
