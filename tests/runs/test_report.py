"""Files of reports: the numbers of the run, no active content, bounded size."""

from __future__ import annotations

import html
import json
import re
import shlex
from functools import cache

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import esscher
import esscher.show.render as rendering
from esscher.cli.program import main
from esscher.core.errors import InputError
from esscher.runs.report import page_of
from esscher.show.frames import records
from esscher.show.render import as_data
from esscher.studies.probe.charts import KEPT
from esscher.studies.probe.view import by_need
from tests.runs.made import HOSTILE, make, wide_probe

DATA = re.compile(r'<script type="application/json" id="(data|charts)">(.*?)</script>', re.DOTALL)
SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


def written(runs, tmp_path, **options):
    return esscher.report(runs, tmp_path / "report.html", **options).read_text("utf-8")


@pytest.fixture(scope="module")
def report_of(tmp_path_factory):
    """The report of a small run, written once."""

    @cache
    def text(name):
        return written(make(name)[1], tmp_path_factory.mktemp("reports"))

    return text


def data_of(text):
    """The data of all tables, and the charts, by the names of their places."""
    return {name: json.loads(data) for name, data in DATA.findall(text)}


def table_of(text, title):
    return next(table for table in data_of(text)["data"].values() if table["title"] == title)


@pytest.mark.parametrize(
    "name", ["probe", "sparse", "deep", "deep-stack", "tails", "plan", "context", "domains"]
)
def test_the_answer_comes_first_and_every_value_is_escaped(name, report_of):
    result, text = make(name)[1], report_of(name)
    assert len(text.encode()) < rendering.LARGEST
    before = text[: text.index('id="data"')]
    answer = re.search(r'<p class="answer">(.*?)</p>', before)[1]
    assert html.unescape(answer) == result.headline
    if name != "deep-stack":
        assert html.escape(HOSTILE, quote=False) in before
    assert HOSTILE not in before
    assert "<b>" not in before
    for loads in ("src=", "@import", "url(", '<link rel="stylesheet', "<iframe", "<object"):
        assert loads not in before
    assert re.findall(r'href="(?!#|data:,)', before) == []


def test_data_cannot_end_its_element():
    hostile = {"</script><!--": ["<script>", "&lt;", "a\u2028b\u2029"]}
    text = as_data(hostile)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == hostile
    assert records(pd.DataFrame({"a": [1 / 3, float("nan")], "b": ["x", None]})) == [
        {"a": 0.333333, "b": "x"},
        {"a": None, "b": None},
    ]


def test_the_charts_of_a_page_are_those_of_the_result(report_of):
    """In their order, and each with the numbers that files have."""
    charts = data_of(report_of("probe"))["charts"]["charts"]
    parts = [part for part in page_of(make("probe")[1]).parts if part.chart is not None]
    assert [part.title for part in parts] == [
        "Every head",
        "Tokens for 10% output error",
        "Predicted against measured",
        "Heads together",
    ]
    for part, chart in zip(parts, charts.values(), strict=True):
        rows = part.chart.to_dict()["datasets"]
        for name, columns in chart["datasets"].items():
            for key, values in columns.items():
                assert values == [row.get(key) for row in rows[name]]


@pytest.mark.slow
def test_a_large_model_gets_a_report_of_the_heads_that_matter(tmp_path):
    """80 layers of 64 heads: all numbers, and curves of those that need most."""
    result = wide_probe(80, 64)
    text = written(result, tmp_path)
    assert len(text.encode()) <= rendering.LARGEST
    neediest = set(by_need(result)[["layer", "head"]][:KEPT].itertuples(index=False, name=None))
    assert len(neediest) == 1_000
    parts = data_of(text)
    explorer = next(iter(parts["charts"]["charts"].values()))
    curves = [data for data in explorer["datasets"].values() if "n" in data]
    assert len(curves) >= 6
    for data in curves:
        assert set(zip(data["layer"], data["head"], strict=True)) == neediest
    assert "curves of the 1,000 of 5,120 heads that need most tokens" in text
    data = table_of(text, "All heads")["data"]
    np.testing.assert_allclose(data["horizon"], by_need(result)["horizon"], rtol=1e-5)


def test_a_report_that_is_too_large_is_refused_and_leaves_the_old_one(tmp_path, monkeypatch):
    result = wide_probe(2, 3)
    text = written(result, tmp_path)
    assert "heads that need most tokens" not in text
    monkeypatch.setattr(rendering, "LARGEST", 500_000)
    with pytest.raises(InputError, match="report fewer runs at a time, or runs of fewer layers"):
        written(result, tmp_path)
    assert (tmp_path / "report.html").read_text("utf-8") == text


def test_the_command_is_remembered(tmp_path):
    words = "sweep gaussian --horizon 0.6 --sizes 20,40 --replicates 4 --no-predict --out"
    command = [*words.split(), str(tmp_path / "run")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert page_of(esscher.load(tmp_path / "run")).command == shlex.join(["esscher", *command])
    config = tmp_path / "run" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"command": None}))
    summary = page_of(esscher.load(tmp_path / "run"))
    assert summary.command is None
    assert "Python" in summary.command_note
    # and the memory is no part of what resuming compares
    assert CliRunner().invoke(main, command).exit_code == 0


@pytest.mark.parametrize("wrong", [3, None, "nowhere", [], {"kind": "probe"}])
def test_what_is_no_run_is_refused(wrong, tmp_path):
    with pytest.raises(InputError):
        esscher.report(wrong, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []
