"""Typed records in JSON: one definition says what is stored, checks what is read, and documents it.

A record is a frozen :class:`msgspec.Struct`. Reading a file of a stranger into it refuses whatever
does not fit, names the field and says what is allowed; fields that are not known are left alone,
since a later version may have added them.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from esscher.core.errors import InputError
from esscher.core.shown import printable, shortened

T = TypeVar("T")

#: Numbers of things: bounded, so that a stranger's file cannot ask for any amount of memory.
Index: TypeAlias = Annotated[int, Meta(ge=0, le=10**6)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=10**15)]
#: Names, hashes and sentences.
Name: TypeAlias = Annotated[str, Meta(max_length=4096)]
Hash: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{0,64}$")]
#: Ends of an interval.
Interval: TypeAlias = tuple[float, float]

#: msgspec's message about a value, and the place of that value.
_PLACE = re.compile(r"(?P<message>.*?)(?: - at `(?P<where>(?:key in )?\$.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
#: Types as msgspec writes them, and in plain words.
_SYMBOLS = {" >= ": " of at least ", " <= ": " of at most ", " > ": " above ", " < ": " below "}
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}
#: Longest path of a field that a message shows.
_LONGEST = 200


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything that is stored as a JSON object."""


def as_record(tree: Any, kind: type[T], place: str) -> T:
    """Return what a JSON value stands for.

    Parameters
    ----------
    tree
        The value, as :func:`json.loads` returns it.
    kind
        The record, or any other type that msgspec knows.
    place
        The file, for the message.

    Raises
    ------
    InputError
        Naming the file, the field, its value and what is allowed.
    """
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{place} is damaged: {_in_words(str(error), tree)}") from error


def as_tree(value: Any) -> Any:
    """Return a record as dictionaries, lists, strings and numbers."""
    return _lists(msgspec.to_builtins(value, enc_hook=_of_numpy))


def _lists(tree: Any) -> Any:
    """A tree with lists for tuples, as JSON has them."""
    if isinstance(tree, dict):
        return {name: _lists(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_lists(value) for value in tree]
    return tree


def _of_numpy(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be stored")


def as_json(value: Any) -> bytes:
    """Return the contents of a JSON file; a number that JSON cannot hold is an error."""
    tree = as_tree(value)
    return (json.dumps(tree, indent=2, allow_nan=False) + "\n").encode()


def allowed(message: str, kind: Any = None) -> str:
    """Return what msgspec's message says a value must be, in words.

    Parameters
    ----------
    message
        Such as ``Expected `int` >= 5``.
    kind
        The type; its values are listed if it has only a few.
    """
    rule = message.replace("`", "").replace(" | null", " or null")
    if rule.startswith(("Invalid enum value", "Invalid value")):
        values = get_args(kind) if get_origin(kind) is Literal else ()
        return (
            f"one of {', '.join(map(str, values))}" if values else "one of the values it may have"
        )
    rule = re.sub(r", got .*", "", rule.removeprefix("Expected "), flags=re.DOTALL)
    for symbol, words in _SYMBOLS.items():
        rule = rule.replace(symbol, words)
    return re.sub(r"\b(int|float|str|bool|object|array)\b", lambda m: _TYPES[m[0]], rule)


def _in_words(message: str, tree: Any) -> str:
    """Field, value and rule, in words."""
    match = _PLACE.fullmatch(message)
    assert match is not None
    message, where = match["message"], match["where"] or "$"
    steps = _STEP.findall(where.removeprefix("key in ").removeprefix("$"))
    field = printable("".join(f".{name}" if name else f"[{i}]" for name, i in steps)).lstrip(".")
    field = field if len(field) <= _LONGEST else field[: _LONGEST - 3] + "..."
    if message.startswith("Object missing required field "):
        return f"{field or 'it'} has no {message.rpartition(' ')[2].strip('`')!r}"
    if message.startswith("Object contains unknown field "):
        return f"{field or 'it'} has {message.rpartition(' ')[2].strip('`')!r}, which is not known"
    value = tree
    try:
        for name, index in steps:
            value = value[name] if name else value[int(index)]
        shown = f" is {shortened(value)}"
    except (LookupError, TypeError, ValueError):  # the path does not say which one it is
        shown = ""
    return f"{field or 'it'}{shown}; it must be {allowed(message)}"
