"""The study and its result, the ledger: which claims, at which scale, on which model and text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from msgspec import Meta

from esscher.core.codec import Record
from esscher.core.errors import InputError
from esscher.core.options import Seed, option
from esscher.core.shown import shortened
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell, CellRun
from esscher.runs.old_result import Result
from esscher.runs.old_study import OneBatch, Study
from esscher.studies.paper.ledger import Entry, Setting, Unit

if TYPE_CHECKING:
    import pandas as pd

#: The claims in the order of the page. The first eight are the paper's; what it leaves open, and
#: what came after it, follow.
NAMES = (
    "limit",
    "ball",
    "moments",
    "bound",
    "reference",
    "ablation",
    "hardmax",
    "heads",
    "downstream",
    "sparse",
    "depth",
    "tails",
    "together",
    "domains",
    "causal",
)
#: The models and the text unless others are given.
ENCODER, DECODER, TEXT = "demo:minilm", "demo:smollm2", "demo:docs"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Paper(Result["PaperStudy"]):
    """The claims of the paper, each with what was measured and a verdict.

    Attributes
    ----------
    entries
        One per claim whose measurements are all there, in the order of the page.
    """

    entries: tuple[Entry, ...]

    def __getitem__(self, claim: str) -> Entry:
        """Return the entry of a claim."""
        for entry in self.entries:
            if entry.claim == claim:
                return entry
        names = ", ".join(entry.claim for entry in self.entries) or "none"
        raise InputError(f"the claim {claim!r} was not judged; judged are: {names}")

    def table(self) -> pd.DataFrame:
        """Return the ledger as a data frame: claim, verdict, what was measured, and the command."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "claim": entry.claim,
                    "verdict": entry.verdict,
                    "measured": entry.measured,
                    "weakest point": entry.weakest,
                    "command": f"esscher paper {entry.claim}",
                }
                for entry in self.entries
            ],
            columns=["claim", "verdict", "measured", "weakest point", "command"],
        )

    def checks(self) -> pd.DataFrame:
        """Return every check of every claim, with its rule."""
        import pandas as pd

        rows = [
            {
                "claim": entry.claim,
                "says": check.says,
                "verdict": check.verdict,
                "measured": check.measured,
                "rule": check.rule,
                "counts": check.counts,
            }
            for entry in self.entries
            for check in entry.checks
        ]
        return pd.DataFrame(rows)

    def shown(self) -> list[pd.DataFrame]:
        """Return the ledger without what only the page has room for."""
        return [self.table()[["claim", "verdict", "measured"]]]


class PaperCell(Record, frozen=True, kw_only=True):
    """A unit of a measurement; its rows are in the table."""

    measurement: str


