"""Every command that runs cells, on a worker and here: the stored cells are the same, byte by byte.

The driver here computes with as many threads as the machine has cores, the worker with one.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from esscher.cli import main
from esscher.core.errors import InputError
from esscher.engine.models.choice import ModelChoice, opened_model
from esscher.engine.models.load import load_model
from esscher.runs.executors import Cluster, Task, connected
from esscher.studies.domains import domains
from tests.engine.models.folders import WORDS, decoder_tokenizer, save
from tests.engine.models.tiny import tiny_model
from tests.runs.processes import Machines, machines
from tests.runs.stored import stored_bytes


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder, a tiny decoder, and two texts."""
    folder = tmp_path_factory.mktemp("place")
    save(folder / "encoder")
    tiny_model("llama", max_position_embeddings=256).model.save_pretrained(folder / "decoder")
    decoder_tokenizer().save_pretrained(folder / "decoder")
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        (folder / f"{name}.txt").write_text(" ".join(rng.choice(WORDS, size=1500)))
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    """A cluster with one worker."""
    with machines(tmp_path_factory.mktemp("machines")) as found:
        found.scheduler()
        found.worker()
        yield found


#: Options by name of the test; {} is the place of models and texts.
COMMANDS = {
    "probe": "probe {}/encoder --text {}/one.txt --tokens 300 --context 40 --sizes 8:32:3"
    " --replicates 4",
    "sparse": "sparse {}/decoder --text {}/one.txt --context 96 --passages 2 --budgets 8:32:3",
    "deep": "deep {}/decoder --text {}/one.txt --context 96 --passages 2 --sizes 8,24",
    "plan": "plan {}/decoder --text {}/one.txt --check {}/two.txt --budget 0.5 --prefix 96"
    " --passages 2 --check-passages 2",
    "context": "context {}/decoder --text {}/one.txt --context 128 --passages 3",
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "probe" else pytest.mark.slow) for n in COMMANDS]
)
def test_the_same_bytes_here_and_there(
    name: str, place: Path, cluster: Machines, tmp_path: Path
) -> None:
    words = COMMANDS[name].replace("{}", str(place)).split()
    found = {}
    for where, more in (("here", []), ("there", ["--scheduler", cluster.address])):
        out = tmp_path / where
        done = CliRunner().invoke(main, [*words, "--out", str(out), *more])
        assert done.exit_code == 0, done.output
        found[where] = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (out / "parts").iterdir()
        }
    assert found["here"] == found["there"]
    assert found["here"]
    assert not list((tmp_path / "there").glob("cloud*"))


def layers_of(model: ModelChoice) -> int:
    with opened_model(model) as loaded:
        return loaded.shape.layers


def test_other_weights_on_the_worker_are_refused(place: Path, cluster: Machines) -> None:
    name = str(place / "encoder")
    how = ("cpu", "float32", None, False, False)
    with connected(cluster.address) as executor:
        wrong = ModelChoice(name, *how, weight_hash="0" * 64)
        with pytest.raises(InputError, match="has other weights on the worker on"):
            _run(executor, wrong)
        missing = ModelChoice(str(place / "none"), *how, weight_hash="0" * 64)
        with pytest.raises(InputError, match=r"the worker on .*none"):
            _run(executor, missing)


def _run(cluster: Cluster, model: ModelChoice) -> None:
    dict(cluster.run([Task("a", layers_of, (model,))]))


def test_a_model_in_memory_is_shared_with_workers(
    place: Path, cluster: Machines, tmp_path: Path
) -> None:
    loaded = load_model(str(place / "encoder"))
    texts = {name: str(place / f"{name}.txt") for name in ("one", "two")}
    found = []
    with connected(cluster.address) as executor:
        for where, chosen in (("here", None), ("there", executor)):
            out = tmp_path / where
            small = {"blocks": 6, "block_tokens": 120, "context": 40, "progress": False}
            domains(loaded, texts, **small, out=out, executor=chosen)
            found.append(stored_bytes(out))
    assert found[0] == found[1]
