"""The page of a probe: cards, tables, and what a reader can do with its report."""

from __future__ import annotations

import numpy as np
import pytest

import esscher
from esscher.core.shown import shown
from esscher.studies.probe.view import summary
from tests.runs.made import changed, wide_probe
from tests.show.browser import EXPLORER, chromium, looking


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A probe of 30 layers and 9 heads, and its report."""
    probe = wide_probe()
    path = tmp_path_factory.mktemp("wide") / "report.html"
    return probe, esscher.report(probe, path)


def test_cards(found):
    cards = summary(found, "run").cards
    table = found.table()
    assert cards[0].value == shown(float(table["at_context"].median()), "p1")
    assert cards[1].value == f"{int((table['at_context_low'] > 0.5).sum())} of 6"
    inside = (table["mean_low"] >= 0.45) & (table["mean_high"] <= 0.55)
    assert cards[2].value == f"{int(inside.sum())} of 6"
    assert cards[3].value == shown(sorted(table["tokens_10"])[2], "n3")  # half of six


def test_flags_name_their_heads():
    def flagged(results):
        for i, head in enumerate(results["heads"]):
            flags = ["slow map"] if i else ["fit", "slow map"]
            head["flags"] = {flag: f"{flag} {i}" for flag in flags}

    probe = changed(wide_probe(4, 5), flagged)
    *_, flags, heads = summary(probe, "run").tables
    assert flags.data["flag"] == ["slow map", "fit"]
    assert flags.data["heads"] == [20, 1]
    assert flags.data["named"][0].startswith("0.0, 0.1, 0.2")
    assert flags.data["named"][0].endswith(", 2.1 and 8 more")
    assert flags.data["named"][1] == "0.0"
    assert flags.data["which"][0].split() == [f"{a}.{b}" for a in range(4) for b in range(5)]
    assert heads.data["flags"][0] == "fit, slow map"


def told(page):
    return page.locator(".picked-head").inner_text()


def test_a_click_tells_everything_about_a_head(browser, opened):
    probe, path = opened
    with looking(browser, viewport={"width": 1280, "height": 1400}) as look:
        page = look.open(path)
        assert page.locator(".answer").inner_text() == probe.headline
        place = look.bring(EXPLORER)
        assert place.get_attribute("role") == "application"
        assert place.get_attribute("aria-label").startswith("Every head. Click a cell")
        worst = max(probe.heads, key=lambda head: head.tokens_for["0.1"] or np.inf)
        assert told(page).startswith(f"Layer {worst.layer}, head {worst.head}")
        for layer, head in ((17, 3), (4, 8)):
            own = probe.head(layer, head)
            place.locator("g.cells_0_marks path").nth(9 * layer + head).click()
            page.wait_for_selector(f'[data-pick="{layer}.{head}"]')
            assert f"mean output, layer {layer}, head {head}" in place.inner_text()
            assert f"β = {own.fit.mean.exponent:.3f}" in place.inner_text()
            assert told(page).startswith(f"Layer {layer}, head {head}")
            assert shown(own.horizon, "d2") in told(page)
            for flag, evidence in own.flags.items():
                assert f"{flag}: {evidence}" in told(page)
