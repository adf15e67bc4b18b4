"""Time of attention over lists of kept keys, as ratios inside one run.

A decoded token of SmolLM2 (9 heads, 3 key heads, 64 wide), of whose tokens a quarter is kept in
lists of uneven lengths, before a tail of 64. As in a model, calls go over the arrays of one layer
after the other. Beside it are timed (a) the sum of an array of as many bytes, which is how fast
memory is read, and (b) dense attention over all tokens, by PyTorch, in the faster of its two forms.
Medians of rounds in which all take turns, because the machine may be shared.

    python -m benchmarks.ragged                     # the table
    python -m benchmarks.ragged --dtype bfloat16
    python -m benchmarks.ragged --queries 8         # several queries at a time
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from esscher.engine.attention.compiled.kernel import kernel_name
from esscher.engine.attention.ragged import Segments, ragged_attention

KEY_HEADS, GROUP, WIDTH, TAIL, KEPT = 3, 3, 64, 64, 0.25
#: Layers whose arrays a round goes over, and the bytes they may have.
LAYERS, BYTES = 30, 1e9


def uneven(lists: int, total: int, rng: np.random.Generator) -> list[int]:
    """Lengths of lists, from about a tenth of the mean to several times it."""
    shares = rng.dirichlet(np.ones(lists))
    return [int(x) for x in np.round(total * (0.1 / lists + 0.9 * shares))]


class Layer:
    """Kept and dense arrays of one layer."""

    def __init__(
        self, tokens: int, batch: int, queries: int, dtype: torch.dtype, rng: np.random.Generator
    ) -> None:
        lists = batch * KEY_HEADS
        lengths = uneven(lists, round(KEPT * tokens * lists), rng)
        stop = torch.tensor(lengths).cumsum(0)
        total = int(stop[-1])
        self.segments = Segments(
            torch.randn(total, WIDTH, dtype=dtype),
            torch.randn(total, WIDTH, dtype=dtype),
            torch.rand(total),
            stop - torch.tensor(lengths),
            stop,
        )
        room = torch.randn(2, batch, KEY_HEADS, 2 * TAIL, WIDTH, dtype=dtype)
        self.tail = room[..., :TAIL, :]
        self.q = torch.randn(batch, queries, KEY_HEADS * GROUP, WIDTH, dtype=dtype).transpose(1, 2)
        self.dense = torch.randn(2, batch, KEY_HEADS, tokens + TAIL, WIDTH, dtype=dtype)
        self.flat = torch.randn((total + lists * TAIL) * WIDTH * self.dense.itemsize // 2)

    def ragged(self) -> Tensor:
        """Attention over the lists and the tail."""
        return ragged_attention(self.q, self.segments, *self.tail, scaling=WIDTH**-0.5)

    def grouped(self) -> Tensor:
        """Dense attention, PyTorch taking care of heads that share keys."""
        return scaled_dot_product_attention(self.q, *self.dense, enable_gqa=True)

    def repeated(self) -> Tensor:
        """Dense attention, keys repeated for the heads that share them."""
        keys, values = (x.repeat_interleave(GROUP, 1) for x in self.dense)
        return scaled_dot_product_attention(self.q, keys, values)

    def total(self) -> Tensor:
        """As many bytes as the lists and the tail have, read once."""
        return self.flat.sum()


def timed(calls: Sequence[Callable[[], object]]) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - start) / len(calls)


def run(tokens: int, batch: int, queries: int, dtype: torch.dtype, repeats: int) -> None:
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    dense = 2 * batch * KEY_HEADS * tokens * WIDTH * dtype.itemsize
    layers = [
        Layer(tokens, batch, queries, dtype, rng)
        for _ in range(max(2, min(LAYERS, int(BYTES / dense))))
    ]
    work = {
        name: [getattr(layer, name) for layer in layers]
        for name in ("ragged", "total", "grouped", "repeated")
    }
    seconds = {name: [] for name in work}
    for _ in range(repeats + 1):
        for name, calls in work.items():
            seconds[name].append(timed(calls))
    mine, memory, *dense_forms = (float(np.median(x[1:])) for x in seconds.values())
    size = float(np.mean([layer.flat.nbytes for layer in layers]))
    print(
        f"{tokens:6,} {batch:5} {size / 2**20:7.2f} {1e6 * mine:8.1f} {size / mine / 1e9:7.1f} "
        f"{mine / memory:8.2f} {mine / min(dense_forms):8.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--queries", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    print(f"{kernel_name()}, {torch.get_num_threads()} threads, {options.dtype}")
    print("tokens batch  MB read  us/call    GB/s  / memory / dense")
    with torch.inference_mode():
        for batch in (1, 4):
            for tokens in (1024, 2048, 4096, 8192):
                dtype = getattr(torch, options.dtype)
                run(tokens, batch, options.queries, dtype, options.repeats)


if __name__ == "__main__":
    main()
