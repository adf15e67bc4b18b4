"""Reports in a real browser: drawn, interactive, readable, and inert whatever is in them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

import esscher
from esscher.core.shown import shown
from esscher.runs.registry import STUDIES
from esscher.show.content import Page, Part
from esscher.show.render import render
from tests.runs.made import RUNS, changed, make, wide_probe
from tests.show.browser import ATTACKS, EXPLORER, chromium, looking


@pytest.fixture(scope="module")
def browser():
    with chromium() as instance:
        yield instance


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A probe of 30 layers and 9 heads, and its report."""
    result = wide_probe()
    return result, esscher.report(result, tmp_path_factory.mktemp("wide") / "report.html")


def head_text(page):
    """Text about the head that is picked."""
    return page.locator(".picked-head").inner_text()


def written(data, folder, name="page"):
    """A page with one table."""
    column = {"ends": False, "missing": "–", "last": False, "help": "", "shown": True}
    columns = [column | {"key": key, "title": key, "format": how} for key, (how, _) in data.items()]
    values = {key: values for key, (_, values) in data.items()}
    path = folder / f"{name}.html"
    table = {"title": "Numbers", "name": "numbers", "columns": columns, "data": values}
    page = Page("k", "s", "", [Part("Numbers", table=table)])
    path.write_bytes(render([page], "numbers"))
    return path


def test_the_keyboard_does_what_the_mouse_does(browser, wide):
    result, path = wide
    with looking(browser) as look:
        page = look.open(path)
        place = look.bring(EXPLORER)
        # the head at which it starts, by its numbers below the chart
        layer, head = (int(word.split()[-1]) for word in head_text(page).split("\n")[0].split(","))
        steps = (
            ("ArrowRight", 0, 1) if head < 8 else ("ArrowLeft", 0, -1),
            ("ArrowUp", 1, 0) if layer < 29 else ("ArrowDown", -1, 0),
        )
        page.evaluate("dispatchEvent(new Event('beforeprint'))")  # draws everything
        place.focus()
        for key, up, right in steps:
            page.keyboard.press(key)
            layer, head = layer + up, head + right
            page.wait_for_selector(f'[data-pick="{layer}.{head}"]')
            picked = result.head(layer, head)
            exponents = picked["exponent"].sel(bound="value")
            assert head_text(page).startswith(f"Layer {layer}, head {head}\n")
            assert shown(float(picked["horizon"]), "d2") in head_text(page)
            for metric, name in (("mean", "mean output"), ("cov", "covariance")):
                assert f"{name}, layer {layer}, head {head}" in place.inner_text()
                assert f"β = {float(exponents.sel(metric=metric)):.3f}" in place.inner_text()
            row = page.locator("[data-part=table] tr[aria-selected=true]")
            assert row.locator("td").all_inner_texts()[:2] == [str(layer), str(head)]
        # a step over the edge is none
        for _ in range(10):
            page.keyboard.press("ArrowLeft")
        page.wait_for_selector(f'[data-pick="{layer}.0"]')
        assert head_text(page).startswith(f"Layer {layer}, head 0\n")
        # and what a script picks is told too
        page.evaluate("esscherCharts.pick(esscherCharts.places[0], 29, 8)")
        assert head_text(page).startswith("Layer 29, head 8\n")
        assert page.locator(".picked-head").get_attribute("role") == "status"


def test_tables_sort_filter_and_save(browser, tmp_path):
    count = 320
    sizes = [None if i == 7 else (37 * i) % 101 + i / 1000 for i in range(count)]
    names = ["=1+1", "a,b", 'say "x"', *(f"row {i}" for i in range(3, count))]
    path = written({"size": ("d3", sizes), "name": ("text", names)}, tmp_path)
    with looking(browser, accept_downloads=True) as look:
        page = look.open(path)
        place = look.bring("[data-part=table]")
        rows = place.locator("tbody tr")
        assert rows.count() == 300
        place.get_by_role("button", name="Show all 320 rows").click()
        assert rows.count() == count
        place.get_by_role("button", name="size", exact=True).click()
        assert place.locator("th[aria-sort=descending]").inner_text().startswith("size")
        texts = place.locator("tbody td:nth-child(1)").all_inner_texts()
        # what is not known comes last either way
        expected = sorted((size for size in sizes if size is not None), reverse=True)
        assert texts == [*(shown(size, "d3") for size in expected), "–"]
        place.get_by_role("button", name="size", exact=True).click()
        assert place.locator("th[aria-sort=ascending]").count() == 1
        texts = place.locator("tbody td:nth-child(1)").all_inner_texts()
        assert texts == [*(shown(size, "d3") for size in reversed(expected)), "–"]
        place.get_by_role("searchbox").fill("SIZE<=50 row")
        kept = sorted(size for size in sizes[3:] if size is not None and size <= 50)
        assert rows.count() == len(kept) > 0
        assert place.locator(".count").inner_text() == f"{len(kept)} of 320 rows"
        with page.expect_download() as waiting:
            place.get_by_role("button", name="Download CSV").click()
        assert waiting.value.suggested_filename == "numbers.csv"
        with open(waiting.value.path(), newline="", encoding="utf-8") as file:
            saved = list(csv.DictReader(file))
        assert [float(row["size"]) for row in saved] == pytest.approx(kept, rel=1e-5)
        place.get_by_role("searchbox").fill("no such thing")
        assert rows.count() == 0
        # formulas get a quote, and what has commas or quotes comes back as it was
        place.get_by_role("searchbox").fill("")
        place.get_by_role("button", name="name", exact=True).click()
        with page.expect_download() as waiting:
            place.get_by_role("button", name="Download CSV").click()
        with open(waiting.value.path(), newline="", encoding="utf-8") as file:
            saved = {row["name"] for row in csv.DictReader(file)}
        assert saved == {"'=1+1", *names[1:]}


