"""Charts as files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from esscher.core.errors import InputError
from esscher.show.content import retitled
from esscher.show.save import FORMATS, chart_bytes, save_chart
from tests.show.sample_charts import curves, explorer

VECTORS = (".svg", ".pdf")


@pytest.fixture(scope="module")
def chart():
    return curves()


@pytest.mark.parametrize("ending", FORMATS)
def test_the_same_chart_gives_the_same_bytes(ending, chart):
    first = chart_bytes(chart, ending)
    chart_bytes(explorer(), ending)  # Vega counts on
    assert chart_bytes(curves(), ending) == first


def test_another_process_writes_the_same_files(tmp_path):
    code = (
        "from tests.show.sample_charts import explorer; "
        "from esscher.show.save import save_chart; "
        f"[save_chart(explorer(), {str(tmp_path)!r} + '/a' + ending) for ending in {VECTORS}]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
    for ending in VECTORS:
        assert (tmp_path / f"a{ending}").read_bytes() == chart_bytes(explorer(), ending)


@pytest.mark.parametrize(("width", "inches"), [("single", 3.4), ("double", 7.0), (5, 5.0)])
def test_a_file_is_as_wide_as_asked_for(width, inches, chart):
    picture = chart_bytes(chart, ".png", width=width, dpi=100)
    assert int.from_bytes(picture[16:20]) == pytest.approx(100 * inches, abs=1)  # in its header
    svg = chart_bytes(chart, ".svg", width=width).decode()
    assert re.search(rf'width="{72 * inches:.2f}pt"', svg)
    box = re.search(rb"MediaBox \[0 0 ([0-9.]+)", chart_bytes(chart, ".pdf", width=width))
    assert float(box[1]) == pytest.approx(72 * inches, abs=0.5)


def test_text_stays_text(chart):
    svg = chart_bytes(chart, ".svg").decode()
    assert ">tokens n</text>" in svg
    assert "Liberation Sans" in svg
    assert b"/FontFile" in chart_bytes(chart, ".pdf")


def test_the_contents_of_a_pdf_are_where_its_table_says():
    """Also those of several fonts, which come in any order."""
    pdf = chart_bytes(retitled(curves(), "a \ufffd b"), ".pdf")
    assert len(set(re.findall(rb"/BaseFont /[A-Z]{6}\+([A-Za-z]+)", pdf))) == 2
    start = int(pdf.rsplit(b"startxref", 1)[1].split()[0])
    first, count, *lines = pdf[start:].partition(b"trailer")[0].split(b"\n")[:-1]
    assert (first, count) == (b"xref", b"0 %d" % len(lines))
    assert {len(line) for line in lines} == {19}  # and the end of the line
    for number, line in enumerate(lines[1:], start=1):
        assert pdf[int(line[:10]) :].startswith(b"%d 0 obj\n<<" % number)
    assert b"CreationDate" not in pdf
    assert b"/Type3" not in pdf


def test_directories_are_made_and_capitals_are_fine(tmp_path, chart):
    path = save_chart(chart, tmp_path / "new" / "a.SVG")
    assert path.read_bytes().startswith(b"<svg")
    assert [one.name for one in path.parent.iterdir()] == ["a.SVG"]


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.html"])
def test_other_endings_are_refused(tmp_path, name, chart):
    with pytest.raises(InputError, match=r"must end in \.png, \.svg, \.pdf"):
        save_chart(chart, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch, chart):
    path = tmp_path / "a.svg"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match="No space left"):
        save_chart(chart, path)
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["a.svg"]


@pytest.mark.parametrize("width", ["triple", 1.0, 25, None, "nan"])
def test_widths_out_of_range_are_refused(width, chart):
    with pytest.raises(InputError, match="single, double, or inches from 2 to 20"):
        chart_bytes(chart, ".svg", width=width)


def test_a_picture_that_would_take_gigabytes_is_refused(chart):
    with pytest.raises(InputError, match="more than 20,000 dots on a side"):
        chart_bytes(chart, ".png", dpi=4000)
