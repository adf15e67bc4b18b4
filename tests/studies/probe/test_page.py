"""The page of a probe: tables, and what a reader can do with its report."""

from __future__ import annotations

import numpy as np
import pytest

import esscher
from esscher.core.shown import shown
from esscher.studies.probe.combine import FLAGS
from esscher.studies.probe.view import by_need
from tests.runs.made import changed, wide_probe
from tests.show.browser import EXPLORER, chromium, looking


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A probe of 30 layers and 9 heads, and its report."""
    probe = wide_probe()
    path = tmp_path_factory.mktemp("wide") / "report.html"
    return probe, esscher.report(probe, path)


def test_flags_name_their_heads():
    def flagged(data):
        raised = np.zeros(data["flagged"].shape, dtype=bool)
        raised[..., FLAGS.index("slow map")] = raised[0, 0, FLAGS.index("fit")] = True
        return data.assign(flagged=(data["flagged"].dims, raised))

    probe = changed(wide_probe(4, 5), flagged)
    heads, flags = (view.content(probe, "run").table["data"] for view in probe.views[:2])
    assert flags["flag"] == ["slow map", "fit"]
    assert flags["heads"] == [20, 1]
    neediest = probe.table().sort_values("tokens_10", ascending=False)
    names = [f"{layer}.{head}" for layer, head in neediest[["layer", "head"]].to_numpy()]
    assert flags["which"] == [", ".join(names[:12]) + " and 8 more", "0.0"]
    assert heads["flags"][names.index("0.0")] == "slow map, fit"
    assert "flags" not in changed(probe, lambda d: d.assign(flagged=d["flagged"] & False)).tables()


def test_a_click_tells_everything_about_a_head(browser, opened):
    probe, path = opened
    with looking(browser, viewport={"width": 1280, "height": 1400}) as look:
        page = look.open(path)
        assert page.locator(".answer").inner_text() == probe.headline
        place, told = look.bring(EXPLORER), page.locator(".picked-head")
        assert place.get_attribute("role") == "application"
        assert place.get_attribute("aria-label").startswith("Every head. Click a cell")
        order = by_need(probe)[["layer", "head"]].to_numpy().tolist()
        assert told.inner_text().startswith("Layer {}, head {}".format(*order[0]))
        for layer, head in ((17, 3), (4, 8)):
            numbers = probe.head(layer, head)
            place.locator("g.cells_0_marks path").nth(order.index([layer, head])).click()
            page.wait_for_selector(f'[data-pick="{layer}.{head}"]')
            assert f"mean output, layer {layer}, head {head}" in place.inner_text()
            exponent = float(numbers["exponent"].sel(metric="mean", bound="value"))
            assert f"β = {exponent:.3f}" in place.inner_text()
            assert told.inner_text().startswith(f"Layer {layer}, head {head}")
            assert shown(float(numbers["horizon"]), "d2") in told.inner_text()
            for flag in np.array(FLAGS)[numbers["flagged"].values]:
                assert flag in told.inner_text()
