"""What a plan saves while a model generates: time per token, memory, and what selecting costs.

    python -m benchmarks.decode                      # makes a plan for 12.5% of SmolLM2 first
    python -m benchmarks.decode --plan plan.json     # with a plan that is there
    python -m benchmarks.decode --part tokens        # one part
    python -m benchmarks.decode --quick              # short, no file

tokens   Seconds per decoded token, transformers' cache against the planned one, token by token in
         turns in one process; and how far both are from the time it takes to read the weights and
         the cache once at the bandwidth of this machine. The contents of the caches are random
         numbers: they do not matter for the time.
bits     The same for the plan, and for as many tokens in 16, 8 and 4 bits.
prefill  Share of the time of reading a prompt that goes into choosing what is kept.
held     Bytes that a process gives back when a cache goes, against what the cache says, one
         process per kind of cache.
memory   Peak memory of a process that reads a long prompt, one process per kind of cache, counted
         from the end of loading the model.
pieces   Divergence from the dense next-token laws after a prompt that was read whole, or in pieces
         that were reduced as they came; paired over passages.
long     Tokens generated with decode="budget" in bounded memory, and the divergence of their laws
         from those of the dense model on the same text.

Results go to benchmarks/results/decode.json, each part replacing its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import structs
from scipy import stats

import esscher
from esscher.core.memory import MemoryWatch
from esscher.engine.attention.bits import Bits
from esscher.engine.attention.compiled.kernel import kernel_name
from esscher.engine.cache.cache import ReducedCache
from esscher.engine.cache.layer import ReducedLayer
from esscher.engine.cache.selection import certain_keys
from esscher.engine.cache.storage import Kept
from esscher.engine.models.transformers_library import transformers_module
from esscher.engine.reading import PassageReader, compare_laws, read_prompt
from esscher.engine.text.packing import first_passages

RESULTS = Path(__file__).parent / "results" / "decode.json"
MODEL, TEXT, HELD_OUT = "demo:smollm2", "demo:docs", "demo:code"
LENGTHS, BATCHES, TOKENS = (1024, 2048, 4096, 8192), (1, 4), 24


def made_plan(path: str | None, quick: bool) -> Any:
    if path is not None:
        return esscher.load(path).plan
    sizes = {"prefix": 512, "passages": 1} if quick else {"prefix": 2048, "passages": 4}
    return esscher.plan(MODEL, TEXT, budget=0.125, **sizes).plan


def dense_cache(loaded: Any) -> Any:
    return transformers_module().DynamicCache(config=loaded.model.config)


def filled(
    plan: Any, loaded: Any, batch: int, length: int, bits: Bits | None
) -> tuple[Any, ReducedCache]:
    """Both caches after a prompt of that length, with random contents."""
    dense, reduced = dense_cache(loaded), ReducedCache(loaded)
    shape = (batch, loaded.shape.key_heads, length, loaded.shape.head_dim)
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    for number, layer in enumerate(reduced.layers):
        keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
        dense.update(keys, values, number)
        tokens = np.ceil(plan.token_budgets.ratios[number] * length - 1e-9).astype(int)
        certain = certain_keys(length, plan.keeping.sinks, plan.keeping.recent)
        kept = []
        for g, n in enumerate(tokens.tolist()):
            index = torch.from_numpy(np.sort(rng.permutation(length)[:n]))
            head = Kept(index, torch.zeros(n))
            kept.append(head.in_codes(bits or plan.bits_of(number, g), certain))
        layer.fill(keys, values, [kept] * batch, [torch.arange(length)] * batch)
    return dense, reduced


def token_seconds(loaded: Any, cache: Any, batch: int) -> float:
    ids = torch.full((batch, 1), 42)
    start = time.perf_counter()
    loaded.model(input_ids=ids, past_key_values=cache, use_cache=True)
    return time.perf_counter() - start


def bandwidth() -> float:
    """Bytes per second of reading an array that no cache holds, best of several."""
    array = torch.ones(2**27)
    best = min(_timed(lambda: torch.sum(array)) for _ in range(7))
    return array.nbytes / best


def _timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_tokens(
    plan: Any,
    loaded: Any,
    quick: bool,
    lengths: Sequence[int] = LENGTHS,
    batches: Sequence[int] = BATCHES,
    kinds: Mapping[str, Bits | None] = {"plan": None},
) -> list[dict[str, Any]]:
    weights = sum(p.nbytes for p in {id(p): p for p in loaded.model.parameters()}.values())
    rows = []
    lengths, batches, count = ((512,), (1,), 6) if quick else (lengths, batches, TOKENS)
    for batch in batches:
        for length, (kind, bits) in itertools.product(lengths, kinds.items()):
            dense, reduced = filled(plan, loaded, batch, length, bits)
            share = reduced.nbytes / reduced.dense_nbytes
            for cache in (dense, reduced):  # the first token allocates
                token_seconds(loaded, cache, batch)
            pairs = np.array(
                [[token_seconds(loaded, c, batch) for c in (dense, reduced)] for _ in range(count)]
            )
            speed = bandwidth()
            ratio = pairs[:, 1] / pairs[:, 0]
            medians = np.median(pairs, axis=0)
            held = (reduced.dense_nbytes, reduced.nbytes)
            limits = [(weights + one) / speed for one in held]
            rows.append(
                {
                    "batch": batch,
                    "length": length,
                    "bits": kind,
                    "dense_ms": 1e3 * medians[0],
                    "planned_ms": 1e3 * medians[1],
                    "ratio": float(np.median(ratio)),
                    "quartiles": np.quantile(ratio, [0.25, 0.75]).tolist(),
                    "bytes": share,
                    "dense_over_limit": float(medians[0] / limits[0]),
                    "planned_over_limit": float(medians[1] / limits[1]),
                    "limit_ratio": limits[1] / limits[0],
                    "gb_per_s": speed / 1e9,
                }
            )
            print(_shown(rows[-1]), flush=True)
            del dense, reduced
    return rows


def measure_bits(plan: Any, loaded: Any, quick: bool) -> list[dict[str, Any]]:
    kinds: dict[str, Bits | None] = {"plan": None, "16": (16, 16), "8": (8, 8), "4": (4, 4)}
    return measure_tokens(plan, loaded, quick, LENGTHS[1::2], (1,), kinds)


def measure_prefill(plan: Any, loaded: Any, quick: bool) -> list[dict[str, Any]]:
    """CPU seconds, so that other work on the machine does not count."""
    rows, spent = [], [0.0]
    original = ReducedLayer._read_prompt

    def timed(self: ReducedLayer, *given: Any) -> None:
        start = time.process_time()
        original(self, *given)
        spent[0] += time.process_time() - start

    lengths = (256,) if quick else (128, 512, 1024, 2048, 4096, 8192)
    ids = torch.from_numpy(first_passages(loaded, TEXT, 1, max(lengths)).passages[0].ids)[None]
    ReducedLayer._read_prompt = timed  # type: ignore[method-assign]
    try:
        for length in lengths:
            for _ in range(2 if length <= 1024 else 1):  # the first pays for what is set up once
                cache = plan.cache(loaded)
                spent[0], start = 0.0, time.process_time()
                loaded.model(input_ids=ids[:, :length], past_key_values=cache, logits_to_keep=1)
                whole = time.process_time() - start
            rows.append(
                {
                    "length": length,
                    "cpu_seconds": whole,
                    "selecting": spent[0],
                    "share": spent[0] / (whole - spent[0]),
                    "bytes": cache.nbytes / cache.dense_nbytes,
                }
            )
            print(_shown(rows[-1]), flush=True)
    finally:
        ReducedLayer._read_prompt = original  # type: ignore[method-assign]
    return rows


def measure_pieces(plan: Any, loaded: Any, quick: bool) -> dict[str, Any]:
    """KL in nats per token; the ratio to reading whole is a geometric mean with its interval."""
    prefix, passages, kinds = (256, 2, (64,)) if quick else (2048, 8, (1024, 512, 256))
    result: dict[str, list[float]] = {}
    for passage in first_passages(loaded, HELD_OUT, passages, prefix + 128).passages:
        ids = torch.from_numpy(passage.ids)[None, :prefix]
        prompt = read_prompt(loaded, ids[0], lambda inputs: None)
        reader = PassageReader(loaded, passage, prefix, prompt)
        dense = reader.end()
        for chunk in (None, *kinds):
            cache = plan.cache(loaded, chunk=chunk)
            loaded.backbone(input_ids=ids, past_key_values=cache)
            kl = compare_laws(dense, reader.end(cache), reader.next_tokens)["kl"]
            result.setdefault("whole" if chunk is None else str(chunk), []).append(kl)
    out: dict[str, Any] = {"text": HELD_OUT, "prefix": prefix, "passages": passages}
    for name, values in result.items():
        logs = np.log(np.array(values) / np.array(result["whole"]))
        half = stats.t.ppf(0.975, passages - 1) * logs.std(ddof=1) / np.sqrt(passages)
        out[name] = {
            "kl": float(np.mean(values)),
            "over_whole": float(np.exp(logs.mean())),
            "interval": np.exp([logs.mean() - half, logs.mean() + half]).tolist(),
        }
        print(_shown({"pieces": name} | out[name]), flush=True)
    return out


#: What a process that reads a prompt does; it prints its peak memory.
CHILD = """
import sys, time, torch, esscher
from benchmarks.decode import dense_cache, MODEL, TEXT
from esscher.core.memory import MemoryWatch
from esscher.engine.text.packing import first_passages
kind, path, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
loaded, plan = esscher.load_model(MODEL), esscher.load(path)
ids = torch.from_numpy(first_passages(loaded, TEXT, 1, length).passages[0].ids)[None]
options = {"chunk": 1024} if kind == "pieces" else {}
cache = dense_cache(loaded) if kind == "dense" else plan.cache(loaded, **options)
with torch.no_grad():
    loaded.model(input_ids=ids[:, :64], use_cache=False, logits_to_keep=1)
    watch = MemoryWatch()
    loaded.model(input_ids=ids, past_key_values=cache, logits_to_keep=1)
