"""Corpora on worker processes: the same bits as in this one, for a model by name and in memory."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from esscher.cli import main
from esscher.engine.models import ModelChoice, load_model, opened_model
from esscher.engine.models.choice import AnyModel
from esscher.runs.executors import Task
from esscher.runs.pool import LocalPool
from esscher.studies.domains import domains
from tests.engine.models.folders import WORDS, save
from tests.runs.stored import stored_bytes

OPTIONS = {
    "blocks": 6,
    "block_tokens": 120,
    "context": 40,
    "progress": False,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder and two texts."""
    folder = tmp_path_factory.mktemp("place")
    save(folder / "encoder")
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        (folder / f"{name}.txt").write_text(" ".join(rng.choice(WORDS, size=1500)))
    return folder


def test_the_same_bytes_on_workers(
    place: Path, pool: LocalPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {name: str(place / f"{name}.txt") for name in ("one", "two")}
    name = str(place / "encoder")
    domains(name, texts, out=tmp_path / "alone", **OPTIONS)
    domains(load_model(name), texts, out=tmp_path / "sent", executor=pool, **OPTIONS)

    def chosen(workers: int, **others: object) -> AbstractContextManager[LocalPool]:
        assert workers == 2
        return nullcontext(pool)

    monkeypatch.setattr("esscher.cli.study.chosen_executor", chosen)
    words = [f"--text={name}={path}" for name, path in texts.items()]
    words += [
        "--blocks=6",
        "--block-tokens=120",
        "--context=40",
        "--workers=2",
    ]
    done = CliRunner().invoke(main, ["domains", name, *words, "--out", str(tmp_path / "named")])
    assert done.exit_code == 0, done.output
    alone = stored_bytes(tmp_path / "alone")
    assert len(alone) == 2 * 6 * 2  # texts, blocks, files of a cell
    assert alone == stored_bytes(tmp_path / "sent") == stored_bytes(tmp_path / "named")


def where(model: AnyModel) -> tuple[int, int]:
    with opened_model(model) as loaded:
        return os.getpid(), id(loaded.model)


def test_a_worker_keeps_its_model(place: Path, pool: LocalPool) -> None:
    name = str(place / "encoder")
    for model in (name, load_model(name)):
        _, shipped = ModelChoice(model).for_tasks(pool.remote, False, pool.share)
        found = {
            place for _, place in pool.run([Task(f"{i}", where, (shipped,)) for i in range(9)])
        }
        assert len(found) == len({process for process, _ in found})
