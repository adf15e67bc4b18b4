"""Options: bounds and help in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest
from msgspec import Meta

from esscher.core.errors import InputError
from esscher.core.options import SomeLayers, checked, option, options_of, plain_type


@dataclass(frozen=True)
class Options:
    count: Annotated[int, option("How many.", ge=1)] = 5
    share: Annotated[float, option("How much.", gt=0, le=1)] = 0.5
    mode: Annotated[Literal["a", "b"], option("Which way.")] = "a"
    layers: SomeLayers = None
    sizes: Annotated[tuple[int, ...], option("Sizes.", metavar="A:B:K")] = (1, 2)
    tilt: Annotated[tuple[float, ...] | None, option("Tilt.", metavar="LIST")] = None
    names: Annotated[tuple[Annotated[str, Meta(max_length=9)], ...], option("Names.")] = ()
    out: Annotated[Path | None, option("Where.")] = None


OPTIONS = {o.name: o for o in options_of(Options)}


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("count", 7, 7),
        ("count", 7.0, 7),
        ("count", np.int64(7), 7),
        ("share", 1, 1.0),
        ("share", np.float32(0.25), 0.25),
        ("layers", None, None),
        ("layers", range(3), (0, 1, 2)),
        ("layers", [-1], (-1,)),
        ("layers", "0,3", (0, 3)),
        ("layers", "0-2, 5", (0, 1, 2, 5)),
        ("sizes", "8:32:3", (8, 16, 32)),
        ("sizes", "4,8", (4, 8)),
        ("tilt", "0.5,1", (0.5, 1.0)),
        ("sizes", np.array([8.0, 16.0]), (8, 16)),
        ("tilt", 0.5, (0.5,)),
        ("tilt", [1, 2], (1.0, 2.0)),
        ("names", "a, b", ("a", "b")),
        ("names", ["a"], ("a",)),
        ("names", "", ()),
        ("names", None, ()),
        ("out", "runs/a", Path("runs/a")),
        ("out", None, None),
    ],
)
def test_values_of_the_right_kind_are_taken(name, value, wanted):
    result = checked(OPTIONS[name], value)
    assert result == wanted
    assert type(result) is type(wanted)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("count", 0, "count is 0; it must be a whole number of at least 1"),
        ("count", 1.5, "count is 1.5; it must be a whole number"),
        ("count", None, "count is None; it must be a whole number"),
        ("count", True, "count is True"),
        ("count", 10**400, "count is a whole number of 1329 bits; it must be"),
        ("share", 0.0, "share is 0.0; it must be a number above 0"),
        ("share", float("nan"), "share is nan; it must be a number that is finite"),
        ("tilt", float("inf"), "tilt is inf; it must be a number that is finite"),
        ("tilt", "a", "tilt: 'a' is not a number"),
        ("share", 25, "it must be a number of at most 1.0; did you mean 0.25?"),
        ("mode", "c", "mode is 'c'; it must be one of a, b"),
        ("layers", "a-b", "layers is 'a-b'; write numbers such as 0,3 or ranges such as 0-5"),
        ("sizes", "64:8:3", "sizes is '64:8:3'; it must start at"),
        ("layers", 5, "layers is 5; it must be a list"),
        ("sizes", [1, "x"], "sizes is [1, 'x']"),
        ("out", 5, "out is 5; it must be the path"),
    ],
)
def test_others_are_refused_by_name(name, value, words):
    with pytest.raises(InputError) as caught:
        checked(OPTIONS[name], value)
    assert words in str(caught.value)


def test_types_without_bounds():
    assert plain_type(OPTIONS["names"].type) == tuple[str, ...]
    assert plain_type(OPTIONS["layers"].type) == tuple[int, ...] | None
    assert plain_type(Annotated[int, Meta(ge=1)] | None) == int | None


def test_a_field_without_help_is_a_mistake():
    @dataclass(frozen=True)
    class Wrong:
        count: int = 5

    with pytest.raises(TypeError, match="count has no option"):
        options_of(Wrong)
