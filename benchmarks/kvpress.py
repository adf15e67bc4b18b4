"""Do our versions of published rules do what those of kvpress do? Both run on the same tokens.

    python -m benchmarks.kvpress --text BOOK.txt              # all rules, 3 passages, 25%
    python -m benchmarks.kvpress --text BOOK.txt --rules snapkv,adakv --prefix 512

kvpress needs an older transformers: it gets an environment of its own (made in ``.kvpress`` when it
is first needed; ``--environment`` names another folder), the weights and the tokens. Compared are
the tokens that are kept, and the divergence of the next 128 next-token laws from the dense ones,
each measured in its own environment.

Results go to benchmarks/results/kvpress.json. Plans are compared with presses in kvpress_rivals.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import esscher
from benchmarks.kvpress_environment import KVPRESS, other_python, run_presses
from esscher.engine.cache.budgets import keeping_for
from esscher.engine.cache.cache import ObservedPrompt
from esscher.engine.cache.published import RULES, Rule
from esscher.engine.cache.storage import Kept
from esscher.engine.models.transformers_library import transformers_module
from esscher.engine.reading import PassageReader, compare_laws
from esscher.engine.text.packing import first_passages

ENVIRONMENT = Path(__file__).parent.parent / ".kvpress"
RESULTS = Path(__file__).parent / "results" / "kvpress.json"
MODEL = "demo:smollm2"
#: Tokens after the prefix; the last one's successor is unknown.
QUERIES = 129


@dataclass
class Comparison:
    """One rule in both environments, a number per passage."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    kept_theirs: list[int] = field(default_factory=list)
    common: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Our mean divergence over theirs."""
        return float(np.mean(self.ours) / np.mean(self.theirs))


def press_for(kind: str, prefix: int, each: int) -> dict[str, Any]:
    """Describe a press that keeps so many tokens; it takes a ratio, and rounds it down."""
    ratio = 1 - (each + 0.5) / prefix
    if kind in ("kvzip", "kvgrad"):  # these round what is dropped in all heads together
        ratio = 1 - each / prefix + 1e-9
    return {"name": kind, "kind": kind, "ratio": ratio}


def measure_ours(
    loaded: Any,
    rules: list[Rule],
    passages: Any,
    prefix: int,
    each: int,
    found: dict[str, Comparison],
) -> dict[str, np.ndarray]:
    """Divergences of our rules; returns masks of tokens."""
    masks: dict[str, np.ndarray] = {}
    for number, passage in enumerate(passages):
        ids, keeping = passage.ids[:prefix], keeping_for(prefix)
        prompt = ObservedPrompt(loaded, ids, keeping, "last", rules, fits=False)
        reader = PassageReader(loaded, passage, prefix, prompt.cache)
        dense = reader.read(lambda inputs: None).end
        for rule in rules:
            scores = prompt.rule_scores[rule.name]
            kept = rule.keep(list(scores.values()), each)
            mask = np.zeros((len(kept), len(kept[0]), prefix), dtype=bool)
            for layer, row in enumerate(kept):
                for g, index in enumerate(row):
                    mask[layer, g, index.numpy()] = True
            cache = prompt.reduced(
                {
                    layer: [Kept(index, torch.zeros(len(index))) for index in heads]
                    for layer, heads in zip(scores, kept, strict=True)
                }
            )
            other = reader.read(lambda inputs: None, cache).end
            kl = compare_laws(dense, other, reader.next_tokens)["kl"]
            masks[f"{rule.name} {number}"] = mask
            found[rule.name].ours.append(kl)
            found[rule.name].kept.append(int(mask.sum()))
            print(f"passage {number}, ours {rule.name}: KL {kl:.5f}", flush=True)
    return masks


def compare(chosen: argparse.Namespace, loaded: Any, python: Path) -> None:
    """Run everything, print a table, write the results."""
    prefix, each = chosen.prefix, round(chosen.budget * chosen.prefix)
    rules = [RULES[name] for name in chosen.rules.split(",")]
    length = prefix + QUERIES
    passages = first_passages(loaded, chosen.text, chosen.passages, length).passages
    found = {rule.name: Comparison() for rule in rules}
    presses = [press_for(rule.name, prefix, each) for rule in rules]
    ids = np.stack([passage.ids for passage in passages])
    theirs, masks = run_presses(python, loaded, ids, prefix, presses, {})
    own = measure_ours(loaded, rules, passages, prefix, each, found)
    for name, entry in found.items():
        entry.theirs, entry.kept_theirs = theirs[name]["kl"], theirs[name]["kept"]
        for number in range(len(passages)):
            both = own[f"{name} {number}"] & masks[f"{name} {number}"]
            entry.common.append(float(both.sum() / entry.kept[number]))
        for a, b in zip(entry.kept, entry.kept_theirs, strict=True):
            assert a == b, f"{name} keeps {a:,} tokens, kvpress' press {b:,}"
    show(found)
    if chosen.out:
        rows = {name: vars(entry) | {"ratio": entry.ratio} for name, entry in found.items()}
        about = conditions(chosen, theirs) | {"rules": rows}
        Path(chosen.out).write_text(json.dumps(about, indent=2) + "\n")


def show(found: dict[str, Comparison]) -> None:
    print("\n| rule | tokens in common | KL, ours | KL, kvpress | ratio |\n|---|---|---|---|---|")
    for name, entry in found.items():
        ours, theirs = (f"{np.mean(one):.5f}" for one in (entry.ours, entry.theirs))
        common = np.mean(entry.common)
        print(f"| {name} | {common:.4%} | {ours} | {theirs} | {entry.ratio:.4f} |")


def conditions(chosen: argparse.Namespace, theirs: dict[str, Any]) -> dict[str, Any]:
    """Under which conditions something was measured."""
    return {
        "model": MODEL,
        "text": Path(chosen.text).name,
        "prefix": chosen.prefix,
        "each": round(chosen.budget * chosen.prefix),
        "passages": chosen.passages,
        "kvpress": KVPRESS,
        "torch": torch.__version__,
        "transformers": transformers_module().__version__,
        "transformers_theirs": theirs["transformers"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--text", default="demo:docs", help="text of the passages")
    parser.add_argument("--passages", type=int, default=3)
    parser.add_argument("--prefix", type=int, default=2048, help="tokens that are compressed")
    parser.add_argument("--budget", type=float, default=0.25, help="share of them that is kept")
    parser.add_argument("--rules", default=",".join(RULES), help="names, with commas between")
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT)
    parser.add_argument("--out", default=str(RESULTS), help="file of the results; empty for none")
    chosen = parser.parse_args()
    python, loaded = other_python(chosen.environment), esscher.load_model(MODEL)
    with torch.no_grad():
        compare(chosen, loaded, python)


if __name__ == "__main__":
    sys.exit(main())
