"""Token clouds on disk: the right rows, in bounded memory, with room for them."""

from __future__ import annotations

import gc
import shutil
from collections import namedtuple

import numpy as np
import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.text import collect
from esscher.engine.text.collect import cloud_bytes, collect_cloud, read_rows
from esscher.engine.text.packing import read_passages
from tests.engine.models.folders import words
from tests.engine.models.tiny import captured

CONTEXT, TOKENS = 12, 95


def read(loaded, count=200):
    return read_passages(loaded, [words(count)], tokens=min(count, TOKENS), context=CONTEXT)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_rows_are_those_of_the_model(request, name, monkeypatch):
    monkeypatch.setattr(collect, "BATCH_TOKENS", 30)
    loaded = request.getfixturevalue(name)
    passages, seen, steps = read(loaded), [], []
    cloud = collect_cloud(
        loaded,
        passages,
        tokens=TOKENS,
        progress=lambda *step: steps.append(step),
        watch=lambda batch, inputs: seen.extend((p.number, inputs.layer) for p in batch),
    )
    assert (cloud.rows, cloud.layers, cloud.heads) == (TOKENS, (0, 1, 2), (0, 1, 2, 3))
    assert sorted(seen) == [(i, layer) for i in range(len(passages)) for layer in range(3)]
    assert steps[-1] == (len(passages), len(passages))
    rows = {}
    for passage in passages:
        for layer in captured(loaded, {"input_ids": torch.from_numpy(passage.ids)[None]})[0]:
            for kind in "qkv":
                part = getattr(layer, kind)[0].numpy()[:, ~passage.is_delimiter]
                rows.setdefault((layer.layer, kind), []).append(part)
    right = {key: np.concatenate(parts, axis=1)[:, :TOKENS] for key, parts in rows.items()}
    group = loaded.shape.heads // loaded.shape.key_heads
    for layer in cloud.layers:
        assert cloud.layer(layer).scaling == pytest.approx(8**-0.5)
        for h in cloud.heads:
            for kind, part in zip("qkv", cloud.layer(layer).head(h), strict=True):
                head = h if kind == "q" else h // group
                np.testing.assert_allclose(part, right[layer, kind][head], atol=1e-4)


def test_tokens_of_the_rows(bert):
    cloud = collect_cloud(bert, read(bert), tokens=TOKENS, layers=[0])
    ids = bert.tokenizer(words(200), add_special_tokens=False)["input_ids"]
    np.testing.assert_array_equal(cloud.token_ids, ids[:TOKENS])
    np.testing.assert_array_equal(cloud.passage, np.arange(TOKENS) // 10)


def test_some_layers_and_heads(llama, tmp_path):
    whole = collect_cloud(llama, read(llama), tokens=50)
    some = collect_cloud(llama, read(llama), tokens=50, layers=[1], heads=[3], folder=tmp_path)
    for part, same in zip(some.layer(1).head(3), whole.layer(1).head(3), strict=True):
        np.testing.assert_array_equal(part, same)
    assert some.layer(1).k.shape == (1, 50, 8)
    size = cloud_bytes(rows=50, layers=1, heads=1, key_heads=1, head_dim=8)
    arrays = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size == 4 * 50 * 8 * 3
    assert size < arrays < size + 3 * 200


def test_layers_behind_the_last_one_are_not_computed(bert):
    calls = []
    handles = [
        block.register_forward_hook(lambda *_, i=i: calls.append(i))
        for i, block in enumerate(bert.family.blocks(bert.model))
    ]
    collect_cloud(bert, read(bert, 20), tokens=10, layers=[1])
    for handle in handles:
        handle.remove()
    assert set(calls) == {0}


def test_a_disk_that_is_too_small_or_fills_up(bert, tmp_path, monkeypatch):
    options = {"tokens": 20, "folder": tmp_path / "c"}
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, 10**6))
        with pytest.raises(InputError, match=r"needs 0\.0 GB, but .* has only 0\.0 GB left"):
            collect_cloud(bert, read(bert), **options)

    def full(*_):
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="No space left on device; make room"):
        collect_cloud(bert, read(bert), watch=full, **options)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write to"):
        collect_cloud(bert, read(bert), tokens=20, folder=tmp_path / "file")


def test_a_temporary_folder_goes_with_the_cloud(bert, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cloud = collect_cloud(bert, read(bert, 20), tokens=10)
    folder, view = cloud.folder, cloud.layer(0).head(0)[0]
    before = np.array(view)
    del cloud
    gc.collect()
    assert not folder.exists()
    np.testing.assert_array_equal(view, before)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_cloud(bert, read(bert, 20), tokens=10, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_a_machine_that_does_not_see_the_cloud(bert, tmp_path):
    cloud = collect_cloud(bert, read(bert), tokens=20, folder=tmp_path / "c")
    shutil.rmtree(tmp_path / "c")
    with pytest.raises(InputError, match=r"does not see .*let --out be a directory"):
        cloud.layer(0)


def test_rows_of_a_sample_are_all_that_is_read(bert):
    """Sampling n of N on disk: the arrays are mapped, and let go of."""
    view = collect_cloud(bert, read(bert), tokens=TOKENS).layer(0)
    rows = np.random.default_rng(3).integers(TOKENS, size=2000)
    before = np.array(view.k[:, rows])
    view.let_go()
    np.testing.assert_array_equal(view.k[:, rows], before)
    np.testing.assert_array_equal(read_rows(view.k, rows), before)
    np.testing.assert_array_equal(read_rows(view.k[1], rows), before[1])
