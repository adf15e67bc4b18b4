"""The directory of a run, looked at before anything is computed or a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from esscher.core.atomic import check_room_for
from esscher.core.codec import as_json
from esscher.core.untrusted import parse_json
from esscher.runs.cells import read_run
from esscher.runs.folder import CONFIG, LOG, PARTS, check_free, check_same
from esscher.runs.lock import LOCK


def check_run_place(
    out: str | Path | None, kind: str, known: Mapping[str, Any] | None = None
) -> None:
    """Refuse a directory in which a run could not be stored or resumed.

    Parameters
    ----------
    out
        The directory; nothing is checked without one.
    kind
        Kind of the run.
    known
        What is known of its configuration; the rest is compared when the run is opened.

    Raises
    ------
    InputError
        If it is a file, cannot be written, or holds something else, another kind of run, or one
        with another configuration.
    """
    if out is None:
        return
    folder = Path(out)
    if not (folder / CONFIG).exists():
        check_free(folder, {LOCK, LOG, PARTS})
        check_room_for(folder, str(folder))
        return
    check_room_for(folder, str(folder))
    stored = read_run(folder, kind).configuration
    # as JSON holds it: lists for tuples
    wanted: dict[str, Any] = parse_json(as_json(dict(known or {})), "what is asked for")
    check_same(folder, {name: stored.get(name) for name in wanted}, wanted)
