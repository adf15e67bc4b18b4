"""Charts in a page, in a real browser."""

from __future__ import annotations

import json
import re

import pytest

from esscher.show.cells import heatmap
from esscher.show.chart import figure
from esscher.show.render import chart_data, chart_script, library, policy
from esscher.show.theme import DOUBLE, SINGLE, layout
from tests.show.browser import chromium, looking
from tests.show.chart_page import chart_page
from tests.show.sample_charts import SAMPLES, costs, explorer

FILL = "e => getComputedStyle(e).fill"


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "charts.html"
    path.write_text(chart_page({name: make() for name, make in SAMPLES.items()}), "utf-8")
    return path


def test_a_page_loads_nothing_and_compiles_no_code():
    assert "unsafe-eval" not in policy(library(), chart_script())
    assert "sourceMappingURL" not in library()
    assert len(library()) < 800_000


def test_colours_become_variables_and_rows_stay_as_they_are():
    data = chart_data({"one": costs(names=("#0072B2", "</script>"))})
    assert "</script" not in data
    found = json.loads(data)
    assert "#0072B2" in json.dumps(found["charts"]["one"]["datasets"])
    del found["charts"]["one"]["datasets"]
    assert "#D55E00" not in json.dumps(found)
    assert "var(--chart-orange)" in json.dumps(found)


#: No time is idle in this page, as if it were always busy.
BUSY = "globalThis.requestIdleCallback = () => 0;"


def test_what_is_in_sight_is_drawn_first_and_the_rest_when_there_is_time(browser, page):
    with looking(browser, viewport={"width": 400, "height": 300}) as look:
        look.page.add_init_script(BUSY)
        opened = look.open(page)
        look.bring(".chart[data-chart=curves]")
        assert opened.locator(".chart[data-chart=explorer][data-drawn]").count() == 0
        look.bring(".chart[data-chart=explorer]")
        assert "tokens n" in opened.locator(".chart[data-chart=curves]").inner_text()
    with looking(browser, viewport={"width": 400, "height": 300}) as look:
        opened = look.open(page)
        for name in SAMPLES:
            opened.wait_for_selector(f".chart[data-chart={name}][data-drawn]", state="attached")
        assert opened.evaluate("scrollY") == 0
        # none is wider than the page
        assert opened.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_chart_of_very_many_marks_waits_until_it_is_seen(browser, tmp_path):
    path = tmp_path / "charts.html"
    heads = [(layer, head) for layer in range(90) for head in range(100)]
    rows = [{"layer": layer, "head": head, "size": layer + 1} for layer, head in heads]
    many = figure([heatmap(rows, "size", f"panel {i}") for i in range(3)])
    path.write_text(chart_page({"first": costs(), "many": many, "last": costs()}), "utf-8")
    with looking(browser, viewport={"width": 400, "height": 100}) as look:
        opened = look.open(path)
        opened.wait_for_selector(".chart[data-chart=last][data-drawn]", state="attached")
        assert opened.locator(".chart[data-chart=many][data-drawn]").count() == 0
        look.bring(".chart[data-chart=many]")


def test_everything_is_drawn_when_it_is_printed(browser, page):
    with looking(browser, viewport={"width": 400, "height": 300}, color_scheme="dark") as look:
        look.page.add_init_script(BUSY)
        opened = look.open(page)
        opened.pdf()
        assert opened.locator(".chart svg").count() == len(SAMPLES)
        opened.emulate_media(media="print")
        ink = opened.locator(".chart text").first.evaluate(FILL)
        assert ink == "rgb(0, 0, 1)"  # light on paper


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
        width = "esscherCharts.views.get(esscherCharts.places[2]).width"
        while opened.evaluate(width) > 500:
            opened.wait_for_timeout(50)
        assert "curve, layer 0, head 2" in place.inner_text()


def test_pointing_at_a_mark_tells_its_numbers(browser, page):
    with looking(browser) as look:
        opened = look.open(page)
        look.bring(".chart[data-chart=explorer]").locator("g.cells_1_marks path").nth(5).hover()
        tip = opened.locator(".chart-tip")
        tip.wait_for(state="visible")
        assert tip.inner_text().split("\n") == ["layer: 1", "head: 1", "share: 0.2"]


def test_the_numbers_are_there_as_a_table(browser, page):
    with looking(browser) as look:
        opened = look.open(page)
        opened.locator("details[data-chart=costs] summary").click()
        table = opened.locator("details[data-chart=costs] table").first
        assert "planned" in table.inner_text()


def test_dark_is_a_matter_of_the_style_sheet(browser, page):
    fills = {}
    for scheme in ("light", "dark"):
        with looking(browser, color_scheme=scheme) as look:
            look.open(page)
            text = look.bring(".chart[data-chart=curves]").locator("text").first
            fills[scheme] = text.evaluate(FILL)
            bright = sum(map(int, re.findall(r"\d+", fills[scheme]))) > 3 * 128
            assert bright == (scheme == "dark")
    assert len(set(fills.values())) == 2


def test_files_and_pages_are_laid_out_alike(browser, page):
    with looking(browser) as look:
        opened = look.open(page)
        for make in SAMPLES.values():
            spec = make().to_dict()
            del spec["config"], spec["title"]
            for width in (DOUBLE, SINGLE, 333.0):
                expected = layout(spec, width)
                del expected["config"]
                found = opened.evaluate(
                    "([spec, width]) => esscherCharts.layout(spec, width)", [spec, width]
                )
                assert found == json.loads(json.dumps(expected))


def test_names_in_charts_do_nothing(browser, tmp_path):
    attacks = (
        "</script><script>window.pwned = 1</script>",
        "<img src=x onerror='window.pwned = 2'>",
    )
    path = tmp_path / "charts.html"
    path.write_text(chart_page({"costs": costs(names=attacks), "e": explorer()}), "utf-8")
    with looking(browser) as look:
        opened = look.open(path)
        place = look.bring(".chart[data-chart=costs]")
        place.locator(".mark-rect.role-mark path").first.hover(position={"x": 4, "y": 4})
        opened.locator("details[data-chart=costs] summary").click()
        assert attacks[0] in opened.locator(".chart-tip").inner_text()
        assert opened.evaluate("window.pwned") is None
