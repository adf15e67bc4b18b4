"""Programs of strangers: they end, and take no more than they may."""

from __future__ import annotations

import os
import signal
import time

import pytest

from esscher.core.errors import InputError
from esscher.core.untrusted import bounded, limits


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SECONDS", 1)
    monkeypatch.setattr(limits, "MEMORY", 64 * limits.MIB)
    monkeypatch.setattr(limits, "TEXT", limits.MIB)


def test_what_ends_is_returned() -> None:
    here = os.getpid()
    assert bounded(lambda: "Gr\u00f6\u00dfe \ud800" * 1000, "it") == "Gr\u00f6\u00dfe \ud800" * 1000
    assert bounded(lambda: "" if os.getpid() == here else "elsewhere", "it") == "elsewhere"


def endless() -> str:
    while True:
        pass


def endless_text() -> str:
    text = "x"
    while True:
        text += text


def deadly() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def stopped() -> str:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (endless, "it takes more than 1 s, 64 MiB of memory or 1 MiB of text"),
        (endless_text, "it takes more than"),
        (lambda: "x" * 2 * limits.MIB, "it takes more than"),
        (deadly, "it takes more than"),
        (lambda: str(1 // 0), r"it fails \(ZeroDivisionError: integer division"),
        (stopped, r"it fails \(KeyboardInterrupt"),
    ],
)
def test_what_does_not_end_or_fails_is_refused(call, words: str) -> None:
    start = time.monotonic()
    with pytest.raises(InputError, match=words):
        bounded(call, "it")
    assert time.monotonic() - start < 30  # on a busy machine
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
