"""What every head keeps for certain."""

from __future__ import annotations

from dataclasses import dataclass

#: Sinks and recent tokens of a decoder; of a short cache, the recent ones are this share at most.
SINKS, RECENT, SHARE = 4, 32, 1 / 16


@dataclass(frozen=True)
class Keeping:
    """First and last tokens of a text that every head keeps for certain."""

    sinks: int
    recent: int

    @property
    def count(self) -> int:
        """Both together."""
        return self.sinks + self.recent


def keeping_for(keys: int, causal: bool) -> Keeping:
    """A decoder keeps sinks and recent tokens, an encoder its delimiters."""
    return Keeping(SINKS, min(RECENT, int(SHARE * keys))) if causal else Keeping(1, 1)