def test_hostile_strings_are_shown_and_never_run(browser, tmp_path):
    """In text and tables."""

    def attacked(data):
        attacks = np.resize(ATTACKS, data["sink_token"].shape)
        versions = json.loads(data.attrs["versions"]) | {"esscher": ATTACKS[2]}
        return data.assign(
            sink_token=(data["sink_token"].dims, attacks),
            sink_received=data["sink_received"].fillna(0.5),
        ).assign_attrs(versions=json.dumps(versions))

    hostile = changed(wide_probe(2, 3, name=ATTACKS[0] + ATTACKS[3]), attacked)
    records = dict(hostile.setup.records)
    records["text"] = structs.replace(records["text"], source=ATTACKS[1])
    hostile = replace(hostile, setup=replace(hostile.setup, records=records))
    path = esscher.report([hostile, hostile], tmp_path / "report.html")
    with looking(browser) as look:
        page = look.open(path)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")  # draws everything
        for key in ("ArrowLeft", "ArrowDown", "ArrowRight", "ArrowUp"):
            page.locator(EXPLORER).first.press(key)
        for button in page.locator("details[data-chart] summary").all():
            button.click()
        text = page.locator("body").inner_text()
        assert ATTACKS[0] in text  # the model's name
        assert ATTACKS[1] in text  # the text's
        assert ATTACKS[2] in text  # the version's
        shown_head = page.locator(".picked-head").first.inner_text()
        assert any(attack in shown_head for attack in ATTACKS)
        assert page.locator("body img, body a[href^=javascript], .chart a").count() == 0
        assert page.evaluate("window.pwned") is None


def test_every_kind_of_run_is_drawn_in_full(browser, tmp_path):
    """Every chart and table, without a complaint; none is wider than the page."""
    kinds = [make(name)[1] for name in RUNS if name != "theory"]
    assert {run.to_dict()["kind"] for run in kinds} == set(STUDIES)
    path = esscher.report(kinds, tmp_path / "report.html")
    with looking(browser, viewport={"width": 700, "height": 900}) as look:
        page = look.open(path)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")  # draws everything
        assert page.locator("article").count() == len(kinds)
        for place in ("[data-part]", ".chart"):
            assert page.locator(place).count() == page.locator(f"{place}[data-drawn]").count() > 0
        empty = "e => e.filter((place) => !place.querySelector('svg .mark-group path')).length"
        assert page.locator(".chart").evaluate_all(empty) == 0
        written = page.locator(".chart text").all_text_contents()
        assert not {"undefined", "NaN", "null"} & set(written)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        page.wait_for_timeout(100)
        unfilled = "e => e.filter((one) => !one.querySelector('td')).length"
        assert page.locator("details[data-chart]").evaluate_all(unfilled) == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 700
        assert page.locator(".chart:not([aria-label])").count() == 0
        # heads are picked in every chart that lets them be, if there is more than one
        explorers = page.locator(EXPLORER).all()
        still = []
        for place in explorers:
            seen = {place.get_attribute("data-pick")}
            for key in ("ArrowLeft", "ArrowRight", "ArrowDown", "ArrowUp"):
                place.press(key)
                seen.add(place.get_attribute("data-pick"))
            assert None not in seen
            if len(seen) == 1:
                still.append(place.get_attribute("data-pick"))
        assert len(explorers) == 7  # of two probes, sparse, tails, domains, plan and context
        assert still == ["1.2"]  # the probe of one head


def test_the_page_writes_numbers_as_python_does(browser, tmp_path):
    values = [0.0, 0.52, -0.26, 1234.56, 9.9996, 12345.7, 1.5e7, 3.2e-5, 100.0, 0.00123, None]
    formats = ["d2", "d3", "s2", "s3", "p0", "p1", "n0", "n3"]
    path = written({how: (how, values) for how in formats}, tmp_path)
    with looking(browser) as look:
        opened = look.open(path)
        for k, how in enumerate(formats, start=1):
            cells = opened.locator(f"tbody td:nth-child({k})").all_inner_texts()
            assert cells == [shown(value, how) for value in values]
