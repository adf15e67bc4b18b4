"""What is put under load: a sweep, and a run made of cells; each with an uninterrupted twin."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from esscher.runs.registry import load
from tests.engine.models.folders import WORDS, decoder_tokenizer
from tests.engine.models.tiny import tiny_model


@dataclass(frozen=True)
class Subject:
    """A command whose run is put under load.

    Attributes
    ----------
    words
        The command, without the place of its run.
    kind
        What ``esscher ls`` calls its runs.
    part
        Pattern of the files that say that a part is there.
    workers
        Whether it takes ``--workers``.
    modules
        What to import before its processes are forked.
    numbers
        Makes of a run, by the name of each part, a fingerprint of what was measured: equal if and
        only if all numbers are, to the bit.
    """

    words: tuple[str, ...]
    kind: str
    part: str
    workers: bool
    modules: tuple[str, ...]
    numbers: Callable[[Path, Sequence[str]], dict[str, str]]

    def command(self, folder: Path, workers: int = 1) -> list[str]:
        """The words of the command line."""
        more = ["--workers", str(workers)] if workers > 1 else []
        return [*self.words, *more, "--out", str(folder)]

    def parts(self, folder: Path) -> list[str]:
        """Names of the parts that are there."""
        return sorted(path.name for path in (folder / "parts").glob(self.part))

    def files(self, folder: Path) -> dict[str, str]:
        """Checksum of every file that belongs to a part that is there, by name."""
        stems = {name.rsplit(".", 1)[0] for name in self.parts(folder)}
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((folder / "parts").iterdir())
            if path.stem in stems and not path.name.startswith(".")
        }


def a_sweep(replicates: int) -> Subject:
    """A sweep whose replicates take about 30 ms each."""
    words = "sweep gaussian --dim 4 --horizon 1 --sizes 50,2000 --seed 7 --no-predict --replicates"
    return Subject(
        (*words.split(), str(replicates)), "sweep", "replicate-*.json", True, (), _sweep_numbers
    )


def a_probe(folder: Path, passages: int) -> Subject:
    """A probe of a tiny decoder, one cell per passage."""
    tiny_model("llama", max_position_embeddings=256).model.save_pretrained(folder / "model")
    decoder_tokenizer().save_pretrained(folder / "model")
    rng = np.random.default_rng(0)
    (folder / "text.txt").write_text(" ".join(rng.choice(WORDS, size=96 * (passages + 2))))
    words = (
        f"probe {folder}/model --text {folder}/text.txt --mode context --context 96 --tokens "
        f"{96 * passages} --sizes 8:32:3 --replicates 4 --layers 1 --heads 0"
    )
    modules = ("esscher.studies.probe", "transformers", "transformers.models.llama.modeling_llama")
    return Subject(tuple(words.split()), "probe", "*.json", False, modules, _cell_bytes)


def results(folder: Path) -> dict[str, Any]:
    """Derived results of a run, without what differs from run to run: dates."""
    found: dict[str, Any] = json.loads((folder / "results.json").read_bytes())
    found.pop("created", None)
    return found


def _sweep_numbers(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Parts also hold the seconds they took; so the errors are compared, not the files."""
    swept = load(folder)
    raw = np.stack(list(swept.errors.values()))
    found = {
        f"replicate-{number:06d}.json": hashlib.sha256(raw[:, :, place].tobytes()).hexdigest()
        for place, number in enumerate(swept.numbers)
    }
    return {name: found[name] for name in names}


def _cell_bytes(folder: Path, names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        pair = [folder / "parts" / name, (folder / "parts" / name).with_suffix(".parquet")]
        found[name] = hashlib.sha256(b"".join(path.read_bytes() for path in pair)).hexdigest()
    return found
