"""Schemas of the files of runs, and what is said about a file that does not fit.

``schemas/KIND.json`` is a JSON Schema (draft 7) with one definition per file: ``config``,
``cell``, ``results``, and ``file`` for plans. Fields that are not listed are left alone, since a
later version may have added them; the exceptions are plan files and requests, where an unknown
field would be an option that does nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import fastjsonschema

from esscher.core.errors import InputError
from esscher.core.untrusted import limits, printable, read_json, shortened

#: What there are schemas of: kinds of runs; ``run`` is what all have in common.
KINDS = (
    "run",
)  # fmt: skip


def known(kind: str) -> str:
    """The schema for a kind of run; for one that has none, what all runs have in common."""
    return kind if kind in KINDS else "run"


def schema_of(kind: str) -> dict[str, Any]:
    """The JSON Schema of the files of a kind of run.

    Raises
    ------
    InputError
        For a kind that has none.
    """
    if kind not in KINDS:
        raise InputError(
            f"there is no schema of {shortened(kind)}; there are those of studies, such as tails, "
            f"and {', '.join(KINDS)}"
        )
    text = (files("esscher.runs") / "schemas" / f"{kind}.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def read_checked(
    path: Path, kind: str, part: str, limit: int = limits.CONFIGURATION, *, follow: bool = False
) -> dict[str, Any]:
    """Contents of a JSON file that fits its schema.

    Parameters
    ----------
    path
        The file.
    kind, part
        Which schema, and which of its definitions.
    limit
        Largest size in bytes.
    follow
        Whether the file may be a link.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    InputError
        Naming the file, the field, its value and what is allowed.
    """
    found = read_json(path, limit, follow=follow)
    check(found, kind, part, str(path))
    return dict(found)


def check(found: Any, kind: str, part: str, place: str) -> None:
    """Refuse what does not fit; see :func:`read_checked`."""
    try:
        _validator(kind, part)(found)
    except fastjsonschema.JsonSchemaValueException as error:
        raise InputError(f"{place} is damaged: {_said(error)}") from error


@cache
def _validator(kind: str, part: str) -> Callable[[Any], Any]:
    schema = schema_of(kind)
    wanted = {"$ref": f"#/definitions/{part}", "definitions": schema["definitions"]}
    compiled: Callable[[Any], Any] = fastjsonschema.compile(
        wanted, use_default=False, detailed_exceptions=True
    )
    return compiled


def _said(error: fastjsonschema.JsonSchemaValueException) -> str:
    """Field, value and what is allowed, in words."""
    field = printable(str(error.name).removeprefix("data").removeprefix("."))
    field = field if len(field) <= 200 else field[:197] + "..."
    place, rule, allowed = field or "it", error.rule, error.rule_definition
    if rule == "required":
        value = error.value if isinstance(error.value, dict) else {}
        missing = next((name for name in allowed if name not in value), allowed)
        return f"{place} has no {missing!r}"
    if rule == "additionalProperties" and allowed is False:
        known = (error.definition or {}).get("properties", {})
        value = error.value if isinstance(error.value, dict) else {}
        other = next((name for name in value if name not in known), "")
        return f"{place} has {shortened(other)}, which is not known; it may have {', '.join(known)}"
    words = {
        "type": "it must be {}",
        "minimum": "it must be at least {}",
        "maximum": "it must be at most {}",
        "exclusiveMinimum": "it must be more than {}",
        "const": "it must be {}",
        "enum": "it must be one of {}",
        "maxLength": "it may have at most {} characters",
        "minItems": "it must have at least {} entries",
        "maxItems": "it may have at most {} entries",
        "maxProperties": "it may have at most {} fields",
        "pattern": "it must look like {}",
    }.get(str(rule), f"it must fit {rule} {{}}")
    listed = allowed if isinstance(allowed, list) else [allowed]
    return f"{place} is {shortened(error.value)}; " + words.format(" or ".join(map(str, listed)))
