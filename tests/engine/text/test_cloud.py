"""Token clouds on disk: the right rows, in bounded memory, continued after an interruption."""

from __future__ import annotations

import gc
import shutil
from collections import namedtuple

import numpy as np
import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.models.capture import capturing
from esscher.engine.models.loaded import wrap_model
from esscher.engine.text import collect as cloud_writer
from esscher.engine.text.cloud import cloud_bytes, open_cloud, read_rows, seen_cloud
from esscher.engine.text.collect import collect_cloud
from esscher.engine.text.packing import read_passages
from tests.engine.models.folders import encoder_tokenizer, tiny, words
from tests.engine.models.tiny import tiny_model

CONTEXT = 12
TOKENS = 95


def expected(loaded, text, tokens, drop=True):
    """q, k and v of the first tokens, passage by passage, straight from the model."""
    rows = {}
    for passage in read_passages(loaded, text, tokens=tokens, context=CONTEXT):
        keep = ~passage.is_delimiter if drop else np.ones(len(passage.ids), bool)
        seen = []
        with capturing(loaded, seen.append), torch.no_grad():
            loaded.model(input_ids=torch.from_numpy(passage.ids)[None])
        for capture in seen:
            for kind in "qkv":
                part = getattr(capture, kind)[0].numpy()[:, keep]
                rows.setdefault((capture.layer, kind), []).append(part)
    return {key: np.concatenate(parts, axis=1)[:, :tokens] for key, parts in rows.items()}


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_rows_are_those_of_the_model(request, name, drop):
    loaded = request.getfixturevalue(name)
    text = [words(200)]
    cloud = collect_cloud(
        loaded, text, tokens=TOKENS, context=CONTEXT, drop_delimiters=drop, batch_tokens=30
    )
    right = expected(loaded, text, TOKENS, drop)
    assert cloud.rows == TOKENS
    assert cloud.layers == (0, 1, 2)
    assert cloud.heads == (0, 1, 2, 3)
    group = loaded.shape.heads // loaded.shape.key_heads
    for layer in cloud.layers:
        for h in cloud.heads:
            q, k, v = cloud.layer(layer).head(h)
            assert q.shape == (TOKENS, 8)
            np.testing.assert_allclose(q, right[layer, "q"][h], atol=1e-4)
            np.testing.assert_allclose(k, right[layer, "k"][h // group], atol=1e-4)
            np.testing.assert_allclose(v, right[layer, "v"][h // group], atol=1e-4)
            assert cloud.layer(layer).scaling == pytest.approx(8**-0.5)


def test_tokens_of_the_rows(bert):
    cloud = collect_cloud(bert, [words(200)], tokens=TOKENS, context=CONTEXT, layers=[0])
    ids = bert.tokenizer(words(200), add_special_tokens=False)["input_ids"]
    np.testing.assert_array_equal(cloud.token_ids, ids[:TOKENS])
    np.testing.assert_array_equal(cloud.passage, np.arange(TOKENS) // 10)
    kept = collect_cloud(
        bert, [words(200)], tokens=30, context=CONTEXT, layers=[0], drop_delimiters=False
    )
    np.testing.assert_array_equal(kept.passage, np.arange(30) // 12)


def test_some_layers_and_heads(llama, tmp_path):
    whole = collect_cloud(llama, [words(100)], tokens=50, context=CONTEXT)
    some = collect_cloud(
        llama, [words(100)], tokens=50, context=CONTEXT, layers=[1], heads=[3], folder=tmp_path
    )
    assert (some.layers, some.heads) == ((1,), (3,))
    for part, same in zip(some.layer(1).head(3), whole.layer(1).head(3), strict=True):
        np.testing.assert_array_equal(part, same)
    assert some.layer(1).k.shape == (1, 50, 8)
    size = cloud_bytes(rows=50, layers=1, heads=1, key_heads=1, head_dim=8)
    arrays = sum(path.stat().st_size for path in tmp_path.glob("layer-*.npy"))
    assert size == 4 * 50 * 8 * 3
    assert size < arrays < size + 3 * 200
    with pytest.raises(InputError, match="no layer 0; it holds 1"):
        some.layer(0)
    with pytest.raises(InputError, match="no head 2; it holds 3"):
        some.layer(1).head(2)


def test_layers_behind_the_last_one_are_not_computed(bert):
    calls = []
    handles = [
        block.register_forward_hook(lambda *_, i=i: calls.append(i))
        for i, block in enumerate(bert.family.blocks(bert.model))
    ]
    collect_cloud(bert, [words(20)], tokens=10, context=CONTEXT, layers=[1])
    for handle in handles:
        handle.remove()
    assert set(calls) == {0}


def interrupt(after):
    def stop(done, total):
        if done >= after:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("after", [1, 9])
def test_continued_after_an_interruption(bert, tmp_path, after):
    options = {"tokens": TOKENS, "context": CONTEXT, "batch_tokens": 24}
    whole = collect_cloud(bert, [words(200)], **options)
    with pytest.raises(KeyboardInterrupt):
        collect_cloud(
            bert, [words(200)], folder=tmp_path / "c", progress=interrupt(after), **options
        )
    if after < 9:
        with pytest.raises(InputError, match=r"not finished \(\d of 10 passages\)"):
            open_cloud(tmp_path / "c")
    steps = []
    cloud = collect_cloud(
        bert, [words(200)], folder=tmp_path / "c", progress=lambda *x: steps.append(x), **options
    )
    assert all(done > after for done, _ in steps)
    for layer in cloud.layers:
        for kind in "qkv":
            np.testing.assert_array_equal(
                getattr(cloud.layer(layer), kind), getattr(whole.layer(layer), kind)
            )
    again = open_cloud(tmp_path / "c")
    np.testing.assert_array_equal(again.token_ids, whole.token_ids)


def test_every_passage_is_watched_when_continued(bert, tmp_path):
    options = {"tokens": TOKENS, "context": CONTEXT, "batch_tokens": 24, "folder": tmp_path / "c"}
    with pytest.raises(KeyboardInterrupt):
        collect_cloud(bert, [words(200)], progress=interrupt(2), **options)
    seen = []

    def watch(passages, inputs):
        seen.extend((passage.number, inputs.layer) for passage in passages)

    for times in (1, 2):  # continued, and finished already
        collect_cloud(bert, [words(200)], **options, watch=watch)
        assert sorted(seen) == sorted(times * [(i, layer) for i in range(10) for layer in range(3)])
    collect_cloud(bert, [words(200)], progress=interrupt(0), **options)  # nothing left to compute


def test_continued_after_a_kill(bert, tmp_path, monkeypatch):
    """Nothing recorded, files there: everything is written once more."""
    options = {"tokens": TOKENS, "context": CONTEXT, "batch_tokens": 24, "folder": tmp_path / "c"}
    with monkeypatch.context() as patch:
        patch.setattr(cloud_writer.CloudWriter, "record", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            collect_cloud(bert, [words(200)], progress=interrupt(4), **options)
    (tmp_path / "c" / "layer-002-v.npy").rename(tmp_path / "c" / "layer-002-v.npy.tmp")
    cloud = collect_cloud(bert, [words(200)], **options)
    right = expected(bert, [words(200)], TOKENS)
    np.testing.assert_allclose(cloud.layer(2).v, right[2, "v"], atol=1e-4)


def test_damaged_arrays(bert, tmp_path):
    options = {"tokens": TOKENS, "context": CONTEXT, "folder": tmp_path}
    cloud = collect_cloud(bert, [words(200)], **options)
    path = tmp_path / "layer-001-k.npy"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match=r"layer-001-k\.npy is missing or damaged"):
        cloud.layer(1)
    with pytest.raises(InputError, match="is missing or damaged"):
        collect_cloud(bert, [words(200)], **options)
    np.save(path, np.zeros((2, 3)))
    with pytest.raises(InputError, match="its shape is"):
        collect_cloud(bert, [words(200)], **options)
    (tmp_path / "token_ids.npy").unlink()
    with pytest.raises(InputError, match="missing or damaged"):
        _ = cloud.token_ids


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"tokens": TOKENS + 1}, "passages|rows"),
        ({"context": 14}, "passages"),
        ({"layers": [0]}, "layers"),
        ({"heads": [0]}, "heads"),
        ({"drop_delimiters": False}, "passages|drop_delimiters"),
        ({"source": [words(199)]}, "text_hash"),
        ({"loaded": "other"}, "weight_hash"),
    ],
)
def test_a_folder_with_another_cloud(bert, tmp_path, change, key):
    options = {"loaded": bert, "source": [words(200)], "tokens": TOKENS, "context": CONTEXT}
    collect_cloud(**options, folder=tmp_path)
    if "loaded" in change:
        other = tiny_model("bert", strength=10.0).model
        change = {"loaded": wrap_model(other, encoder_tokenizer(), name=bert.name)}
    with pytest.raises(InputError, match=f"holds a cloud with another ({key})"):
        collect_cloud(**{**options, **change}, folder=tmp_path)


def test_a_folder_with_something_else(bert, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        collect_cloud(bert, [words(200)], tokens=20, context=CONTEXT, folder=tmp_path)
    with pytest.raises(InputError, match="does not hold a token cloud"):
        open_cloud(tmp_path)
    with pytest.raises(InputError, match="cannot make the folder"):
        collect_cloud(
            bert, [words(200)], tokens=20, context=CONTEXT, folder=tmp_path / "precious.txt" / "x"
        )


def test_a_disk_that_is_too_small_or_fills_up(bert, tmp_path, monkeypatch):
    options = {"tokens": 20, "context": CONTEXT, "folder": tmp_path / "c"}
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, 10**6))
        with pytest.raises(InputError, match=r"needs 0\.0 GB, but .* has only 0\.0 GB left"):
            collect_cloud(bert, [words(200)], **options)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cloud_writer.os, "pwrite", full)
        with pytest.raises(InputError, match="No space left on device; make room"):
            collect_cloud(bert, [words(200)], **options)
    assert collect_cloud(bert, [words(200)], **options).rows == 20


