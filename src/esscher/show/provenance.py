"""Where a run's numbers come from, and the command that gives them again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from esscher.show.stored import StoredRun

#: A path of a model or text that a configuration does not hold in full.
_STORED = "The command as it was given."
_REBUILT = "Rebuilt from the stored configuration: files are named without their directories."
_PYTHON = "This run was started from Python, and no command does the same."


def provenance(run: StoredRun) -> list[tuple[str, str]]:
    """Names and values: time, model, text, seed, versions, hashes."""
    configuration = run.configuration
    rows: list[tuple[str, str | None]] = [
        ("started", _time(run.about.get("created") or run.results.get("created"))),
        ("state", "complete" if run.complete else "not complete"),
        ("seed", str(configuration.get("seed", ""))),
    ]
    model = configuration.get("model")
    if model:
        about = [str(model[name]) for name in ("family", "dtype") if name in model]
        rows.append(("model", f"{model['name']} ({', '.join(about)})" if about else model["name"]))
        if "head_dim" in model:
            shape = f"{model['layers']} layers × {model['heads']} heads, d = {model['head_dim']}"
            rows.append(("shape", shape))
        rows.append(
            ("weights, SHA-256", configuration.get("weight_hash") or model.get("weight_hash"))
        )
    rows += _texts(configuration)
    versions = run.results.get("versions") or run.about.get("versions") or {}
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in versions.items() if v)))
    rows.append(("revision of the source", run.about.get("git_revision")))
    return [(name, value) for name, value in rows if value]


def _texts(configuration: dict[str, Any]) -> list[tuple[str, str | None]]:
    rows: list[tuple[str, str | None]] = []
    for name in ("text", "check"):
        found = configuration.get(name)
        if isinstance(found, dict):
            rows += [(name, found["source"]), (f"{name}, SHA-256", found["hash"])]
        elif isinstance(found, str):
            rows += [(name, found), (f"{name}, SHA-256", configuration.get("text_hash"))]
    for corpus in configuration.get("texts", []):
        rows.append((f"corpus {corpus['name']}", f"{corpus['source']}, {corpus['text_hash']}"))
    return rows


def command(run: StoredRun, rebuilt: Sequence[str] | None) -> tuple[str | None, str]:
    """The command that reproduces a run, and what is to be known about it.

    Parameters
    ----------
    run
        The run.
    rebuilt
        Its command, rebuilt from the configuration; None if no command does the same.
    """
    stored = run.about.get("command")
    if isinstance(stored, list) and stored and all(isinstance(word, str) for word in stored):
        return shlex.join(stored), _STORED
    if rebuilt is None:
        return None, _PYTHON
    return shlex.join(["esscher", *rebuilt]), _REBUILT


def configuration_text(run: StoredRun) -> str:
    """The configuration as it is stored."""
    return json.dumps(run.configuration, indent=2, ensure_ascii=False)


def options(**values: Any) -> list[str]:
    """Options of a command; None and False are left out, lists become ``a,b,c``."""
    words: list[str] = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is True:
            continue
        words.append(",".join(_word(v) for v in value) if isinstance(value, (list, tuple)) else
                     _word(value))  # fmt: skip
    return words


def model_options(configuration: dict[str, Any]) -> dict[str, Any]:
    """Layers, heads and type of a model, where they are not all or the usual one."""
    model = configuration["model"]
    out: dict[str, Any] = {}
    for name in ("layers", "heads"):
        chosen = configuration.get(name)
        if isinstance(chosen, list) and chosen != list(range(model[name])):
            out[name] = chosen
    if model.get("dtype", "float32") != "float32":
        out["dtype"] = model["dtype"]
    return out


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and f"{value:g}" == repr(value) else str(value)


def _time(value: Any) -> str | None:
    return None if value is None else str(value).replace("T", " ").replace("+00:00", " UTC")
