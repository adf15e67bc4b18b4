"""Charts in a page, in a real browser."""

from __future__ import annotations

import json

import pytest

from esscher.show.render import chart_data
from esscher.show.theme import DOUBLE, SHADES, SINGLE, layout
from tests.show.browser import chromium, looking
from tests.show.chart_page import chart_page
from tests.show.sample_charts import SAMPLES, curves


@pytest.fixture(scope="module")
def browser():
    with chromium() as instance:
        yield instance


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "charts.html"
    path.write_text(chart_page({name: make() for name, make in SAMPLES.items()}), "utf-8")
    return path


def test_colours_become_variables_and_rows_stay_as_they_are():
    data = chart_data({"one": curves(names=("#0072B2", "</script>"))})
    assert "</script" not in data
    result = json.loads(data)
    assert "#0072B2" in json.dumps(result["charts"]["one"]["datasets"])
    del result["charts"]["one"]["datasets"]
    assert SHADES[0] not in json.dumps(result)
    assert "var(--chart-shade-0)" in json.dumps(result)


def test_a_click_or_an_arrow_key_picks_a_head(browser, page):
    with looking(browser) as look:
        opened = look.open(page)
        place = look.bring(".chart[data-chart=explorer]")
        opened.evaluate(
            """() => {
                window.picked = [];
                document.addEventListener("pick", (event) => window.picked.push(event.detail));
            }"""
        )
        place.locator("g.cells_0_marks path").nth(3).click()  # layer 0, head 3
        opened.wait_for_selector('[data-pick="0.3"]')
        assert "curve, layer 0, head 3" in place.inner_text()
        place.focus()
        opened.keyboard.press("ArrowUp")
        opened.wait_for_selector('[data-pick="1.3"]')
        opened.keyboard.press("ArrowLeft")
        opened.wait_for_selector('[data-pick="1.2"]')
        opened.keyboard.press("ArrowDown")
        opened.keyboard.press("ArrowDown")  # there is nothing below
        opened.wait_for_selector('[data-pick="0.2"]')
        assert "curve, layer 0, head 2" in place.inner_text()
        assert opened.evaluate("window.picked.at(-1)") == {"layer": 0, "head": 2}
        opened.set_viewport_size({"width": 500, "height": 900})  # is laid out again
        width = "esscherCharts.views.get(esscherCharts.places[1]).width"
        while opened.evaluate(width) > 500:
            opened.wait_for_timeout(50)
        assert "curve, layer 0, head 2" in place.inner_text()


def test_files_and_pages_are_laid_out_alike(browser, page):
    with looking(browser) as look:
        opened = look.open(page)
        for make in SAMPLES.values():
            spec = make().to_dict()
            del spec["config"], spec["title"]
            for width in (DOUBLE, SINGLE, 333.0):
                expected = layout(spec, width)
                del expected["config"]
                result = opened.evaluate(
                    "([spec, width]) => esscherCharts.layout(spec, width)", [spec, width]
                )
                assert result == json.loads(json.dumps(expected))
