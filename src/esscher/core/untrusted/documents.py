"""JSON and YAML of bounded size, depth and number of values; numbers are finite."""

from __future__ import annotations

import gc
import json
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from esscher.core.errors import InputError
from esscher.core.shown import printable, shortened
from esscher.core.untrusted import limits
from esscher.core.untrusted.regular import read_file

#: Text that PyYAML may take for a number: decimal, hexadecimal, or of minutes and seconds.
_NUMBER = re.compile(r"[-+0-9a-fA-FxXob:_.]+")


def read_json(path: Path, limit: int = limits.CONFIGURATION, *, follow: bool = True) -> Any:
    """Contents of a JSON file.

    Parameters
    ----------
    path
        The file.
    limit
        Its largest size, in bytes.
    follow
        Whether it may be a link; see :func:`esscher.core.untrusted.open_regular`.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    InputError
        If it cannot be read, is no JSON, or is beyond a limit; the message says where.
    """
    return parse_json(read_file(path, limit, follow=follow), str(path))


def parse_json(data: bytes | str, place: str, values: int = limits.VALUES) -> Any:
    """JSON, with ``place`` in messages.

    Refused: names that occur twice in an object (readers differ in which one they take), NaN and
    Infinity, numbers that overflow, more than so many ``values``, and what is beyond the limits on
    depth and strings.
    """
    found = _parsed(data, place, values, _object, _no_constant)
    _check(found, place)
    return found


def parse_row(line: str, place: str) -> Any:
    """JSON of one row of a table of text, of which only one column matters.

    Other columns may hold NaN, as many programs write it; limits hold for them, too.
    """
    found = _parsed(line, place, limits.ROW_VALUES, None, None)
    _check(found, place, limits.TEXT_ROW, finite=False)
    return found


def _parsed(data: bytes | str, place: str, values: int, pairs: Any, constant: Any) -> Any:
    text = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    if sum(text.count(mark) for mark in (b",", b"[", b"{")) > values:
        raise InputError(f"{place} has more than {values:,} values; it is not what its name says")
    try:
        with _no_collection():
            return json.loads(data, object_pairs_hook=pairs, parse_constant=constant)
    except RecursionError as error:
        raise _too_deep(place) from error
    except ValueError as error:  # also UnicodeDecodeError, and numbers of thousands of digits
        raise InputError(
            f"{place} cannot be read as JSON: {printable(str(error))[:200]}"
        ) from error


def parse_yaml(data: bytes, place: str) -> Any:
    """YAML of plain values: without aliases, a few of which stand for gigabytes, and without tags.

    PyYAML takes quadratic time for lists inside each other and for numbers with colons (minutes
    and seconds), so that both are bounded before anything is made of the text.
    """
    import yaml  # type: ignore[import-untyped]

    try:
        text = data.decode("utf-8")
        _check_tokens(yaml, yaml.scan(text, Loader=yaml.SafeLoader), place)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _check_names(yaml, node, place)
        found = None if node is None else loader.construct_document(node)
    except RecursionError as error:
        raise _too_deep(place) from error
    except InputError:
        raise
    except (
        yaml.YAMLError,
        ValueError,
        ArithmeticError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = printable(" ".join(lines[:3]) or type(error).__name__)[:200]
        raise InputError(f"{place} is neither YAML nor JSON: {said}") from error
    _check(found, place)
    return found


def _check_tokens(yaml: Any, tokens: Iterable[Any], place: str) -> None:
    """Refuse what would take long, while the text is cut into tokens."""
    opening = (
        yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken,
        yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken,
    )  # fmt: skip
    closing = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)
    depth = 0
    for count, token in enumerate(tokens):
        line = f"{place}, line {token.start_mark.line + 1}"
        depth += isinstance(token, opening) - isinstance(token, closing)
        if depth > limits.DEPTH:
            raise _too_deep(place)
        if count > limits.TOKENS:
            raise InputError(f"{line}: the file has too many values; it is not what its name says")
        if isinstance(token, yaml.AliasToken):
            raise InputError(
                f"{line}: aliases (*{shortened(token.value)[1:-1]}) are not read; write the value "
                "itself"
            )
        if isinstance(token, yaml.TagToken):
            raise InputError(
                f"{line}: tags ({shortened(''.join(filter(None, token.value)))}) are not read; "
                "write the value itself, in quotes if it is text"
            )
        if isinstance(token, yaml.ScalarToken) and token.plain and _is_long_number(token.value):
            raise InputError(
                f"{line}: {shortened(token.value)} is not a number; quote it if it is text"
            )


def _is_long_number(text: str) -> bool:
    return len(text) > limits.DIGITS and _NUMBER.fullmatch(text) is not None


def _check_names(yaml: Any, node: Any, place: str) -> None:
    """Refuse a mapping with the same name twice, as in JSON."""
    nodes = [node]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            nodes += (part for pair in node.value for part in pair)
            names = (name.value for name, _ in node.value if isinstance(name, yaml.ScalarNode))
            twice = _first_twice(names)
            if twice is not None:
                raise InputError(
                    f"{place}, line {node.start_mark.line + 1}: {shortened(twice)} occurs twice; "
                    "keep one of them"
                )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the garbage collector, which a growing heap would start again and again in vain."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


class _Twice(ValueError):
    """A name that an object has twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice(
            f"{shortened(_first_twice(name for name, _ in pairs))} occurs twice in one object"
        )
    return found


def _first_twice(names: Iterable[Any]) -> Any:
    """Return the first name that occurs twice; None if none does."""
    seen: set[Any] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def _check(found: Any, place: str, longest: int = limits.STRING, *, finite: bool = True) -> None:
    """Depth, strings and numbers, level by level: no recursion, and one pass over the values."""
    level: list[Any] = [found]
    for _ in range(limits.DEPTH + 1):
        below: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is float:
                if finite and not math.isfinite(value):
                    raise InputError(f"{place} holds a number that is too large, or none")
            elif kind is list:
                below += value
            elif kind is dict:
                below += value
                below += value.values()
            elif kind is str:
                if len(value) > longest:
                    raise InputError(
                        f"{place} holds a string of {len(value):,} characters; at most "
                        f"{longest:,} are read"
                    )
            elif kind is int and not -limits.WHOLE < value < limits.WHOLE:
                raise InputError(
                    f"{place} holds {shortened(value)}; that is neither a size nor a count"
                )
        if not below:
            return
        level = below
    raise _too_deep(place)


def _too_deep(place: str) -> InputError:
    return InputError(
        f"{place} has more than {limits.DEPTH} lists or objects inside each other; it is not what "
        "its name says"
    )