@dataclass(frozen=True, kw_only=True)
class PaperStudy(Study[Paper]):
    """Check the claims of the paper one by one.

    The paper is "Token Sample Complexity of Attention" (arXiv 2512.10656). A claim holds, is
    contradicted or is undecided, by a rule that its page states. Claims about real heads use the
    models that come with the program, or yours.
    """

    name = "paper"
    asks = "Does the paper hold, claim by claim?"
    unit = "measurements"
    cell = PaperCell
    result = Paper
    examples = (
        "esscher paper --out runs/paper --workers 2",
        "esscher paper ball hardmax --scale standard --out runs/standard",
        "esscher paper heads --model ./my-encoder --text corpus.txt --out runs/mine",
    )
    next_step = "esscher paper --scale standard"
    first: ClassVar[tuple[str, ...]] = ("claims",)

    claims: Annotated[
        tuple[Annotated[str, Meta(max_length=64)], ...],
        option(
            f"Claims to check (default: all): {', '.join(NAMES)}.",
            metavar="CLAIM...",
            changeable=True,
        ),
    ] = field(default=(), kw_only=False)
    scale: Annotated[
        Literal["quick", "standard", "paper"],
        option(
            "quick: three minutes on two cores; standard: under an hour; paper: the authors' "
            "sizes, days."
        ),
    ] = "quick"
    model: Annotated[
        str | None,
        option(
            "Hub name, folder or GGUF file of a model in place of the embedded one of its kind "
            "(encoder demo:minilm, decoder demo:smollm2)."
        ),
    ] = None
    text: Annotated[
        str, option("Text that the models read: a file, a folder, demo:docs or demo:code.")
    ] = TEXT
    seed: Seed = 0

    def checked(self) -> Self:
        """Also take the names of claims as text: ``paper("ball")``, ``paper("ball,hardmax")``."""
        claims = self.claims
        if isinstance(claims, str):
            return replace(self, claims=tuple(claims.replace(",", " ").split())).checked()
        return super().checked()

    def filled(self) -> Self:
        """Refuse claims, models and texts that there are not."""
        for name in self.claims:
            if name not in NAMES:
                raise InputError(
                    f"there is no claim {shortened(name)}; choose from {', '.join(NAMES)}"
                )
        _ = self.setting  # reads the outline of a model
        if self.uses_models:
            from esscher.engine.text.documents import check_text

            check_text(self.text, None)
        return replace(self, claims=self.chosen)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The claims in the order of the page; all if none are named."""
        return tuple(name for name in NAMES if name in (self.claims or NAMES))

    @property
    def uses_models(self) -> bool:
        """Whether a claim is about real heads."""
        return any(name not in ("limit", "ball", "moments", "reference") for name in self.chosen)

    @property
    def setting(self) -> Setting:
        """What every unit is a function of."""
        encoder, decoder = ENCODER, DECODER
        if self.model is not None:
            from esscher.engine.models.choice import ModelChoice

            if ModelChoice(self.model).outline.causal:
                decoder = self.model
            else:
                encoder = self.model
        return Setting(self.scale, self.seed, encoder, decoder, self.text)

    def units(self) -> Iterator[tuple[str, str, Unit]]:
        """Yield the name of every cell, its measurement and its options."""
        from esscher.studies.paper.claims import CLAIMS, MEASUREMENTS

        used = dict.fromkeys(name for claim in self.chosen for name in CLAIMS[claim].uses)
        for name in used:
            for number, unit in enumerate(MEASUREMENTS[name].units(self.scale)):
                yield f"{name}-{number}", name, unit

    def cells(self) -> list[str]:
        """One cell per unit of every measurement that a claim rests on."""
        return [name for name, _, _ in self.units()]

    def prepare(self, executor: CellExecutor) -> OneBatch:
        """Make a task of every unit, those that take longest first."""
        setting = self.setting
        tasks = {
            cell: Task(cell, _measure, (measurement, unit, setting))
            for cell, measurement, unit in self.units()
        }
        return OneBatch(self, tasks)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Paper:
        """Judge the claims whose measurements are all there."""
        from esscher.studies.paper.claims import judge_all

        tables: dict[str, list[Cell]] = {}
        missing = set()
        for cell, measurement, _ in self.units():
            if cell in cells:
                tables.setdefault(measurement, []).append(cells[cell])
            else:
                missing.add(measurement)
        entries = judge_all(self.chosen, tables, missing, self.setting)
        return Paper.of(run, self, len(cells), _headline(entries, self.chosen), entries=entries)

    @property
    def subject(self) -> str:
        """Scale of the run."""
        return f"scale {self.scale}"

    def command_words(self) -> list[str]:
        """Return the words of the command; claims stand without a name."""
        words = ["paper", *(self.chosen if self.chosen != NAMES else ())]
        for name in ("scale", "model", "text", "seed"):
            value = getattr(self, name)
            if value != getattr(PaperStudy, name):
                words += [f"--{name}", str(value)]
        return words


def _measure(measurement: str, unit: Unit, setting: Setting) -> Cell:
    """Compute a unit: its rows as a table."""
    import pandas as pd

    from esscher.studies.paper.claims import MEASUREMENTS

    rows = MEASUREMENTS[measurement].measure(unit, setting)
    return Cell(PaperCell(measurement=measurement), pd.DataFrame(rows))


def _headline(entries: tuple[Entry, ...], chosen: tuple[str, ...]) -> str:
    """Count the verdicts, and name the claims."""
    if not entries:
        return "Nothing has been measured yet."
    parts = []
    for verdict, one, many in (
        ("holds", "holds", "hold"),
        ("contradicted", "is contradicted", "are contradicted"),
        ("undecided", "is undecided", "are undecided"),
    ):
        names = [entry.claim for entry in entries if entry.verdict == verdict]
        if names:
            parts.append(f"{len(names)} {one if len(names) == 1 else many} ({', '.join(names)})")
    return f"Of {len(chosen)} claims {'; '.join(parts)}."
