"""Do our versions of published rules do what those of kvpress do? Both run on the same tokens.

    python -m benchmarks.kvpress --text BOOK.txt              # all rules, 3 passages, 25%
    python -m benchmarks.kvpress --text BOOK.txt --rules snapkv,adakv --prefix 512
    python -m benchmarks.kvpress --text BOOK.txt --lukv budgets.npy   # budgets of a plan

kvpress needs an older transformers: it gets an environment of its own (made in ``.kvpress`` when it
is first needed; ``--environment`` names another folder), the weights and the tokens. Compared are
the tokens that are kept, and the divergence of the next 128 next-token laws from the dense ones,
each measured in its own environment.

``--lukv`` is about plans in kvpress instead. It hands a file of budgets, as
``plan.export("budgets.npy")`` writes it, to kvpress' LUKVPress over several scorers, and compares
it with the equal budgets of each scorer and with AdaKV over it, all of them inside kvpress.

Results go to benchmarks/results/kvpress.json.
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
from esscher.core.errors import InputError
from esscher.engine.cache.budgets import keeping_for
from esscher.engine.cache.cache import ObservedPrompt
from esscher.engine.cache.published import RULES, Rule
from esscher.engine.cache.storage import Kept
from esscher.engine.models.transformers_library import transformers_module
from esscher.engine.reading import PassageReader, compare_laws
from esscher.engine.text.packing import first_passages
from esscher.studies.plan.check import paired_ratio

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "kvpress.json"
MODEL = "demo:smollm2"
#: Tokens after the prefix; the last one's successor is unknown.
QUERIES = 129
#: Parts of the results.
PARTS = ("rules", "exported")
#: Scorers over which budgets of a plan are tried.
SCORERS = ("snapkv", "expected")


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


def press_for(rule: Rule, prefix: int, each: int) -> dict[str, Any]:
    """Describe the press of a rule; presses take ratios, and round them down."""
    ratio = 1 - (each + 0.5) / prefix
    if rule.name == "kvzip":  # which rounds what is dropped in all heads together
        ratio = 1 - each / prefix + 1e-9
    return {"name": rule.name, "kind": rule.name, "ratio": ratio}


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
    presses = [press_for(rule, prefix, each) for rule in rules]
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
        about = conditions(chosen, theirs)
        rows = {name: vars(entry) | {"ratio": entry.ratio} for name, entry in found.items()}
        store(Path(chosen.out), about, "rules", rows)


def store(path: Path, about: dict[str, Any], part: str, rows: dict[str, Any]) -> None:
    """Write the results of one part; what was measured under the same conditions stays."""
    before = json.loads(path.read_text()) if path.exists() else {}
    parts = {name: before.pop(name) for name in PARTS if name in before}
    if before != about:
        parts = {}
    parts[part] = parts.get(part, {}) | rows
    path.write_text(json.dumps(about | parts, indent=2) + "\n")


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


def exported_presses(prefix: int, each: int) -> list[dict[str, Any]]:
    """Presses with given budgets, and what they are compared with, for every scorer."""
    presses = []
    for scorer in SCORERS:
        presses.append(
            {
                "name": f"plan:{scorer}",
                "kind": "lukv",
                "scorer": scorer,
                "ratio": 1 - each / prefix,
                "curves": "plan.npy",
            }
        )
        for kind, name in ((scorer, scorer), ("adakv", f"adakv:{scorer}")):
            ratio = 1 - (each + 0.5) / prefix
            presses.append({"name": name, "kind": kind, "scorer": scorer, "ratio": ratio})
    return presses


def compare_exported(chosen: argparse.Namespace, loaded: Any, python: Path) -> None:
    """Budgets of a plan inside kvpress, beside equal ones and AdaKV's; print and write a table.

    Raises
    ------
    InputError
        If the budgets are those of another model, or of another share of the tokens.
    """
    curves, prefix = np.load(chosen.lukv), chosen.prefix
    each, heads = round(chosen.budget * prefix), loaded.shape.layers * loaded.shape.key_heads
    expected = (99, loaded.shape.layers, loaded.shape.key_heads)
    if curves.shape != expected:
        raise InputError(f"budgets for LUKVPress have shape {expected}, not {curves.shape}")
    row = curves[round(100 * (1 - chosen.budget)) - 1]
    if np.isnan(row).any():
        raise InputError(f"{chosen.lukv} has no budgets for {chosen.budget:.0%} of the tokens")
    passages = first_passages(loaded, chosen.text, chosen.passages, prefix + QUERIES).passages
    ids = np.stack([passage.ids for passage in passages])
    presses = exported_presses(prefix, each)
    found, _ = run_presses(python, loaded, ids, prefix, presses, {"plan.npy": curves})
    rows = {}
    print("\n| press | KL | tokens of a key head | over the plan's budgets |\n|---|---|---|---|")
    for press in presses:
        name, scorer = press["name"], press["scorer"]
        kl, kept = found[name]["kl"], found[name]["kept"]
        # shares of a file are rounded in every head
        assert all(abs(tokens - each * heads) <= heads for tokens in kept), (name, kept)
        ratio = paired_ratio(np.array(kl), np.array(found[f"plan:{scorer}"]["kl"])).tolist()
        interval = None if ratio[1] != ratio[1] else tuple(ratio[1:])
        rows[name] = {"kl": kl, "kept": kept, "ratio": ratio[0], "interval": interval}
        over = (
            "" if name.startswith("plan") else f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})"
        )
        print(f"| {name} | {np.mean(kl):.5f} | {np.mean(kept) / heads:.1f} | {over} |")
    if chosen.out:
        store(Path(chosen.out), conditions(chosen, found), "exported", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--text", default="demo:docs", help="text of the passages")
    parser.add_argument("--passages", type=int, default=3)
    parser.add_argument("--prefix", type=int, default=2048, help="tokens that are compressed")
    parser.add_argument("--budget", type=float, default=0.25, help="share of them that is kept")
    parser.add_argument("--rules", default=",".join(RULES), help="names, with commas between")
    parser.add_argument("--lukv", help="a file of budgets, from plan.export")
    parser.add_argument("--environment", type=Path, default=ROOT / ".kvpress")
    parser.add_argument("--out", default=str(RESULTS), help="file of the results; empty for none")
    chosen = parser.parse_args()
    python, loaded = other_python(chosen.environment), esscher.load_model(MODEL)
    with torch.no_grad():
        run = compare if chosen.lukv is None else compare_exported
        run(chosen, loaded, python)


if __name__ == "__main__":
    sys.exit(main())
