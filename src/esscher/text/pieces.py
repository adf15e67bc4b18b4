"""Long texts cut into pieces between lines or words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

#: Characters of a piece: about 16,000 tokens, which is what reading ahead can cost.
PIECE = 65_536


def pieces(chunks: Iterable[str], size: int = PIECE) -> Iterator[str]:
    """Join chunks and cut them anew into pieces of at most ``size`` characters.

    A cut falls behind the last end of a line in the second half of a piece, or else before the
    last space in it, so that tokens are those of the whole text (but for a text with neither).
    """
    rest = ""
    for chunk in chunks:
        rest += chunk
        while len(rest) > size:
            cut = rest.rfind("\n", size // 2, size) + 1
            if cut == 0:
                cut = rest.rfind(" ", size // 2, size)
            if cut <= 0:
                cut = size
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest
