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
        start = 0  # the rest is copied once per chunk: a chunk may be a whole book
        while len(rest) - start > size:
            half, end = start + size // 2, start + size
            cut = rest.rfind("\n", half, end) + 1
            if cut == 0:
                cut = rest.rfind(" ", half, end)
            if cut <= start:
                cut = end
            yield rest[start:cut]
            start = cut
        rest = rest[start:]
    if rest:
        yield rest
