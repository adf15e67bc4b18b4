"""Records: what is stored is what is read, and what does not fit is named."""

from __future__ import annotations

import json
from typing import Annotated

import numpy as np
import pytest
from msgspec import Meta

from esscher.core.codec import Count, Name, Record, as_json, as_record
from esscher.core.errors import InputError


class Inner(Record, frozen=True, kw_only=True):
    value: float | None
    name: Name


class Outer(Record, frozen=True, kw_only=True):
    count: Count
    share: Annotated[float, Meta(gt=0, le=1)]
    inner: tuple[Inner, ...] = ()
    table: dict[str, float] = {}  # noqa: RUF012 - records copy their defaults


def tree(**changes):
    return {"count": 3, "share": 0.5, "inner": [{"value": None, "name": "a"}], **changes}


def test_there_and_back():
    outer = Outer(count=3, share=1, inner=(Inner(value=0.1, name="a"),), table={"x": 2.0})
    assert as_record(json.loads(as_json(outer)), Outer, "file") == outer
    # fields of a later version are left alone
    assert as_record(tree(later=1), Outer, "file").count == 3


def test_numbers_of_numpy_are_stored():
    stored = json.loads(as_json({"a": np.float64(0.1), "b": np.arange(3)}))
    assert stored == {"a": 0.1, "b": [0, 1, 2]}
    with pytest.raises(ValueError, match="JSON"):
        as_json({"a": float("nan")})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": "x"}, "count is 'x'; it must be a whole number"),
        ({"count": True}, "count is True; it must be a whole number"),
        ({"count": -1}, "count is -1; it must be a whole number of at least 0"),
        ({"count": 10**30}, "count is 1000"),
        ({"share": 2.0}, "share is 2.0; it must be a number of at most 1"),
        ({"inner": [{"name": "a"}]}, "inner[0] has no 'value'"),
        ({"inner": [{"value": 1, "name": 5}]}, "inner[0].name is 5; it must be a string"),
        ({"inner": 7}, "inner is 7; it must be a list"),
        ({"table": {"x": "y"}}, "table[...]; it must be a number"),
    ],
)
def test_what_does_not_fit_is_named(changes, words):
    with pytest.raises(InputError) as caught:
        as_record(tree(**changes), Outer, "config.json")
    assert str(caught.value).startswith("config.json is damaged: ")
    assert words in str(caught.value)
