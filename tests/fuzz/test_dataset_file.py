"""Damaged files of datasets: refused, or read as they were; a right checksum changes nothing."""

from __future__ import annotations

import contextlib

import numpy as np

from esscher.core.dataset_file import from_bytes, to_bytes
from esscher.core.errors import InputError
from esscher.core.variables import Data, check, group, var
from tests.fuzz.damage import changed_bytes, effort, fuzz, randoms, resealed


class Part(Data):
    """Variables along axes that the whole chooses."""

    share = var("... bound")
    exact = var("...", kind="b")


class Everything(Data):
    """Every type there is, with labels of every kind."""

    tau = var("layer head bound")
    count = var("layer", kind="i")
    sure = var("layer head", kind="b")
    verdict = var("layer head", kind="U")
    total = var()
    halves = group(Part, "half", "half_")


def everything() -> Everything:
    data = Everything.new(layer=[0, 3], head=range(3), half=["first", "second"])
    data.tau = np.linspace(-1.5, 1e9, 18).reshape(2, 3, 3).astype(np.float32)
    data.count = [7, 2**40]
    data.sure = np.eye(2, 3) > 0
    data.verdict = [["light", "", "heavy"], ["Schön", "\U0001f600", "x" * 40]]
    data.total = np.nan
    data.halves.share = np.arange(6.0).reshape(2, 3)
    data.halves.exact = [True, False]
    data.dataset.attrs = {"kind": "everything", "cells": ["a", "b"], "seed": 3}
    return data


def same(first, second) -> bool:
    """Whether two datasets agree in values, types, axes, labels and attributes."""
    types = [{n: (v.dims, v.dtype) for n, v in data.variables.items()} for data in (first, second)]
    return first.identical(second) and types[0] == types[1]


def test_a_file_says_what_was_stored():
    data = everything().dataset
    assert same(check(from_bytes(to_bytes(data), "file"), Everything, "file"), data)


@effort(60, 4000)
def test_random_damage_is_never_read_as_something_else(examples):
    data = everything().dataset
    sound = to_bytes(data)

    def property(random):
        with contextlib.suppress(InputError):
            assert same(from_bytes(changed_bytes(sound, random), "file"), data)

    fuzz(examples, randoms())(property)


@effort(60, 4000)
def test_a_right_checksum_does_not_make_up_for_what_does_not_fit(examples):
    data = everything().dataset
    sound = to_bytes(data)

    def property(random):
        with contextlib.suppress(InputError):
            read = check(from_bytes(resealed(sound, random), "file"), Everything, "file")
            assert {n: (v.dims, v.dtype.kind) for n, v in read.data_vars.items()} == {
                n: (v.dims, v.dtype.kind) for n, v in data.data_vars.items()
            }
            assert not any(
                np.isinf(v).any() for v in read.data_vars.values() if v.dtype.kind == "f"
            )
            assert same(from_bytes(to_bytes(read), "file"), read)

    fuzz(examples, randoms())(property)
