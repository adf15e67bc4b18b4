"""An environment for kvpress, which needs an older transformers: making it, and running in it."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

RUNNER = Path(__file__).parent / "kvpress_runner.py"
KVPRESS = "0.5.5"
#: Installed one after the other: torch first, and then nothing may replace it.
PACKAGES = (["torch==2.13.0"], [f"kvpress=={KVPRESS}", "torch==2.13.0", "transformers<5.3"])


def other_python(folder: Path) -> Path:
    """The Python of kvpress' environment, which is made if it is not there."""
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    ready = folder / "kvpress-installed"
    if not ready.exists():
        print(f"making an environment for kvpress {KVPRESS} in {folder}", flush=True)
        venv.create(folder, with_pip=True)
        for packages in PACKAGES:
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        ready.touch()
    return python


def hand_over(loaded: Any, folder: Path) -> None:
    """Write a model so that an older transformers can load it.

    Weights are written as they are in memory, not as they were stored. A chat template would make
    KVzip repeat the prompt as part of a conversation, which it is not here.
    """
    fields = loaded.model.config.to_dict()
    fields.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(fields))
    weights = dict(loaded.model.state_dict())
    if loaded.model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    tensors = {name: tensor.contiguous().clone() for name, tensor in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)


def run_presses(
    python: Path,
    loaded: Any,
    ids: np.ndarray,
    prefix: int,
    presses: list[dict[str, Any]],
    arrays: dict[str, np.ndarray],
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Run presses in the other environment: divergences and numbers kept, and masks of tokens."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model"
        model.mkdir()
        hand_over(loaded, model)
        np.save(folder / "ids.npy", ids)
        for file, array in arrays.items():
            np.save(folder / file, array)
        job = {"model": str(model), "prefix": prefix, "presses": presses, "kvpress": KVPRESS}
        (folder / "job.json").write_text(json.dumps(job))
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
        environment.pop("PYTHONPATH", None)
        # -P: this file has the name of the package, and lies beside the runner
        subprocess.run([python, "-P", RUNNER, folder], check=True, env=environment)
        with np.load(folder / "kept.npz") as masks:
            return json.loads((folder / "found.json").read_text()), dict(masks)
