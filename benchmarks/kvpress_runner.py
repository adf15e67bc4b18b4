"""Runs presses of kvpress on given tokens; executed by a Python that has kvpress, not Esscher.

    python kvpress_runner.py FOLDER

``kvpress.py`` writes into the folder: ``job.json`` (the model's folder, the prefix, and presses
with their arguments), ``ids.npy`` (tokens, [passages, length]), arrays that presses need, and
``dense.npy`` if dense laws, [passages, positions, vocabulary], are to be compared. What is found is
written beside them: ``found.json`` (divergences, numbers kept) and ``kept.npz`` (True at tokens
that are kept, [layers, key heads, prefix], per press and passage).
"""

from __future__ import annotations

import copy
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
        "streaming": kvpress.StreamingLLMPress,
        "snapkv": kvpress.SnapKVPress,
        "expected": kvpress.ExpectedAttentionPress,
        "compactor": kvpress.CompactorPress,
        "kvzip": kvpress.KVzipPress,
        "kvgrad": kvpress.KVgradPress,
    }
    if kind in scorers:
        return scorers[kind](compression_ratio=ratio)
    over = scorers[scorer](compression_ratio=ratio)
    if kind == "adakv":
        return kvpress.AdaKVPress(over)
    if kind == "critical":
        return kvpress.CriticalAdaKVPress(over)
    if kind == "lukv":
        press = kvpress.LUKVPress(over, compression_ratio=ratio, window=spec["recent"])
        press._budget_curves = np.load(folder / spec["curves"])
        return press
    raise ValueError(kind)


class Prompt:
    """Tokens that were read once, dense; presses are applied to what was seen then.

    A press runs after the attention of a layer, which has been dense until then, so that the layers
    above see the same with all presses. KVzip and those that derive from it repeat the tokens, and
    score them for all ratios at once.

    Parameters
    ----------
    model, ids
        The model and the tokens.

    Attributes
    ----------
    dense
        The cache.
    """

    def __init__(self, model: Any, ids: torch.Tensor) -> None:
        self.model, self.ids = model, ids
        self.seen: list[tuple[Any, dict[str, Any], Any]] = []
        self.scores: dict[str, torch.Tensor] = {}

        def see(module: Any, args: Any, given: dict[str, Any], output: Any) -> None:
            self.seen.append((module, given, output))

        layers = [layer.self_attn for layer in model.model.layers]
        hooks = [layer.register_forward_hook(see, with_kwargs=True) for layer in layers]
        self.dense = transformers.DynamicCache()
        model.model(input_ids=ids[None], past_key_values=self.dense)
        for hook in hooks:
            hook.remove()

    def pressed(self, kind: str, press: Any) -> Any:
        """The cache that a press of a kind leaves."""
        cache = copy.deepcopy(self.dense)
        for module, _, _ in self.seen:
            module.masked_key_indices = None
        torch.manual_seed(0)
        if isinstance(press, kvpress.KVzipPress):
            if kind not in self.scores:
                self.scores[kind] = self.repeated(press)
            press.score_val = self.scores[kind].clone()
            press.compress_post(self.model)
            return cache
        with press(self.model):
            for module, given, output in self.seen:
                press.forward_hook(module, [], given | {"past_key_values": cache}, output)
        return cache

    def repeated(self, press: Any) -> torch.Tensor:
        """Scores of a press that repeats the tokens; it is told what was read."""
        found: list[torch.Tensor] = []
        press.compress_post = lambda model: found.append(press.score_val)
        with press(self.model):
            press._context_ids, press._cache = self.ids[None], copy.deepcopy(self.dense)
        del press.compress_post
        return found[0]


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


def divergence(law: torch.Tensor, other: torch.Tensor) -> float:
    """Mean KL of other next-token laws from a law, in nats per token."""
    return float((law.exp() * (law - other)).sum(-1, dtype=torch.float64).mean())


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
            after = ids[prefix:]
            prompt = Prompt(model, ids[:prefix])
            reference = laws(model, after, copy.deepcopy(prompt.dense), prefix)
            if (folder / "dense.npy").exists():
                theirs = torch.from_numpy(np.load(folder / "dense.npy", mmap_mode="c")[number])
                found.setdefault("dense", []).append(divergence(theirs, reference))
            for spec in job["presses"]:
                cache = prompt.pressed(spec["kind"], press_of(spec, folder))
                mask = kept_tokens(model, cache, prompt.dense, prefix)
                kl = divergence(reference, laws(model, after, cache, prefix))
                name = spec["name"]
                kept[f"{name} {number}"] = mask
                entry = found.setdefault(name, {"kl": [], "kept": []})
                entry["kl"].append(kl)
                entry["kept"].append(int(mask.sum()))
                print(f"passage {number}, kvpress {name}: KL {kl:.5f}", flush=True)
    (folder / "found.json").write_text(json.dumps(found))
    np.savez_compressed(folder / "kept.npz", **kept)


if __name__ == "__main__":
    main()
