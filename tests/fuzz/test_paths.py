"""Links, pipes and names that lead elsewhere: nothing outside is read, written or waited for."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import esscher
from esscher.core.atomic import write_atomically
from esscher.core.errors import InputError
from esscher.engine.models.load import load_model
from esscher.engine.text.documents import read_text
from tests.engine.models.folders import save

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs links and pipes")


@pytest.fixture
def outside(tmp_path) -> Path:
    path = tmp_path / "outside.txt"
    path.write_text("mine")
    return path


def test_outputs_replace_regular_files_only(tmp_path, outside):
    (tmp_path / "link").symlink_to(outside)
    os.mkfifo(tmp_path / "pipe")
    for name, what in (("link", "is a link"), ("pipe", "is a pipe"), (".", "is a directory")):
        with pytest.raises(InputError, match=what):
            write_atomically(tmp_path / name, b"own")
    (tmp_path / f".x.json.{os.getpid()}.tmp").symlink_to(outside)
    write_atomically(tmp_path / "x.json", b"own")
    assert outside.read_text() == "mine"


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is a pipe"):
        esscher.load(tmp_path / "pipe")


def test_pipes_are_no_texts(tmp_path):
    (tmp_path / "a.txt").write_text("some words")
    os.mkfifo(tmp_path / "b.txt")
    with pytest.raises(InputError, match="pipe"):
        list(read_text(tmp_path))


PAYLOAD = "import pathlib; pathlib.Path({!r}).touch()"


class _Bomb:
    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return exec, (PAYLOAD.format(self.mark),)


def test_models_that_would_run_code(tmp_path):
    """Pickles, modules and adapters that come along: refused, and nothing of them has run."""
    import torch

    mark = tmp_path / "mark"
    sound = tmp_path / "sound"
    save(sound)

    def model(name):
        return Path(shutil.copytree(sound, tmp_path / name))

    def edit(path, **fields):
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    pickled = model("pickled")
    (pickled / "model.safetensors").unlink()
    torch.save({"x": _Bomb(mark)}, pickled / "pytorch_model.bin")
    folder_of_pickles = model("pickles")  # pickles beside sound weights are not looked at
    for name in ("training_args.bin", "tokenizer.pkl", "optimizer.pt"):
        torch.save(_Bomb(mark), folder_of_pickles / name)
    coded = model("coded")
    (coded / "evil.py").write_text(PAYLOAD.format(str(mark)))
    edit(coded / "config.json", auto_map={"AutoConfig": "evil.C", "AutoModel": "evil.M"})
    words = model("words")
    (words / "evil.py").write_text(PAYLOAD.format(str(mark)))
    edit(words / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", None]})
    adapter = model("adapter")
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "some/model"}')
    kernel = model("kernel")
    edit(kernel / "config.json", attn_implementation="somebody/kernel")
    index = model("index")
    (index / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {"a": "../pickled/pytorch_model.bin"}})
    )
    sizes = {
        "layers": {"num_hidden_layers": 10**6},
        "vocabulary": {"vocab_size": 10**12},
    }
    for name, fields in sizes.items():
        edit(model(name) / "config.json", **fields)
    for folder, message in (
        (pickled, "are pickles"),
        (coded, "auto_map"),
        (words, "auto_map"),
        (adapter, "holds an adapter"),
        (kernel, "would load code"),
        (index, "weights are .safetensors files beside it"),
        (tmp_path / "layers", "has 1000000 attention layers"),
        (tmp_path / "vocabulary", r"asks for 32,000,0.* numbers"),
    ):
        with pytest.raises(InputError, match=message):
            load_model(str(folder))
    load_model(str(folder_of_pickles))
    assert not mark.exists()
