"""The page of a result in a report: its answer, what matters, its charts and tables, its source."""

from __future__ import annotations

import json
import shlex
from typing import Any

from esscher.runs.folder import CONFIG, About, read_about
from esscher.runs.registry import part_of
from esscher.runs.result import Result
from esscher.show.content import Drawn, Page, Summary
from esscher.show.drawing import offered

_STORED = "The command as it was given."
_REBUILT = "Rebuilt from the stored configuration: files are named without their directories."
_PYTHON = "This run was started from Python; no command does the same."


def name_of(found: Result[Any]) -> str:
    """Return the name of a result's directory; of what was measured, if there is none."""
    folder = found.folder
    if folder is not None and (folder / CONFIG).exists():
        return folder.resolve().name
    return str(found.study.subject)


def page_of(found: Result[Any]) -> Page:
    """Return the page of a result."""
    name, about = name_of(found), _about(found)
    summary: Summary = part_of(found.study.name, "page").summary(found, name)
    command, note = _command(found, about, name)
    return Page(
        title=name,
        kind=summary.name,
        subject=summary.subject,
        answer=summary.answer or found.headline,
        complete=found.complete,
        cards=summary.cards,
        parts=summary.parts or [*_charts(found), *summary.tables],
        provenance=_provenance(found, about),
        command=command,
        command_note=note,
        configuration=json.dumps(found.study.configuration(), indent=2, ensure_ascii=False),
    )


def _charts(found: Result[Any]) -> list[Drawn]:
    """The charts of a report, in the order in which the study offers them."""
    drawings = offered(part_of(found.study.name, "charts").DRAWINGS, found)
    return [Drawn(d.heading, d.draw(found), d.caption) for d in drawings if d.heading]


def _about(found: Result[Any]) -> About | None:
    """What the run's directory says about itself, if there is one."""
    folder = found.folder
    return read_about(folder) if folder is not None and (folder / CONFIG).exists() else None


def _provenance(found: Result[Any], about: About | None) -> list[tuple[str, str]]:
    """Names and values: time, model, text, seed, versions, hashes."""
    configuration = found.study.configuration()
    rows: list[tuple[str, str | None]] = [
        ("started", found.created.replace("T", " ").replace("+00:00", " UTC")),
        ("state", "complete" if found.complete else "not complete"),
        ("seed", str(configuration.get("seed", ""))),
    ]
    model = configuration.get("model")
    if isinstance(model, dict):
        shape = f"{model['layers']} layers × {model['heads']} heads, d = {model['head_dim']}"
        rows += [
            ("model", f"{model['name']} ({model['family']}, {model['dtype']})"),
            ("shape", shape),
            ("weights, SHA-256", model["weight_hash"]),
        ]
    for name in ("text", "check"):
        if isinstance(text := configuration.get(name), dict):
            rows += [(name, text["source"]), (f"{name}, SHA-256", text["hash"])]
    for corpus in configuration.get("texts", []):
        rows.append((f"corpus {corpus['name']}", f"{corpus['source']}, {corpus['text_hash']}"))
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in found.versions.items() if v)))
    rows.append(("revision of the source", about.git_revision if about else None))
    return [(name, value) for name, value in rows if value]


def _command(found: Result[Any], about: About | None, name: str) -> tuple[str | None, str]:
    """The command that gives the run again, and what is to be known about it."""
    if about is not None and about.command:
        return shlex.join(about.command), _STORED
    words = found.study.command_words()
    if words is None:
        return None, _PYTHON
    return shlex.join(["esscher", *words, "--out", name]), _REBUILT
