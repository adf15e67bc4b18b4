"""Bad input to the library: every public function says what is wrong, none ends in a traceback."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import numpy as np
import pytest

import esscher
from esscher.core.errors import EsscherError, InputError
from esscher.core.validation import (
    as_dim,
    as_nonnegative,
    as_positive,
    as_seed,
    check_memory,
)

#: Neither heads, laws, models, plans, runs nor names of anything.
WRONG = [0.5, None, [1, 2], -1, True, float("nan"), float("inf"), 10**400, 1j, object(), {}]
#: Functions that start processes, or that take numbers only, which their own tests try.
LEFT_OUT = ("deep_stack", "exponents", "gaussian_head", "paper")
FUNCTIONS = [
    name
    for name in esscher.__all__
    if inspect.isfunction(getattr(esscher, name)) and name not in LEFT_OUT
]
THEORY = [
    "log_ball_bound",
    "constants",
    "cov_constant",
    "hardmax_curve",
    "map_constant",
    "map_curve",
    "mean_constant",
    "measured_supremum",
    "moment_curves",
]
LAWS = [
    "Cube",
    "FiniteTokens",
    "GaussianMixture",
    "Laplace",
    "Signs",
    "Sphere",
    "StudentT",
    "standard_law",
]
CALLED = {
    **{name: getattr(esscher, name) for name in FUNCTIONS},
    **{name: getattr(esscher.theory, name) for name in THEORY},
    **{name: getattr(esscher.laws, name) for name in LAWS},
}


def used(value):
    """The value a function returns; read_text is lazy, so its documents are read here."""
    return list(value) if isinstance(value, Iterator) else value


@pytest.mark.parametrize("name", CALLED)
def test_wrong_kinds_of_objects_are_named(name):
    function = CALLED[name]
    parameters = inspect.signature(function).parameters.values()
    first, *others = (p for p in parameters if p.default is p.empty)
    for value in WRONG:
        given = [value, *([10, 20] for p in others if p.kind is p.POSITIONAL_OR_KEYWORD)]
        named = {p.name: [[1.0]] for p in others if p.kind is p.KEYWORD_ONLY}
        with pytest.raises(EsscherError) as caught:
            used(function(*given, **named))
        assert str(caught.value), (first.name, value)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: esscher.predict(x, [100]),
        lambda x: esscher.theory.map_curve(x, [100]),
        lambda x: esscher.theory.mean_constant(x),
        lambda x: esscher.limit_moments(x),
        lambda x: esscher.sweep(x, [16, 32]),
    ],
)
def test_a_number_is_no_head_and_the_message_says_how_to_make_one(call):
    with pytest.raises(InputError, match=r"head is 0\.5; .*esscher\.gaussian_head\(horizon=0\.5\)"):
        call(0.5)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: esscher.laws.Gaussian(x),
        lambda x: esscher.laws.Gaussian(dim=2).log_mgf(x),
        lambda x: esscher.laws.FiniteTokens(np.outer(x, x)),
        lambda x: esscher.gaussian_head(spectrum=x),
        lambda x: esscher.gaussian_head(0.5, 2, tau=x),
        lambda x: esscher.array_head(np.outer(x, x), np.eye(2), np.eye(2)),
        lambda x: esscher.weight_head(
            esscher.laws.Gaussian(dim=2), query=np.outer(x, x), key=np.eye(2)
        ),
        lambda x: esscher.fit_rate(np.outer(x, x), [10, 20]),
        lambda x: esscher.theory.hardmax_curve(x),
    ],
)
def test_imaginary_parts_are_not_dropped(call):
    with pytest.raises(InputError, match="complex numbers"):
        call(np.array([1 + 2j, 3 - 1j]))


@pytest.mark.parametrize("check", [as_dim, as_positive, as_nonnegative, as_seed])
@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        -1,
        np.float64(-3),
        np.float64("nan"),
        True,
        np.True_,
        "3",
        b"3",
        1 + 0j,
        np.complex64(2),
        None,
        [3],
        np.array([3.0]),
        -(10**400),
    ],
)
def test_numbers(check, value):
    with pytest.raises(InputError, match=r"seed is .*; "):
        check(value) if check is as_seed else check(value, "seed")


def test_memory_is_named_before_it_is_taken():
    check_memory(1e6, "this")
    with pytest.raises(InputError, match="this takes 1,000,000 GB of memory"):
        check_memory(1e15, "this")
