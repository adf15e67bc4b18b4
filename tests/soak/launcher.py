"""Starts many ``esscher`` processes quickly: everything is imported once, then forked.

A fault should meet a command at its work, not always among its imports, and a hundred rounds should
not take an hour. Requests are lines of JSON on standard input, answers lines on standard output.
Processes with workers of their own, and some others, are started as users start them.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import sys
from typing import Any

from tests.soak.clock import jump

#: What commands import before and while they work.
MODULES = (
    "esscher.cli.program",
    "esscher.studies.sweep.study",
    "pyarrow.parquet",
    "torch",
    "esscher.engine.attention",
    "rich.table",
)


def main() -> None:
    """Answer requests until standard input ends."""
    for name in (*MODULES, *sys.argv[1:]):
        importlib.import_module(name)
    gc.freeze()
    children: dict[int, int | None] = {}
    answer({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                sys.exit(command(request))
            children[pid] = None
            answer({"pid": pid})
        else:
            answer({"code": poll(children, request["poll"])})


def command(request: dict[str, Any]) -> int | str | None:
    """In the new process: become the command."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started all this
    for number, place in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        handle = os.open(place, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT, 0o666)
        os.dup2(handle, number)
        os.close(handle)
    if request["file_size"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_size"],) * 2)
    if request["clock"] is not None:
        jump(request["clock"])
    sys.argv[:] = ["esscher", *request["start"]]
    from esscher.cli import main as esscher

    try:
        esscher(prog_name="esscher")
    except SystemExit as end:
        return end.code
    except KeyboardInterrupt:  # in the instant before the command has begun
        return 130
    return 0


def poll(children: dict[int, int | None], pid: int) -> int | None:
    """Exit code of a process, as :mod:`subprocess` has it; None if it still runs."""
    if children[pid] is None:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            children[pid] = os.waitstatus_to_exitcode(status)
    return children[pid]


def answer(found: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