print(watch.peak)
"""


#: What a process does that says what a cache holds.
HOLDER = """
import gc, sys, torch, esscher
from pathlib import Path
from benchmarks.decode import MODEL, dense_cache
from esscher.core.memory import give_back
def held():
    gc.collect()
    give_back()
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])
kind, path, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
loaded, plan = esscher.load_model(MODEL), esscher.load(path)
ids = torch.randint(100, 40_000, (1, length), generator=torch.Generator().manual_seed(0))
cache = dense_cache(loaded) if kind == "dense" else plan.cache(loaded)
with torch.no_grad():
    for start in range(0, length, length if kind != "dense" else 1024):
        piece = ids[:, start : start + (length if kind != "dense" else 1024)]
        loaded.model(input_ids=piece, past_key_values=cache, logits_to_keep=1)
said = sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values)) if (
    kind == "dense") else cache.nbytes
before = held()
del cache
print(said, before - held())
"""


def measure_held(plan: Any, loaded: Any, quick: bool) -> list[dict[str, Any]]:
    length, rows = 1024 if quick else 4096, []
    plain = structs.replace(plan, bits=None)
    with tempfile.TemporaryDirectory() as folder:
        for kind, own in {"dense": plan, "plan": plan, "16 bits": plain}.items():
            path = Path(folder) / f"{kind}.json"
            own.save(path)
            command = [sys.executable, "-c", HOLDER, kind, str(path), str(length)]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            said, freed = map(int, out.split())
            rows.append({"cache": kind, "length": length, "says": said, "freed": freed})
            print(_shown(rows[-1] | {"ratio": freed / said}), flush=True)
    return rows


def measure_memory(plan: Any, loaded: Any, quick: bool) -> dict[str, Any]:
    length = 1024 if quick else 8192
    shape = loaded.shape
    dense = 2 * shape.layers * shape.key_heads * shape.head_dim * 4 * length
    result: dict[str, Any] = {"length": length, "dense_cache_mb": dense / 1e6}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan.save(path)
        for kind in ("dense", "planned", "pieces"):
            command = [sys.executable, "-c", CHILD, kind, str(path), str(length)]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            result[f"{kind}_peak_mb"] = int(out.split()[-1]) / 1e6
    for kind in ("planned", "pieces"):
        saved = result["dense_peak_mb"] - result[f"{kind}_peak_mb"]
        result[f"{kind}_saves_of_dense_cache"] = saved / result["dense_cache_mb"]
    print(_shown(result), flush=True)
    return result


def measure_long(plan: Any, loaded: Any, quick: bool) -> dict[str, Any]:
    """Sampled text, so that it does not repeat itself, and what the dense model says about it."""
    count, prompt, every = (300, 64, 20) if quick else (20_000, 1024, 50)
    ids = torch.from_numpy(first_passages(loaded, TEXT, 1, prompt).passages[0].ids)[None]
    cache = plan.cache(loaded, decode="budget", length=prompt)
    generator, rows = torch.Generator().manual_seed(0), []
    watch = MemoryWatch()
    tokens, laws = [ids], {}
    output = loaded.model(input_ids=ids, past_key_values=cache, logits_to_keep=1)
    start = time.perf_counter()
    for i in range(count):
        law = torch.log_softmax(output.logits[0, -1].float(), dim=-1)
        if i % every == 0:
            laws[i] = law.to(torch.float16)
        if i % (count // 10) == 0:
            rows.append({"tokens": i, "cache_mb": cache.nbytes / 1e6, "peak_mb": watch.peak / 1e6})
            print(_shown(rows[-1]), flush=True)
        tokens.append(torch.multinomial(law.exp(), 1, generator=generator)[None])
        output = loaded.model(input_ids=tokens[-1], past_key_values=cache)
    seconds = time.perf_counter() - start
    return {
        "tokens": count,
        "prompt": prompt,
        "seconds_per_token": seconds / count,
        "dense_cache_mb": cache.dense_nbytes / 1e6,
        "along": rows,
        "kl": _divergence(loaded, torch.cat(tokens, dim=1), prompt, laws, count),
    }


def _divergence(
    loaded: Any, text: torch.Tensor, prompt: int, laws: dict[int, torch.Tensor], count: int
) -> list[dict[str, Any]]:
    """Mean KL from the dense laws to those of the reduced cache, by tenths of the text."""
    dense, step, result = dense_cache(loaded), 512, {}
    for first in range(0, text.shape[1], step):
        part = text[:, first : first + step]
        wanted = [i for i in laws if first <= prompt - 1 + i < first + part.shape[1]]
        keep = torch.tensor([prompt - 1 + i - first for i in wanted], dtype=torch.long)
        output = loaded.model(input_ids=part, past_key_values=dense, logits_to_keep=keep)
        for i, logits in zip(wanted, output.logits[0], strict=True):
            own = torch.log_softmax(logits.float(), dim=-1)
            result[i] = float((own.exp() * (own - laws[i].float())).sum())
    out = []
    for tenth in range(10):
        low, high = tenth * count // 10, (tenth + 1) * count // 10
        values = np.array([kl for i, kl in result.items() if low <= i < high])
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else None
        out.append({"from": low, "to": high, "kl": values.mean(), "standard_error": error})
        print(_shown(out[-1]), flush=True)
    return out


def _shown(row: dict[str, Any]) -> str:
    def one(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return "  ".join(f"{name} {one(value)}" for name, value in row.items())


PARTS = {
    "tokens": measure_tokens,
    "prefill": measure_prefill,
    "bits": measure_bits,
    "held": measure_held,
    "memory": measure_memory,
    "pieces": measure_pieces,
    "long": measure_long,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--plan", help="a plan for demo:smollm2 (default: one is made)")
    parser.add_argument("--part", choices=[*PARTS], help="one part (default: all but long)")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    plan, loaded = made_plan(chosen.plan, chosen.quick), esscher.load_model(MODEL)
    machine = {
        "processor": platform.machine(),
        "kernel": kernel_name(),
        "cores": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers_module().__version__,
    }
    about = {
        "machine": machine,
        "plan": {"prefix": plan.prefix, "ratio": plan.ratio, "bytes": plan.share},
    }
    parts = [chosen.part] if chosen.part else [name for name in PARTS if name != "long"]
    with torch.no_grad():
        for name in parts:
            print(f"\n{name}", flush=True)
            result = PARTS[name](plan, loaded, chosen.quick)
            if not chosen.quick:
                stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
                stored |= {name: about | {"result": result}}
                RESULTS.write_text(json.dumps(stored, indent=2) + "\n")


if __name__ == "__main__":
    main()
