"""A clock that jumps by up to a year, back and forth, in the process that calls :func:`jump`.

The monotonic clock does not jump, by its definition; everything else that tells Esscher the time
does. (The class of dates cannot be replaced for all: libraries in C rely on its layout.)
"""

from __future__ import annotations

import datetime
import sys
import time

from esscher.core.streams import random_stream

YEAR = 365.25 * 86_400
#: Seconds between two jumps.
EVERY = 0.05


def jump(seed: int) -> None:
    """Let the clock of this process jump from now on."""
    true_time, monotonic = time.time, time.monotonic
    choices = [-YEAR, YEAR, -3600.0, 3600.0, 0.0]
    offsets = random_stream(seed, "clock").choice(choices, size=1000).tolist()

    def now() -> float:
        return float(true_time() + offsets[int(monotonic() / EVERY) % len(offsets)])

    class JumpingDate(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return cls.fromtimestamp(now(), tz)

    time.time = now
    time.time_ns = lambda: int(now() * 1e9)
    for name, module in list(sys.modules.items()):
        if name.startswith("esscher") and getattr(module, "datetime", None) is datetime.datetime:
            module.datetime = JumpingDate  # type: ignore[attr-defined]
