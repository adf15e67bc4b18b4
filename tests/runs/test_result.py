"""Charts of results, of whatever study: what they offer, and files that are the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from esscher.core.errors import InputError
from esscher.runs.registry import part_of
from esscher.show.content import chart_bytes
from tests.runs.made import RUNS, make
from tests.show.drawn import texts

STORED = [name for name in RUNS if name != "theory"]


@pytest.mark.parametrize("name", STORED)
def test_every_kind_of_result_offers_charts_and_draws_them(name, capfd):
    """Each in a line; the main one is always there, and what is not offered is refused."""
    result = make(name)[1]
    study = result.study if isinstance(result.study, type) else type(result.study)
    drawings = part_of(study, "charts").DRAWINGS
    known = result.charts()
    assert next(iter(known)) == drawings[0].name
    for kind, help_line in known.items():
        assert help_line
        assert "\n" not in help_line
        assert "undefined" not in texts(result.plot(kind))
    assert capfd.readouterr().err == ""
    for drawing in drawings:
        if drawing.name not in known:
            with pytest.raises(InputError, match=f"there is no chart '{drawing.name}' of this"):
                result.plot(drawing.name)
        if drawing.heading:
            assert drawing.caption == drawing.caption.strip()
    with pytest.raises(InputError, match="there is no chart 'nothing' of this result; choose"):
        result.plot("nothing")


def test_the_same_run_gives_the_same_bytes(tmp_path):
    """In this process twice, and from its file in another one with other hashes of strings."""
    result = make("context")[1]
    endings = (".png", ".svg")  # parts of a PDF come in any order
    once = {
        ending: chart_bytes(result.plot("saturation").chart, ending, dpi=60) for ending in endings
    }
    # vectors have no dots
    assert chart_bytes(result.plot("saturation").chart, ".svg", dpi=300) == once[".svg"]
    result.save(tmp_path / "result.json")
    script = (
        "import esscher, sys\n"
        "from pathlib import Path\n"
        "folder = Path(sys.argv[1])\n"
        "result = esscher.load(folder / 'result.json')\n"
        "for ending in ('png', 'svg'):\n"
        "    result.plot('saturation').save(folder / f'figure.{ending}', dpi=60)\n"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env=environment)
    for ending, data in once.items():
        assert (tmp_path / f"figure{ending}").read_bytes() == data
