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
    """Pickles and modules that come along: refused or ignored, and nothing of them has run."""
    import torch

    mark, sound = tmp_path / "mark", tmp_path / "sound"
    save(sound)

    def model(name, **fields):
        folder = Path(shutil.copytree(sound, tmp_path / name))
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(settings | fields))
        return folder

    pickled = model("pickled")
    (pickled / "model.safetensors").unlink()
    torch.save({"x": _Bomb(mark)}, pickled / "pytorch_model.bin")
    coded = model("coded", auto_map={"AutoConfig": "evil.C", "AutoModel": "evil.M"})
    (coded / "evil.py").write_text(PAYLOAD.format(str(mark)))
    worded = model("worded")
    (worded / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.T", 0]}}')
    adapter = model("adapter")
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "some/model"}')
    for folder, message in (
        (pickled, r"are pickles \(pytorch_model.bin\).*esscher.wrap_model\(model, tokenizer\)"),
        (coded, "auto_map"),
        (worded, "auto_map"),
        (adapter, "holds an adapter"),
    ):
        with pytest.raises(InputError, match=message):
            load_model(str(folder))
    ignored = model("ignored")  # pickles beside sound weights are not looked at
    for name in ("training_args.bin", "tokenizer.pkl", "optimizer.pt"):
        torch.save(_Bomb(mark), ignored / name)
    load_model(str(ignored))
    assert not mark.exists()
