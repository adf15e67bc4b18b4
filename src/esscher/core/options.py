"""Options of studies: help, bounds and form in one place, the type of a field.

``tokens: Annotated[int, option("Text tokens in all.", ge=500)] = 16_384`` is an argument of a
function, an option of a command, and a field of a stored configuration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from esscher.core.codec import allowed
from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.core.validation import Array, as_path, as_sizes


class AtMost(int):
    """A default that a text may fall short of: what is there, up to that many."""

    @classmethod
    def unless(cls, given: int | None, number: int) -> int:
        """Return the number as it is if it was given, else as a default."""
        return cls(number) if given is None or isinstance(given, AtMost) else number


#: Forms of lists of numbers.
LISTS = ("LIST", "A:B:K")
#: Largest whole number that any option takes.
LARGEST = 2**64 - 1
#: Numbers of layers and heads: digits, and not so many that a range would fill the memory.
_WHOLE = re.compile(r"[0-9]{1,9}")
#: Numbers that a list or a range may stand for.
MOST_NUMBERS = 100_000


def option(
    help: str,
    *,
    metavar: str | None = None,
    changeable: bool = False,
    command: str | None = "",
    **bounds: Any,
) -> Meta:
    """Describe an option.

    Parameters
    ----------
    help
        One or two sentences.
    metavar
        Form of several values on the command line: ``LIST`` (0,3 or 0-5), ``A:B:K`` (a geometric
        grid), ``NAME=SOURCE`` (given several times).
    changeable
        Whether results depend on it, but no cell does: a run is resumed with another value.
    command
        Its name on the command line, if it has another one there; None if it has none.
    **bounds
        ``ge``, ``gt``, ``le``, ``lt``, as :class:`msgspec.Meta` takes them.
    """
    extra = {"metavar": metavar, "changeable": changeable, "command": command}
    return Meta(description=help, extra=extra, **bounds)


Seed: TypeAlias = Annotated[int, option("Seed of all random numbers.", ge=0)]
#: Layers and heads; None stands for all of them.
SomeLayers: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(le=100_000)], ...] | None,
    option("Layers to measure, such as 0,3 or 0-5 (default: all).", metavar="LIST"),
]
SomeHeads: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(le=100_000)], ...] | None,
    option("Heads of each layer, such as 0,3 or 0-5 (default: all).", metavar="LIST"),
]


@dataclass(frozen=True)
class Option:
    """An option of a study, as its field's type describes it.

    Attributes
    ----------
    name
        Name of the field.
    type
        Its type, without the description.
    annotation
        Its type, with bounds, as msgspec checks it.
    help, metavar, changeable, command
        See :func:`option`.
    default
        Its default; ``MISSING`` if it must be given.
    """

    name: str
    type: Any
    annotation: Any
    help: str
    metavar: str | None
    changeable: bool
    command: str | None
    default: Any

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"--{(self.command or self.name).replace('_', '-')}"


@cache
def options_of(study: type) -> tuple[Option, ...]:
    """Return the options of a study, a dataclass, in the order of its fields."""
    hints = get_type_hints(study, include_extras=True)
    options = []
    for field in fields(study):
        name, hint = field.name, hints[field.name]
        metas = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Meta) and m.extra]
        if not metas:
            raise TypeError(f"{study.__name__}.{name} has no option(...) in its type")
        kind, *bounds = get_args(hint)
        rest = [part for part in get_args(kind) if part is not NoneType]
        if get_origin(kind) in (Union, UnionType) and len(rest) == 1:
            hint = Annotated[rest[0], *bounds] | None  # the bounds are those of what is not None
        extra: dict[str, Any] = dict(metas[-1].extra or {})
        options.append(
            Option(
                name=name,
                type=kind,
                annotation=hint,
                help=metas[-1].description or "",
                default=field.default,
                **extra,
            )
        )
    return tuple(options)


def checked(option: Option, value: Any) -> Any:
    """Return the value of an option as its type wants it.

    Raises
    ------
    InputError
        Naming the option, the value and what is allowed.
    """
    if value is None and option.default in (None, ()):
        return option.default
    if Path in (option.type, *get_args(option.type)):
        return as_path(value, option.name)
    if isinstance(value, str) and option.metavar in LISTS:
        value = listed(option, value, option.name)
    given, item = _plain(value, _whole(option.type)), _item(option.type)
    if item is str and isinstance(given, str):
        given = [name.strip() for name in given.split(",")] if given else []
    elif item is float and isinstance(given, int | float):
        given = [given]
    try:
        if isinstance(given, int) and given > LARGEST:
            raise msgspec.ValidationError(f"Expected `int` <= {LARGEST}")
        for number in given if isinstance(given, list) else [given]:
            if isinstance(number, float) and not math.isfinite(number):
                raise msgspec.ValidationError("Expected `float` that is finite")
        return msgspec.convert(given, option.annotation)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        shown = given if hasattr(value, "tolist") else value
        each = "each entry" if "[" in place else "it"
        kinds = (option.annotation, *get_args(option.annotation))
        metas = [m for k in kinds for m in getattr(k, "__metadata__", ()) if isinstance(m, Meta)]
        bounds = [bound for m in metas for bound in (m.le, m.lt) if bound is not None]
        # a percentage where a share is wanted is taken for a slip
        slip = isinstance(given, int | float) and 2 <= given <= 100 and min(bounds, default=2) <= 1
        raise InputError(
            f"{option.name} is {shortened(shown)}; {each} must be {allowed(message, option.type)}"
            + (f"; did you mean {given / 100:g}?" if slip else "")
        ) from error


def _plain(value: Any, whole: bool) -> Any:
    """Numbers of numpy as Python's own, iterables as lists, 3.0 as 3 where a count is wanted."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float) and whole and value.is_integer():
        return int(value)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | dict):
        return [_plain(item, whole) for item in value]
    return value


