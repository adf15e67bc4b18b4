"""The result: how long a context each head of a decoder uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from esscher.core.codec import Count, Index, Name, Record
from esscher.core.errors import InputError
from esscher.core.shown import counted, two_digits
from esscher.core.validation import Array
from esscher.runs.folder import Cell, CellRun
from esscher.runs.result import Result, WithHeads
from esscher.studies.context.saturation import ContextLength, relative_changes, saturation

if TYPE_CHECKING:
    import pandas as pd

    from esscher.studies.context.study import ContextStudy

#: What can be said of a head at a number of tokens.
DONE = ("done", "not yet", "undecided")


class PassageCell(Record, frozen=True, kw_only=True):
    """A cell: a passage. Its table has the squared change of every head at every doubling.

    Attributes
    ----------
    norms
        Squared norms of the outputs, by layer and head.
    windows
        Windows of the layers; None for a layer without.
    """

    norms: tuple[tuple[float, ...], ...]
    windows: tuple[Count | None, ...]


class HeadContext(ContextLength, frozen=True, kw_only=True):
    """The context that a head uses.

    Attributes
    ----------
    layer, head
        Which one it is.
    change
        Relative change of its output at every doubling.
    note
        How much it still changes, if its end is open.
    """

    layer: Index
    head: Index
    change: tuple[float, ...]
    note: Name


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Context(WithHeads[HeadContext], Result["ContextStudy"]):
    """Context lengths of every head.

    Attributes
    ----------
    lengths
        Contexts that were tried, each twice the one before it.
    heads
        One entry per head.
    """

    lengths: tuple[Count, ...]
    heads: tuple[HeadContext, ...]

    def __post_init__(self) -> None:
        """Refuse heads that were not measured at these lengths."""
        for head in self.heads:
            if len(head.change) != len(self.lengths) - 1 or len(head.rest) != len(self.lengths):
                raise InputError(f"head {head.layer}.{head.head} does not have all lengths")
            if not head.change or head.open != (head.length is None):
                raise InputError(
                    f"head {head.layer}.{head.head} has neither a length nor an open end"
                )

    def table(self) -> pd.DataFrame:
        """Return a data frame, one row per head.

        A head with an open end has no ``length``, and its ``note`` says how much it still changes.
        """
        import pandas as pd

        rows = [
            {
                "layer": head.layer,
                "head": head.head,
                "length": head.length,
                "low": head.interval[0],
                "high": head.interval[1],
                "limit": head.limit,
                "open": head.open,
                "extrapolated": head.extrapolated,
                "exponent": head.exponent,
                "last_change": head.change[-1],
                "note": head.note,
            }
            for head in self.heads
        ]
        numbers = ("length", "low", "high", "limit", "exponent", "last_change")
        return pd.DataFrame(rows).astype(dict.fromkeys(numbers, np.float64) if rows else {})

    def shown(self) -> list[pd.DataFrame]:
        """Return the heads, those that use the longest context first."""
        table = self.table()
        return [table if table.empty else longest_first(table)]


def count_done(heads: Sequence[HeadContext], tokens: int) -> dict[str, int]:
    """How many heads need no more than so many tokens, need more, and are undecided.

    By the interval of the length, never by the length alone: without an interval (one passage) all
    heads are undecided.
    """
    found = dict.fromkeys(DONE, 0)
    for head in heads:
        low, high = head.interval
        if high is None:
            found["undecided"] += 1
        elif high <= tokens:
            found["done"] += 1
        elif low is None or low > tokens:  # an open end, or one beyond
            found["not yet"] += 1
        else:
            found["undecided"] += 1
    return found


def longest_first(heads: pd.DataFrame) -> pd.DataFrame:
    """Heads with an open end, by how much they change, then the others by their length."""
    return heads.sort_values(["open", "length", "last_change"], ascending=False, kind="stable")


def assemble(study: ContextStudy, cells: Mapping[str, Cell], run: CellRun) -> Context:
    """Find where every head stops gaining."""
    lengths = study.lengths
    heads: list[HeadContext] = []
    if cells:
        squares, norms = _arrays(cells, len(lengths) - 1, run)
        windows = next(iter(cells.values())).about.windows
        for layer, head in np.ndindex(*norms.shape[1:]):
            # most tokens that the heads of a layer can see: its window, or what the model reads
            window, reads = windows[layer], study.model_record.max_positions
            limit = float(reads if window is None else min(window, reads))
            own, norm = squares[:, layer, head], norms[:, layer, head]
            found = saturation(own, norm, lengths, study.tolerance, study.seed, limit)
            change = relative_changes(own, norm).tolist()
            note = (
                f"still changing by {change[-1]:.0%} at {study.context:,}" if found.is_open else ""
            )
            heads.append(
                HeadContext(
                    layer=layer,
                    head=head,
                    change=tuple(change),
                    note=note,
                    **structs.asdict(found.record()),
                )
            )
    return Context.of(
        run,
        study,
        len(cells),
        _headline(study, heads),
        lengths=tuple(lengths.tolist()),
        heads=tuple(heads),
    )


def _arrays(cells: Mapping[str, Cell], doublings: int, run: CellRun) -> tuple[Array, Array]:
    """Squared changes [passages, layers, heads, doublings] and norms [passages, layers, heads]."""
    squares: list[Array] = []
    norms: list[Array] = []
    for name, cell in cells.items():
        about: PassageCell = cell.about
        alike = len({len(row) for row in about.norms}) == 1
        norm = np.array(about.norms if alike else [], dtype=np.float64)
        sound = norm.ndim == 2 and len(about.windows) == len(norm)
        if not sound or (norms and norms[0].shape != norm.shape):
            raise run.damaged(name, "its heads are not those of the others")
        if "square" not in cell.table or len(cell.table) != norm.size * doublings:
            raise run.damaged(name, "its table is not of all heads and lengths")
        square = cell.table["square"].to_numpy(dtype=np.float64)
        squares.append(square.reshape(*norm.shape, doublings))
        norms.append(norm)
    return np.stack(squares), np.stack(norms)


def _headline(study: ContextStudy, heads: Sequence[HeadContext]) -> str:
    if not heads:
        return "Nothing has been measured yet."
    longest, half = study.context, study.context // 2
    lengths = np.array([np.inf if head.length is None else head.length for head in heads])
    done, not_yet, undecided = (count_done(heads, half)[name] for name in DONE)
    sentence = (
        f"{done} of {len(heads)} heads have seen enough after {half:,} tokens of context (more "
        f"would change their output by less than {100 * study.tolerance:g}%), {not_yet} have not, "
        f"{undecided} undecided (95% intervals over {counted(study.passages, 'passage')})"
    )
    beyond = lengths[(lengths > longest) & np.isfinite(lengths)]
    if len(beyond):
        sentence += (
            f"; {len(beyond)} need more than {longest:,}, up to ~{two_digits(beyond.max())} "
            "(extrapolated)"
        )
    changes = [head.change[-1] for head in heads if head.open]
    if changes:
        one = "is still changing, by" if len(changes) == 1 else "are still changing, by up to"
        sentence += f"; {len(changes)} {one} {max(changes):.0%} at {longest:,}"
    middle = float(np.median(lengths))
    uses = f"still changes at {longest:,}"
    if np.isfinite(middle):
        mark = "~" if middle > longest else ""
        uses = f"uses {mark}{two_digits(middle)} tokens"
    return f"{sentence}. The median head {uses}."
