"""A real browser for tests of pages, without a network and without anything remembered."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
)
#: Set to leave out the tests that need a browser.
LEFT_OUT = "ESSCHER_NO_BROWSER"
#: Strings that would run if they were taken for markup anywhere on the way.
ATTACKS = (
    "</script><script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 2'>",
    '"><svg onload=window.pwned=3>',
    "<a href='javascript:window.pwned=4'>click</a><b>bold</b>",
    "{{ 7 * 7 }} \u2028 &lt;b&gt; %{x} ${y} \u202e",
)
#: The chart in which heads are picked.
EXPLORER = ".chart[tabindex]"
#: Milliseconds for anything to happen; a busy machine is slow.
PATIENCE = 30_000


def executable() -> str:
    """The browser; without one tests fail, unless they were left out on purpose."""
    if os.environ.get(LEFT_OUT) == "1":
        pytest.skip(f"{LEFT_OUT} is set")
    for name in NAMES:
        if path := shutil.which(name):
            return path
    pytest.fail(
        "there is no Chromium to look at reports with: run `make browser` (Debian: apt-get install "
        f"chromium; macOS: brew install --cask chromium), or set {LEFT_OUT}=1 to leave these tests "
        "out"
    )


class Look:
    """A page that is open, and everything it complained about or asked the network for."""

    def __init__(self, page: Any) -> None:
        self.page, self.complaints, self.requests = page, [], []
        page.set_default_timeout(PATIENCE)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._dialog)
        page.on("request", lambda request: self.requests.append(request.url))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: Path) -> Any:
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]", state="attached")
        return self.page

    def bring(self, selector: str) -> Any:
        """Scroll to an element and wait until it is drawn."""
        place = self.page.locator(selector).first
        place.scroll_into_view_if_needed()
        drawn = self.page.locator(f"{selector}[data-drawn]").first
        drawn.wait_for(state="attached")
        return place


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser with a fresh profile."""
    from playwright.sync_api import sync_playwright

    path = executable()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def looking(browser: Any, **options: Any) -> Iterator[Look]:
    """A new window of the browser; at its end nothing may have been complained about or loaded."""
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
    try:
        look = Look(context.new_page())
        yield look
        assert look.complaints == []
        assert [
            url for url in look.requests if not url.startswith(("file:", "data:", "blob:"))
        ] == []
    finally:
        context.close()