def _item(kind: Any) -> Any:
    """The type of a list's entries; None for what is no list."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    item = next((get_args(part)[0] for part in parts if get_origin(part) is tuple), None)
    return get_args(item)[0] if get_origin(item) is Annotated else item


def _whole(kind: Any) -> bool:
    """Whether a type holds whole numbers."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return kind is int or any(_whole(part) for part in get_args(kind) if part is not kind)


def plain_type(kind: Any) -> Any:
    """Return a type without bounds and descriptions, at any depth."""
    if get_origin(kind) is Annotated:
        return plain_type(get_args(kind)[0])
    parts = tuple(part if part is Ellipsis else plain_type(part) for part in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return reduce(or_, parts)
    return GenericAlias(tuple, parts) if get_origin(kind) is tuple else kind


def listed(option: Option, text: str, name: str) -> Any:
    """Return the numbers that a text such as ``0-5``, ``64:2048:6`` or ``1,2`` stands for.

    Parameters
    ----------
    option
        Whose value it is.
    text
        The text.
    name
        What messages call the option.

    Raises
    ------
    InputError
        Naming the option and the text.
    """
    if _item(option.type) is not int:
        real = option.metavar == "A:B:K"
        return geometric_sizes(text, None, name) if real else numbers(text, name)
    if option.metavar == "A:B:K":
        parts = get_args(option.type) if get_origin(option.type) is not tuple else (option.type,)
        entry = next(get_args(part)[0] for part in parts if get_origin(part) is tuple)
        least = [m.ge for m in getattr(entry, "__metadata__", ()) if m.ge is not None]
        return geometric_sizes(text, int(max(least, default=2)), name)
    whole: list[int] = []
    for part in text.split(","):
        ends = part.split("-")
        if not all(_WHOLE.fullmatch(end.strip()) for end in ends) or len(ends) > 2:
            raise InputError(f"{name} is {text!r}; write numbers such as 0,3 or ranges such as 0-5")
        first, last = int(ends[0].strip()), int(ends[-1].strip())
        if last < first:
            raise InputError(f"{name} is {text!r}; the range {part} runs backwards")
        if last - first + len(whole) > MOST_NUMBERS:
            raise InputError(
                f"{name} is {text[:80]!r}; at most {MOST_NUMBERS} numbers can be given"
            )
        whole += range(first, last + 1)
    return whole


def geometric_sizes(text: str, smallest: int | None = 2, option: str = "--sizes") -> Array:
    """Read ``a:b:k`` (k numbers in geometric progression), ``a:b`` (one per decade) or ``a,b,c``.

    Numbers of tokens are rounded, and at least ``smallest``; without one, any positive numbers.
    """
    import numpy as np

    parts = text.split(":")
    if len(parts) == 1:
        given = numbers(text, option)
        return given if smallest is None else as_sizes(given, option, smallest)
    if len(parts) > 3 or (smallest is None and len(parts) == 2):
        forms = "first:last:count or" if smallest is None else "first:last:count, first:last or"
        raise InputError(f"{option} is {text!r}; write {forms} a list a,b,c")
    first, last, *rest = numbers(",".join(parts), option)
    if not (0 < first < last if smallest is None else smallest <= first < last):
        start = "above 0" if smallest is None else f"at n = {smallest} or more"
        raise InputError(f"{option} is {text!r}; it must start {start} and end above its start")
    count = rest[0] if rest else max(2, round(np.log10(last / first)) + 1)
    if count != int(count) or not 2 <= count <= 10_000:
        raise InputError(f"{option} is {text!r}; the count must be a whole number of at least 2")
    grid = np.geomspace(first, last, int(count))
    return grid if smallest is None else as_sizes(np.unique(np.round(grid)), option, smallest)


def numbers(text: str, option: str) -> Array:
    """Read a list of numbers separated by commas."""
    import numpy as np

    values = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            raise InputError(f"{option}: {part!r} is not a number") from None
        if not math.isfinite(value):
            raise InputError(f"{option}: {part!r} is not finite")
        values.append(value)
    return np.array(values)