def test_a_temporary_folder_goes_with_the_cloud(bert):
    cloud = collect_cloud(bert, [words(20)], tokens=10, context=CONTEXT)
    folder, view = cloud.folder, cloud.layer(0).head(0)[0]
    assert folder.exists()
    before = np.array(view)
    del cloud
    gc.collect()
    assert not folder.exists()
    np.testing.assert_array_equal(view, before)


def test_a_temporary_folder_goes_with_a_failure(bert, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        collect_cloud(bert, [words(20)], tokens=10, context=CONTEXT, progress=interrupt(0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"tokens": 300}, "has only 200 tokens"),
        ({"layers": [5]}, "layers contains 5"),
        ({"context": 1000}, "reads at most 80"),
    ],
)
def test_bad_options(bert, options, message):
    with pytest.raises(InputError, match=message):
        collect_cloud(bert, [words(200)], **{"tokens": 20, "context": CONTEXT, **options})


def test_a_worker_notices_that_the_cloud_is_another_one(tmp_path):
    loaded, folder = tiny("bert"), tmp_path / "cloud"
    for layer in (0, 1):
        collect_cloud(loaded, [words(2000)], tokens=100, context=32, layers=[layer], folder=folder)
        assert seen_cloud(str(folder)).layers == (layer,)
        assert seen_cloud(str(folder)) is seen_cloud(str(folder))
        shutil.rmtree(folder)
    with pytest.raises(InputError, match=r"does not see .*let --out be a directory"):
        seen_cloud(str(folder))


def test_rows_of_a_sample_are_all_that_is_read(tmp_path):
    """Sampling n of N on disk: the arrays are mapped, and let go of."""
    folder = tmp_path / "cloud"
    cloud = collect_cloud(tiny("bert"), [words(2000)], tokens=300, context=32, folder=folder)
    view = cloud.layer(0)
    rows = np.random.default_rng(3).integers(300, size=2000)
    before = np.array(view.k[:, rows])
    view.let_go()
    np.testing.assert_array_equal(view.k[:, rows], before)
    np.testing.assert_array_equal(read_rows(view.k, rows), before)
    np.testing.assert_array_equal(read_rows(view.k[1], rows), before[1])
