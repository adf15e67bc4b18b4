"""The study: its options, what they amount to, and the variables of its cells and results.

A *measurement* has units, which are the cells of a run: raw numbers, such as the errors of a block
of replicates. Once all of its cells are there it has a *summary*: fits and means, a section of the
result. A *claim* is judged from the sections it rests on (``claims.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta

from esscher.core.codec import Name, Record
from esscher.core.errors import InputError
from esscher.core.options import Seed, option
from esscher.core.shown import shortened
from esscher.core.variables import Data, group, joined, section, var
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.result import NotFinished, Result
from esscher.runs.study import Setup, Study, Work

if TYPE_CHECKING:
    import xarray as xr

Scale: TypeAlias = Literal["quick", "standard", "paper"]
#: The claims in the order of the page. The first eight are the paper's; what it leaves open, and
#: what came after it, follow.
NAMES = (
    *("limit", "ball", "moments", "bound", "reference", "ablation", "hardmax", "heads"),
    *("downstream", "sparse", "depth", "tails", "together", "domains", "causal"),
)
#: Tokens that BigBird reads at a time: encoders that read as many are measured like it.
LONG_CONTEXT = 4_096
#: Claims for which no model is loaded.
SYNTHETIC = ("limit", "ball", "moments", "reference")
#: The models and the text unless others are given.
ENCODER, DECODER, TEXT = "demo:minilm", "demo:smollm2", "demo:docs"


# -- cells, and summaries that are no more than cells side by side


class Errors(Data):
    """Errors of laws, radii, scales or heads in replicates: the cell of most measurements."""

    error = var("item metric replicate size")
    expected = var("item metric size", help="what theory says of them", optional=True)


class Hardmax(Data):
    """Size of the mean output of hardmax attention, and the power of 1/ln n fitted to it."""

    simulated = var("size")
    standard_error = var("size", help="of the simulated one")
    exact = var("size")
    leading = var("size", help="leading term as n grows")
    power = var("bound", help="of 1/ln n, fitted to simulations")
    exact_power = var(help="the same of the exact values at these sizes")


class Exponents(Data):
    """Exponents of the errors of heads."""

    exponent = var("... metric bound", "β")
    joint = var("... metric bound", page=False, help="interval for all heads together")
    over_log = var(
        "... metric", page=False, help="criterion of powers of ln n minus that of powers of n"
    )
    law = var("... metric", kind="U", page=False, help="law that the curve decides")
    trusted = var("... metric", kind="b", page=False)


class HeadExponents(Data):
    """Every head of an encoder: its horizon, and how fast its errors fall."""

    psi = var("layer head", "Ψ = H²", "s3")
    psi_one_sided = var("layer head", "Ψ, one-sided", "s3")
    fits = group(Exponents, "layer head")
    largest = var("layer", kind="i", page=False, help="largest number of tokens")
    effective_heads = var("layer bound", page=False, help="independent heads with as much error")
    amplification = var(
        "layer bound", page=False, help="squared error of the sum over the sum of squared errors"
    )


class HeadErrors(Data):
    """Exponents of heads whose tilts are scaled, or that take the key with the largest logit."""

    fits = group(Exponents, "layer head")
    error = var("layer head metric size bound", help="over the output of all tokens", optional=True)
    tokens = var(kind="i", help="tokens of the cloud", optional=True)


class Answers(Data):
    """Answers of a model whose attention sees n keys."""

    loss = var("task item draw size", help="share of answers that differ from the dense model's")
    accuracy = var("task item draw size", help="share of right answers")
    dense_accuracy = var("task item", help="share of right answers of the dense model")
    answers = var("task item", kind="i", help="their number")


class Patterns(Data):
    """Sparse patterns beside a random choice of as many keys."""

    exponent = var("pattern bound", help="of the map's error")
    difference = var("pattern bound", help="from the exponent of random keys")


class Depth(Data):
    """Errors by layer of a decoder whose layers attend to n keys only."""

    error = var("layer size bound", help="relative error of the tokens")
    exponent = var("layer bound")


class Heads(Data):
    """Results of the studies of tails and of domains, for every head."""

    verdict = var("layer head", kind="U", help="type of the tail; whether numbers of tokens differ")
    proxy = var("layer head bound", help="sub-Gaussian parameter over the variance", optional=True)
    effect = var("layer head bound", help="ratio of tokens for 10% error", optional=True)
    share = var("layer head", help="of variance that the corpus explains", optional=True)


# -- summaries


class Growth(Data):
    """Growth of a constant C(R): as a power of R, or exponentially."""

    constant = var("... radius bound", help="sqrt(n) times the error, 2 standard errors")
    power = var("... bound", help="slope of ln C against ln R")
    rate = var("...", help="slope of ln C against R")
    share = var("...", help="share of resamples in which the power leaves smaller residuals")


class Curves(Data):
    """Errors by size, and how fast they fall."""

    error = var("... size", help="mean over replicates; of limit, root mean square")
    standard_error = var("... size", optional=True)
    expected = var("... size", help="from K to first order; of ball, C(R)/sqrt(n)", optional=True)
    exponent = var("... bound")
    z = var("...", help="mean difference from the limit, in standard errors", optional=True)
    ratio = var("...", help="n times the mean squared error, over its limit", optional=True)
    ratio_error = var("...", help="standard error of that", optional=True)
    refused = var(kind="b", help="whether Student tokens are said to have no limit", optional=True)
    growth = group(Growth, optional=True)


class Sweeps(Data):
    """Exponents of sweeps of Gaussian tokens; a setting is a law of tokens at one alpha."""

    exponent = var("setting metric bound")
    standard_error = var("setting metric")
    joint = var("setting metric bound", help="band that holds all alphas of a law at once")
    late = var("setting metric", help="exponent on the last three sizes")
    late_error = var("setting metric", help="standard error of that")
    predicted = var("setting metric", help="slope of the predicted errors")
    tokens = var("setting", kind="U", help="law of the tokens")
    scaling = var("setting", help="alpha")
    horizon = var("setting", help="with the factor 1/sqrt(d)")
    dimension = var("setting", kind="i")


class Causal(Data):
    """Errors with and without the mask; intervals are over heads."""

    error = var("curve size bound", help="of the mean, over the constant without mask")
    ratio = var("size bound", help="error with the mask over that without")
    first_ratio = var("size", help="the same to first order")
    position = var("size bound", help="error at positions n/2 to n over that without, i keys")
    position_ratio = var("bound", help="the same over all sizes")
    difference = var("bound", help="exponent with the mask minus without, all sizes")
    late_difference = var("bound", help="the same, last octaves")
    against_first = var("bound", help="measured ratio over that of first order, last size")
    heads = var(kind="i", help="their number")
    tokens = var(kind="i", help="tokens that are drawn from")


class Losses(Data):
    """Losses and accuracies by task, and power laws fitted to the smaller sizes."""

    loss = var("task size bound")
    accuracy = var("task size bound")
    dense_accuracy = var("task")
    fitted = var("size", kind="b", help="whether the laws are fitted to it")
    exponent = var("task bound")
    constant = var("task", help="factor of the power law")
    predicted = var("task rule bound", help="loss at the last size, predicted over measured")
    change = var("task bound", help="loss at the first size minus the last")
    drop = var("task bound", help="dense accuracy minus that at the first size")
    texts = var(kind="i")


# -- the result


class PaperData(Data):
    """The result: the ledger, its checks, and a section for each measurement."""

    verdict = var("claim", kind="U", terminal="verdict")
    says = var("claim", "what the paper says", kind="U")
    measured = var("claim", kind="U", terminal="measured")
    weakest = var("claim", "weakest point", kind="U", page=False)
    decide = var("claim", "to decide", kind="U", page=False)
    check_claim = var("check", "claim", kind="U", terminal="claim")
    check_says = var("check", "says", kind="U", terminal="says")
    check_verdict = var("check", "verdict", kind="U", terminal="verdict")
    check_measured = var("check", "measured", kind="U", terminal="measured")
    check_rule = var("check", "rule", kind="U", terminal="rule")
    counts = var("check", kind="b", help="whether the verdict on the claim depends on it")
    heads = group(HeadExponents, optional=True)
    limit = section(Curves, "law")
    ball = section(Curves, "radius")
    moments = section(Growth, "law metric")
    gaussian = section(Sweeps)
    ablation = section(Sweeps)
    hardmax = section(Hardmax)
    argmax = section(HeadErrors)
    alpha = section(Exponents, "alpha layer head")
    sparse = section(Patterns)
    depth = section(Depth)
    tails = section(Heads)
    domains = section(Heads)
    causal = section(Causal)
    tokens = section(Losses)
    texts = section(Losses)


#: Variables of the cells of every measurement.
CELLS: dict[str, type[Data]] = {
    **dict.fromkeys(("limit", "ball", "moments", "gaussian", "ablation", "causal"), Errors),
    "hardmax": Hardmax,
    "heads": HeadExponents,
    "alpha": HeadErrors,
    "argmax": HeadErrors,
    "sparse": Patterns,
    "depth": Depth,
    "tails": Heads,
    "domains": Heads,
    "tokens": Answers,
    "texts": Answers,
}


class PaperSettings(Record, frozen=True, kw_only=True):
    """Settings of a run."""

    claims: tuple[Name, ...]
    scale: Scale
    encoder: Name
    decoder: Name
    text: Name
    #: Whether the encoder's heads are measured as the authors measured those of BigBird.
    long: bool = False
    seed: int


#: Options of one unit: plain numbers and strings.
Unit: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """Something that is measured in units.

    Attributes
    ----------
    scales
        Options of its units, by scale; at the scale "long" stand those of encoders that read long
        passages, if others than the scale's.
    measure
        Measures a unit: a cell.
    summary
        Puts all units and their cells together: a section of the result. Or the axis along which
        cells are put side by side; "" where there is one.
    over
        Options that have a list of values, of which each unit has one.
    """

    scales: Mapping[str, Unit | Sequence[Unit]]
    measure: Callable[[Unit, PaperSettings], Data]
    summary: Callable[[Sequence[Unit], Sequence[xr.Dataset], PaperSettings], Data] | str
    over: tuple[str, ...] = ()

    def units(self, settings: PaperSettings) -> list[Unit]:
        """Return the options of every unit."""
        long = settings.long and "long" in self.scales
        options = self.scales["long" if long else settings.scale]
        return [
            every | dict(zip(self.over, values, strict=True))
            for every in ([options] if isinstance(options, dict) else options)
            for values in product(*(every[name] for name in self.over))
        ]


def by_scale(names: str, *options: tuple[Any, ...]) -> dict[str, Unit]:
    """Return options by scale, quick first: values in the order of their names."""
    scales = ("quick", "standard", "paper", "long")
    return {
        scale: dict(zip(names.split(), values, strict=True))
        for scale, values in zip(scales, options, strict=False)
    }


@dataclass(frozen=True, kw_only=True)
class PaperStudy(Study[PaperSettings]):
    """Check the claims of the paper one by one.

    The paper is "Token Sample Complexity of Attention" (arXiv 2512.10656). A claim holds, is
    contradicted or is undecided, by a rule that its page states. Claims about real heads use the
    models that come with the program, or yours.
    """

    settings, data, cell = PaperSettings, PaperData, CELLS
    asks = "Does the paper hold, claim by claim?"
    unit = "measurements"
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
        Scale,
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

    def known(self) -> PaperSettings:
        """Refuse claims, models and texts that there are not."""
        for name in self.claims:
            if name not in NAMES:
                raise InputError(
                    f"there is no claim {shortened(name)}; choose from {', '.join(NAMES)}"
                )
        chosen = tuple(name for name in NAMES if name in (self.claims or NAMES))
        models, long = {"encoder": ENCODER, "decoder": DECODER}, False
        if self.model is not None:
            from esscher.engine.models.choice import ModelChoice

            outline = ModelChoice(self.model).outline
            models["decoder" if outline.causal else "encoder"] = self.model
            reads_long = not outline.causal and outline.max_positions >= LONG_CONTEXT
            long = self.scale == "paper" and reads_long
        if not set(chosen) <= set(SYNTHETIC):
            from esscher.engine.text.documents import check_text

            check_text(self.text, None)
        return self.settings_with(claims=chosen, long=long, **models)

    def prepare(self, executor: CellExecutor) -> Work:
        """Make a task of every unit."""
        settings = self.known()
        tasks = {
            cell: Task(cell, _measured, (measurement, unit, settings))
            for cell, measurement, unit in units_of(settings)
        }
        return Setup(settings), lambda run: [tasks]

    @staticmethod
    def cells(setup: Setup[PaperSettings]) -> list[str]:
        """One cell per unit of every measurement that a claim rests on."""
        return [name for name, _, _ in units_of(setup.settings)]

    @staticmethod
    def combine(setup: Setup[PaperSettings], cells: Mapping[str, xr.Dataset]) -> PaperData:
        """Summarise the measurements that are complete, and judge the claims that rest on them."""
        from esscher.studies.paper.claims import CLAIMS, MEASUREMENTS, set_ledger

        parts: dict[str, list[tuple[Unit, xr.Dataset | None]]] = {}
        for cell, measurement, unit in units_of(setup.settings):
            parts.setdefault(measurement, []).append((unit, cells.get(cell)))
        data = PaperData.new()
        complete = {name for name in MEASUREMENTS if name not in parts}
        for name, pairs in parts.items():
            there = [cell for _, cell in pairs if cell is not None]
            if len(there) == len(pairs):
                units = [unit for unit, _ in pairs]
                summary: Any = MEASUREMENTS[name].summary
                if callable(summary):
                    summary = summary(units, there, setup.settings)
                else:
                    whole = joined(there, summary).sortby(summary) if summary else there[0]
                    summary = CELLS[name](whole)
                if name == "heads":
                    data.dataset.update(summary.dataset)
                else:
                    setattr(data, name, summary)
                complete.add(name)
        claims = [name for name in setup.settings.claims if complete.issuperset(CLAIMS[name].uses)]
        if not claims:
            raise NotFinished("no claim is measured in full")
        set_ledger(data, claims, setup.settings)
        return data

    @staticmethod
    def subject(setup: Setup[PaperSettings]) -> str:
        """Scale of the run."""
        return f"scale {setup.settings.scale}"


def units_of(settings: PaperSettings) -> Iterator[tuple[str, str, Unit]]:
    """Yield the name of every cell, its measurement and its options."""
    from esscher.studies.paper.claims import CLAIMS, MEASUREMENTS

    used = dict.fromkeys(name for claim in settings.claims for name in CLAIMS[claim].uses)
    for name in used:
        for number, unit in enumerate(MEASUREMENTS[name].units(settings)):
            yield f"{name}-{number}", name, unit


def _measured(measurement: str, unit: Unit, settings: PaperSettings) -> xr.Dataset:
    """Compute a unit: a cell."""
    from esscher.studies.paper.claims import MEASUREMENTS

    return MEASUREMENTS[measurement].measure(unit, settings).dataset


#: A result of the study: the ledger.
Paper: TypeAlias = "Result[PaperSettings]"
