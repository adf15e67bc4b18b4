"""Clouds that are larger than memory, or than the disk: layers in turn, resumed, bounded memory."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.engine.text import collect, collect_cloud, read_rows, seen_cloud, stored_layers
from esscher.studies.probe import clouds, probe
from tests.engine.text.test_passages import words
from tests.runs.stopped import stopped_at
from tests.studies.probe.test_probe import SMALL, tiny

Usage = namedtuple("Usage", "total used free")
TEXT = [words(2000)]
#: Quick: two layers, two heads.
OPTIONS = SMALL | {"layers": [0, 1], "heads": [0, 3], "replicates": 4}


@pytest.fixture
def large(monkeypatch):
    """Every cloud counts as large."""
    monkeypatch.setattr(clouds, "SMALL_CLOUD", 0)


@pytest.fixture
def readings(monkeypatch):
    """The layers of each batch that the model reads."""
    seen = []
    real = collect.run_captured

    def counted(loaded, ids, sink, *, layers):
        seen.append(tuple(layers))
        real(loaded, ids, sink, layers=layers)

    monkeypatch.setattr(collect, "run_captured", counted)
    return seen


def room_for(layers: float, loaded, monkeypatch):
    """A disk on which so many layers fit."""
    shape = loaded.shape
    size = 4 * SMALL["tokens"] * shape.head_dim * (2 + 2 * shape.key_heads)
    free = int(layers * size / clouds.SHARE) + 1
    monkeypatch.setattr(clouds.shutil, "disk_usage", lambda folder: Usage(0, 0, free))
    monkeypatch.setattr("esscher.engine.text.writer.MARGIN", 0)


def test_a_small_disk_takes_a_layer_at_a_time(large, readings, tmp_path, monkeypatch):
    loaded = tiny("llama")
    whole = probe(loaded, TEXT, **OPTIONS)
    assert set(readings) == {(0, 1)}
    readings.clear()
    room_for(1, loaded, monkeypatch)
    found = probe(loaded, TEXT, out=tmp_path / "run", **OPTIONS)
    assert list(dict.fromkeys(readings)) == [(0,), (1,)]
    assert found.results["heads"] == whole.results["heads"]
    assert not (tmp_path / "run" / clouds.CLOUD).exists()


def test_a_disk_without_room_for_one_layer(large, tmp_path, monkeypatch):
    loaded = tiny("llama")
    room_for(0.5, loaded, monkeypatch)
    with pytest.raises(InputError, match=r"tokens of one layer take .* choose fewer tokens"):
        probe(loaded, TEXT, out=tmp_path / "run", **OPTIONS)
    assert not (tmp_path / "run" / clouds.CLOUD).exists()


def test_a_stopped_run_goes_on_with_its_cloud(large, readings, tmp_path, monkeypatch):
    loaded = tiny("llama")
    whole = probe(loaded, TEXT, **OPTIONS)
    with stopped_at("layer-1"):
        probe(loaded, TEXT, out=tmp_path / "run", **OPTIONS)
    assert stored_layers(tmp_path / "run" / clouds.CLOUD) == [0, 1]
    readings.clear()
    # also when the disk has become too small for it, were it collected now
    room_for(0.5, loaded, monkeypatch)
    found = probe(loaded, TEXT, out=tmp_path / "run", **OPTIONS)
    assert not readings
    assert found.results["heads"] == whole.results["heads"]
    assert not (tmp_path / "run" / clouds.CLOUD).exists()


def test_a_cloud_that_is_half_collected_is_completed(large, readings, tmp_path, monkeypatch):
    loaded = tiny("llama")
    whole = probe(loaded, TEXT, **OPTIONS)
    batches = len(readings)
    counted = collect.run_captured

    def fails(*args, **options):
        if len(readings) == batches + 3:
            raise KeyboardInterrupt
        counted(*args, **options)

    monkeypatch.setattr(collect, "BATCH_TOKENS", 32)
    monkeypatch.setitem(collect.collect_cloud.__kwdefaults__, "batch_tokens", 32)
    with monkeypatch.context() as patch:
        patch.setattr(collect, "run_captured", fails)
        with pytest.raises(KeyboardInterrupt):
            probe(loaded, TEXT, out=tmp_path / "run", **OPTIONS)
    readings.clear()
    found = probe(loaded, TEXT, out=tmp_path / "run", **OPTIONS)
    assert 0 < len(readings) < len(TEXT[0].split()) / 32
    for mine, theirs in zip(found.heads, whole.heads, strict=True):
        # other batches, so other rounding in the model
        assert mine["horizon"] == pytest.approx(theirs["horizon"], rel=1e-4)


def test_a_worker_notices_that_the_cloud_is_another_one(tmp_path):
    loaded, folder = tiny("bert"), tmp_path / "cloud"
    for layer in (0, 1):
        collect_cloud(loaded, TEXT, tokens=100, context=32, layers=[layer], folder=folder)
        assert seen_cloud(str(folder)).layers == (layer,)
        assert seen_cloud(str(folder)) is seen_cloud(str(folder))
        clouds.shutil.rmtree(folder)
    with pytest.raises(InputError, match="does not see"):
        seen_cloud(str(folder))


#: A head whose arrays (460 MB, sparse files) are four times what the process may gain.
MEASURED = """
import resource, sys
import numpy as np
from esscher.engine.sampled import reference
from esscher.engine.text import LayerCloud, read_rows

reference.SUBSET = reference.COARSE = 64
arrays = [
    np.lib.format.open_memmap(f"{sys.argv[1]}/{kind}.npy", "w+", np.float32, (1, 600_000, 64))
    for kind in "qkv"
]
view = LayerCloud(0, (0,), (0,), 1, *(np.load(a.filename, mmap_mode="r") for a in arrays), 0.1,
                  None, None)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
found = reference.pooled_reference(view, np.random.default_rng(0))
assert found.received[0].shape == (600_000,)
rows = np.random.default_rng(0).integers(600_000, size=8_000)  # 64 kB each, were they kept
assert all(read_rows(array, rows).shape == (1, 8_000, 64) for array in (view.q, view.k, view.v))
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux counts it")
def test_memory_is_that_of_a_chunk(tmp_path):
    out = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    received = 8 * 600_000  # the one result that is as long as the text, and a copy of it
    assert float(out.stdout) * 1024 < 100e6 + 3 * received


def test_rows_of_a_sample_are_all_that_is_read(tmp_path, monkeypatch):
    """Sampling n of N on disk: the arrays are mapped, and let go of."""
    cloud = collect_cloud(tiny("bert"), TEXT, tokens=300, context=32, folder=tmp_path / "cloud")
    view = cloud.layer(0)
    rows = cloud.sample_rows(200, 3, replace=True)
    before = np.array(view.k[:, rows])
    view.let_go()
    np.testing.assert_array_equal(view.k[:, rows], before)
    np.testing.assert_array_equal(read_rows(view.k, rows), before)
    monkeypatch.setattr("esscher.engine.text.cloud.ROWS_AT_A_TIME", 7)
    np.testing.assert_array_equal(read_rows(view.k, rows), before)
    np.testing.assert_array_equal(read_rows(view.k[1], rows), before[1])
