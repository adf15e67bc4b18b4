"""A prompt is read and 256 tokens are written: what that takes with dense and with smaller caches.

    python -m benchmarks.answers PLAN TEXT --model demo:smollm2 --lengths 2048,8064 --batches 1,4

Dense, the plan, and SnapKV and KVzip with as many bytes, in 4 bits, each in a process of its own
with one thread: CPU seconds of reading and of writing, peak memory beyond the loaded model, and KL
of the 128 tokens after the prompt from dense. A batch is so many texts after one prompt, which is
read once. Rules read a prompt as in our comparison, with all of the dense cache in
memory until they have chosen: their peaks say nothing about kvpress, and are left out. What is
there is not measured again; results go to benchmarks/results/answers.csv.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

RESULTS = Path(__file__).parent / "results" / "answers.csv"
KINDS = ("dense", "planned", "snapkv", "kvzip")
WRITTEN, QUERIES, BITS = 256, 128, (4, 4)


def answer(given: dict[str, Any]) -> dict[str, Any]:
    """Read and write with one kind of cache; the laws after the prompt are stored in a file."""
    import torch

    import esscher
    from benchmarks.decode import dense_cache
    from esscher.core.memory import MemoryWatch
    from esscher.engine.attention.bits import ENTRY_BYTES
    from esscher.engine.cache.cache import ObservedPrompt
    from esscher.engine.cache.published import RULES
    from esscher.engine.reading import PassageReader
    from esscher.engine.text.packing import first_passages
    from esscher.studies.plan.check import kept_by_rule

    kind, length, batch = given["configuration"], given["length"], given["batch"]
    loaded = esscher.load_model(given["model"], dtype=given["dtype"])
    plan = esscher.load(given["plan"])
    passage = first_passages(loaded, given["text"], 1, length + QUERIES).passages[0]
    ids = torch.from_numpy(passage.ids[:length])[None]
    with torch.no_grad():
        loaded.model(input_ids=ids[:, :64], use_cache=False, logits_to_keep=1)
        watch, begin = MemoryWatch(), time.process_time()
        loaded_bytes = watch.peak or 0
        if kind in RULES:
            rule = RULES[kind]
            prompt = ObservedPrompt(loaded, ids[0].numpy(), plan.keeping, "last", [rule], False)
            certain, entry = prompt.certain, ENTRY_BYTES[loaded.weights]
            shape = loaded.shape
            each = plan.share * 2 * length * shape.head_dim * entry
            kept = kept_by_rule(rule, prompt, certain, each, BITS, entry)
            cache = prompt.reduced(kept)
            del prompt
        else:
            cache = dense_cache(loaded) if kind == "dense" else plan.cache(loaded)
            loaded.model(input_ids=ids, past_key_values=cache, logits_to_keep=1)
        reading, peak = time.process_time() - begin, (watch.peak or 0) - loaded_bytes
        held = (
            cache.nbytes
            if kind != "dense"
            else sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values))
        )
        reader = PassageReader(loaded, passage, length, cache)
        np.save(given["laws"], reader.end().numpy())
        if batch > 1:
            cache.batch_repeat_interleave(batch)
        tokens = torch.full((batch, 1), int(passage.ids[length]))
        begin = time.process_time()
        for _ in range(WRITTEN):
            output = loaded.model(input_ids=tokens, past_key_values=cache, use_cache=True)
            tokens = output.logits[:, -1:].argmax(-1)
        writing = time.process_time() - begin
    row = {"reading": reading, "writing": writing, "cache_mb": held / 1e6}
    return row | {"peak_mb": float("nan") if kind in RULES else peak / 1e6}


def divergence(dense: Path, other: Path) -> float:
    """Mean KL of stored laws, in nats per token."""
    exact, law = (np.load(path).astype(np.float64) for path in (dense, other))
    return float((np.exp(exact) * (exact - law)).sum(-1).mean())


def main() -> None:
    """Measure what is missing."""
    if sys.argv[1] == "child":
        print(json.dumps(answer(json.loads(sys.argv[2]))))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("plan")
    parser.add_argument("text")
    parser.add_argument("--model", default="demo:smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--lengths", default="2048,8064")
    parser.add_argument("--batches", default="1,4")
    given = parser.parse_args()
    rows = pd.read_csv(RESULTS).to_dict("records") if RESULTS.exists() else []
    there = {(row["model"], row["length"], row["batch"], row["configuration"]) for row in rows}
    name = Path(given.model).stem
    with tempfile.TemporaryDirectory() as folder:
        for length in map(int, given.lengths.split(",")):
            for batch in map(int, given.batches.split(",")):
                if (name, length, batch, KINDS[-1]) in there:
                    continue
                for kind in KINDS:
                    told = vars(given) | {"configuration": kind, "length": length, "batch": batch}
                    told["laws"] = f"{folder}/{kind}.npy"
                    ran = subprocess.run(
                        [sys.executable, "-m", "benchmarks.answers", "child", json.dumps(told)],
                        env=os.environ | {"OMP_NUM_THREADS": "1"},
                        stdout=subprocess.PIPE,
                        check=True,
                        text=True,
                    )
                    row = {"model": name, "length": length, "batch": batch, "configuration": kind}
                    row |= json.loads(ran.stdout.splitlines()[-1])
                    row["kl"] = divergence(Path(folder) / "dense.npy", Path(told["laws"]))
                    rows = [r for r in rows if any(r[k] != row[k] for k in list(row)[:4])] + [row]
                    print(row, flush=True)
                    pd.DataFrame(rows).to_csv(
                        RESULTS, index=False, lineterminator="\n", float_format="%.5g"
                    )


if __name__ == "__main__":
    main()
