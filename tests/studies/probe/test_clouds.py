"""Clouds that are larger than the disk: layers in turn."""

from __future__ import annotations

from collections import namedtuple

import pytest

from esscher.core.errors import InputError
from esscher.studies.probe import measure, probe
from tests.engine.models.folders import tiny, words
from tests.studies.probe.sizes import SMALL, same_numbers

Usage = namedtuple("Usage", "total used free")
TEXT = [words(2000)]
#: Quick: two layers, two heads.
OPTIONS = SMALL | {"mode": "pooled", "layers": [0, 1], "heads": [0, 3], "replicates": 4}


@pytest.fixture
def large(monkeypatch):
    """Every cloud counts as large."""
    monkeypatch.setattr(measure, "SMALL_CLOUD", 0)


@pytest.fixture
def readings(monkeypatch):
    """The layers of each batch that is read into a cloud."""
    seen, collect_cloud = [], measure.collect_cloud

    def counted(*arguments, layers, **options):
        seen.append(tuple(layers))
        return collect_cloud(*arguments, layers=layers, **options)

    monkeypatch.setattr(measure, "collect_cloud", counted)
    return seen


def room_for(layers: float, loaded, monkeypatch):
    """A disk on which so many layers fit."""
    shape = loaded.shape
    size = 4 * SMALL["tokens"] * shape.head_dim * (2 + 2 * shape.key_heads)
    free = int(layers * size / measure.SHARE) + 1
    monkeypatch.setattr(measure.shutil, "disk_usage", lambda folder: Usage(0, 0, free))
    monkeypatch.setattr("esscher.engine.text.collect.MARGIN", 0)


def test_a_small_disk_takes_a_layer_at_a_time(large, readings, tmp_path, monkeypatch):
    loaded = tiny("llama")
    roomy = probe(loaded, TEXT, **OPTIONS)
    assert readings == [(0, 1)]
    readings.clear()
    room_for(1, loaded, monkeypatch)
    result = probe(loaded, TEXT, out=tmp_path / "run", **OPTIONS)
    assert readings == [(0,), (1,)]
    same_numbers(result.data, roomy.data)
    assert not (tmp_path / "run" / measure.CLOUD).exists()


def test_a_disk_without_room_for_one_layer(large, tmp_path, monkeypatch):
    loaded = tiny("llama")
    room_for(0.5, loaded, monkeypatch)
    with pytest.raises(InputError, match=r"tokens of one layer take .* choose fewer tokens"):
        probe(loaded, TEXT, out=tmp_path / "run", **OPTIONS)
    assert not (tmp_path / "run" / measure.CLOUD).exists()
