"""Runs presses of kvpress on given tokens; executed by a Python that has kvpress, not Esscher.

    python kvpress_runner.py FOLDER

``kvpress.py`` writes into the folder: ``job.json`` (the model's folder, the prefix, and presses
with their arguments), ``ids.npy`` (tokens, [passages, length]) and arrays that presses need. What
is found is written beside them: ``found.json`` (divergences, numbers kept) and ``kept.npz`` (True
at tokens that are kept, [layers, key heads, prefix], per press and passage).
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import Any

import kvpress
import numpy as np
import torch
import transformers


def press_of(spec: dict[str, Any], folder: Path) -> Any:
    """Make the press that is described."""
    ratio, kind, scorer = spec["ratio"], spec["kind"], spec.get("scorer", "snapkv")
    scorers = {
        "streaming": lambda: kvpress.StreamingLLMPress(ratio),
        "snapkv": lambda: kvpress.SnapKVPress(ratio),
        "expected": lambda: kvpress.ExpectedAttentionPress(ratio),
    }
    if kind in scorers:
        return scorers[kind]()
    if kind == "adakv":
        return kvpress.AdaKVPress(scorers[scorer]())
    if kind == "kvzip":
        return kvpress.KVzipPress(ratio)
    if kind == "lukv":
        options = {"press": scorers[spec["scorer"]]()} if "scorer" in spec else {}
        press = kvpress.LUKVPress(compression_ratio=ratio, **options)
        press._budget_curves = np.load(folder / spec["curves"])
        return press
    raise ValueError(kind)


def read_prefix(model: Any, ids: torch.Tensor, press: Any) -> Any:
    """Read tokens under a press, or dense; returns the cache."""
    cache = transformers.DynamicCache()
    with press(model) if press is not None else contextlib.nullcontext():
        model.model(input_ids=ids[None], past_key_values=cache)
    return cache


def laws(model: Any, ids: torch.Tensor, cache: Any, start: int) -> torch.Tensor:
    """Logarithms of the next-token probabilities after all tokens but the last.

    Positions are handed in, since the cache may be shorter than the text. ``cache_position`` is
    not: the mask is made from the length of the cache. It is that of the first layer, so that
    layers of other lengths must be read token by token.
    """
    pieces = [ids]
    if len({layer.keys.shape[2] for layer in cache.layers}) > 1:
        pieces = list(ids.split(1))
    logits = []
    for piece in pieces:
        positions = torch.arange(start, start + len(piece))[None]
        output = model(input_ids=piece[None], past_key_values=cache, position_ids=positions)
        logits.append(output.logits[0])
        start += len(piece)
    return torch.log_softmax(torch.cat(logits)[:-1].float(), dim=-1)


def kept_tokens(model: Any, cache: Any, dense: Any, prefix: int) -> np.ndarray:
    """True at tokens that are kept, [layers, key heads, prefix].

    A press masks keys, or drops them: what is left is then found among the dense keys.
    """
    out = []
    for layer, own, full in zip(model.model.layers, cache.layers, dense.layers, strict=True):
        heads = own.keys.shape[1]
        kept = np.zeros((heads, prefix), dtype=bool)
        if own.keys.shape[2] == prefix:
            kept[:] = True
            masked = getattr(layer.self_attn, "masked_key_indices", None)
            if masked is not None:
                kept[masked[1].numpy(), masked[2].numpy()] = False
        else:
            for h in range(heads):
                place = {row.tobytes(): j for j, row in enumerate(full.keys[0, h].numpy())}
                kept[h, [place[row.tobytes()] for row in own.keys[0, h].numpy()]] = True
        out.append(kept)
    return np.stack(out)


def main() -> None:
    folder = Path(sys.argv[1])
    logging.getLogger("kvpress").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    job = json.loads((folder / "job.json").read_text())
    passages, prefix = torch.from_numpy(np.load(folder / "ids.npy")), job["prefix"]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    found: dict[str, Any] = {"kvpress": job["kvpress"], "transformers": transformers.__version__}
    kept: dict[str, np.ndarray] = {}
    with torch.no_grad():
        for number, ids in enumerate(passages):
            before, after = ids[:prefix], ids[prefix:]
            cache = read_prefix(model, before, None)
            dense = read_prefix(model, before, None)
            reference = laws(model, after, cache, prefix)
            for spec in job["presses"]:
                cache = read_prefix(model, before, press_of(spec, folder))
                mask = kept_tokens(model, cache, dense, prefix)
                other = laws(model, after, cache, prefix)
                kl = (reference.exp() * (reference - other)).sum(-1, dtype=torch.float64).mean()
                name = spec["name"]
                kept[f"{name} {number}"] = mask
                entry = found.setdefault(name, {"kl": [], "kept": []})
                entry["kl"].append(float(kl))
                entry["kept"].append(int(mask.sum()))
                print(f"passage {number}, kvpress {name}: KL {float(kl):.5f}", flush=True)
    (folder / "found.json").write_text(json.dumps(found))
    np.savez_compressed(folder / "kept.npz", **kept)


if __name__ == "__main__":
    main()
