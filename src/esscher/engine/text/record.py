"""What a stored run says about its text."""

from __future__ import annotations

from esscher.core.codec import Hash, Name, Record


class TextRecord(Record, frozen=True, kw_only=True):
    """A text, as runs name it.

    Attributes
    ----------
    source
        File, folder or name it was read from.
    hash
        SHA-256 of what was read.
    """

    source: Name
    hash: Hash

    def __str__(self) -> str:
        return self.source
