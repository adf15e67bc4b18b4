"""Charts as files."""

from __future__ import annotations

import re

import pytest

from esscher.core.errors import InputError
from esscher.show.content import Plot, chart_bytes
from tests.show.sample_charts import curves, explorer


@pytest.fixture(scope="module")
def chart():
    return curves()


@pytest.mark.parametrize("ending", [".png", ".svg"])  # parts of a PDF come in any order
def test_the_same_chart_gives_the_same_bytes(ending, chart):
    first = chart_bytes(chart, ending)
    chart_bytes(explorer(), ending)  # Vega counts on
    assert chart_bytes(curves(), ending) == first


@pytest.mark.parametrize(("width", "inches"), [("single", 3.4), ("double", 7.0), (5, 5.0)])
def test_a_file_is_as_wide_as_asked_for(width, inches, chart):
    picture = chart_bytes(chart, ".png", width=width, dpi=100)
    assert int.from_bytes(picture[16:20]) == pytest.approx(100 * inches, abs=1)  # in its header
    svg = chart_bytes(chart, ".svg", width=width).decode()
    assert re.search(rf'width="{72 * inches:.2f}pt"', svg)
    box = re.search(rb"MediaBox \[0 0 ([0-9.]+)", chart_bytes(chart, ".pdf", width=width))
    assert float(box[1]) == pytest.approx(72 * inches, abs=0.5)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch, chart):
    path = tmp_path / "a.svg"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match="No space left"):
        Plot(chart).save(path)
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["a.svg"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        *((name, {}, r"must end in \.png, \.svg, \.pdf") for name in ("a.jpg", "a", "a.html")),
        *(
            ("a.svg", {"width": width}, "single, double, or inches from 2 to 20")
            for width in ("triple", 1.0, 25, None, "nan")
        ),
        ("a.png", {"dpi": 4000}, "more than 20,000 dots on a side"),
    ],
)
def test_what_cannot_be_saved_is_refused(tmp_path, name, options, message, chart):
    with pytest.raises(InputError, match=message):
        Plot(chart).save(tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []
