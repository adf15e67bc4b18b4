"""What planning costs, by the size of the model.

    python -m benchmarks.plan_cost TEXT demo:smollm2 gemma.gguf qwen.gguf

A plan for 25% of the bytes is made from four passages of 2,048 tokens, in bfloat16, in a process of
its own: CPU seconds and peak memory of all of it. The unit is one dense reading of such a passage
by the same model, timed in another process. Planning takes a part that grows with a reading, and
one that grows with the heads that are planned; both are fitted to the measured models, at the speed
at which each reads. Larger models follow by them: those are computed, not measured. Results go to
benchmarks/results/plan_cost.json; a model that is there is not measured again.
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
from scipy.optimize import nnls

RESULTS = Path(__file__).parent / "results" / "plan_cost.json"
PASSAGES, PREFIX, QUERIES, BUDGET = 4, 2048, 128, 0.25
#: Readings that are timed; the fastest counts.
READINGS = 3
#: Larger models: parameters, layers, width of queries; Llama 3's.
LARGER = {"8B": (8.0e9, 32, 4096), "70B": (70.6e9, 80, 8192)}
#: Operations per second of eight H100 in bfloat16, and the share that reading reaches of them.
GPUS, REACHED = 8 * 989e12, 0.4


def attention(layers: int, width: int, tokens: int) -> float:
    """Operations that grow with heads: two per channel and pair of tokens, half of them masked."""
    return 2 * layers * width * tokens**2


def operations(parameters: float, layers: int, width: int, tokens: int) -> float:
    """Floating-point operations of reading: two per parameter and token, and causal attention."""
    return 2 * parameters * tokens + attention(layers, width, tokens)


def reading(model: str) -> None:
    """Load a model, print what a dense reading takes."""
    import torch

    import esscher
    from esscher.engine.cache.cache import check_reducible

    begin = time.process_time()
    loaded = esscher.load_model(model, dtype="bfloat16")
    seconds = time.process_time() - begin
    tokens = torch.arange(1000, 1000 + PREFIX)[None]
    times = []
    with torch.no_grad():
        for _ in range(READINGS):
            begin = time.process_time()
            loaded.model(input_ids=tokens, use_cache=True, logits_to_keep=1)
            times.append(time.process_time() - begin)
    shape, embedding = loaded.shape, loaded.model.get_input_embeddings().weight.numel()
    parameters = sum(p.numel() for p in loaded.model.parameters()) - embedding
    width = shape.heads * shape.head_dim
    planned = sum(not layer.is_sliding for layer in check_reducible(loaded))
    result = {
        "parameters": parameters + embedding,
        "loading": seconds,
        "reading": min(times),
        "operations": operations(parameters, shape.layers, width, PREFIX),
        "heads": attention(planned, width, PREFIX),
    }
    print(json.dumps(result))


def planning(model: str, text: str) -> dict[str, float]:
    """Plan in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "esscher", "plan", model, "--dtype", "bfloat16"),
            *("--text", text, "--passages", str(PASSAGES), "--prefix", str(PREFIX)),
            *("--budget", str(BUDGET), "--save", f"{folder}/plan.json"),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"planning {model} failed")
    return {
        "planning": usage.ru_utime + usage.ru_stime,
        "peak_gb": usage.ru_maxrss * (1024 if sys.platform == "linux" else 1) / 1e9,
    }


def larger(measured: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Compute what larger models would take; weights in bfloat16."""
    rows = list(measured.values())
    speeds = [row["operations"] / row["reading"] for row in rows]
    spent = np.array([row["readings"] * row["operations"] for row in rows])
    parts = np.array([[row["operations"], row["heads"]] for row in rows])
    # relative errors count, whatever the size of the model
    (each, heads), _ = nnls(parts / spent[:, None], np.ones(len(rows)))
    out = {}
    for name, (parameters, layers, width) in LARGER.items():
        whole = operations(parameters, layers, width, PREFIX)
        work = each * whole + heads * attention(layers, width, PREFIX)
        out[name] = {
            "readings": work / whole,
            "operations": whole,
            "cpu_hours": work / min(speeds) / 3600,
            "weights_gb": 2 * parameters / 1e9,
            "eight_gpus_seconds": work / (GPUS * REACHED),
        }
    return out


def main() -> None:
    """Measure models that are missing, compute the others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", help="text of the passages")
    parser.add_argument("models", nargs="+")
    given = parser.parse_args()
    if given.text == "reading":
        return reading(*given.models)
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    measured = known.get("measured", {})
    for model in given.models:
        name = Path(model).stem
        if name in measured:
            continue
        command = [sys.executable, "-m", "benchmarks.plan_cost", "reading", model]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        row = json.loads(said.splitlines()[-1]) | planning(model, given.text)
        row["readings"] = (row["planning"] - row["loading"]) / row["reading"]
        measured[name] = row
        print(name, row, flush=True)
        known = {"measured": measured, "computed": larger(measured)}
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
