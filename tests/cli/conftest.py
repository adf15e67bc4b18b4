"""What tests of several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest

#: What commands without a stored run compute before they print.
COMPUTED = ("theory.predict", "theory.direct_errors")


@pytest.fixture
def computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One command, called again and again, computes the first time and prints every time.

    For tests of how a command prints.
    """
    for name in COMPUTED:
        place = f"esscher.cli.{name}"
        monkeypatch.setattr(place, _remembered(resolve_name(place)))


def _remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    found: list[Any] = []

    def call(*arguments: Any, **options: Any) -> Any:
        if not found:
            found.append(function(*arguments, **options))
        return found[0]

    return call
