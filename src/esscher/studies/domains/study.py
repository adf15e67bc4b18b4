"""The study: its options, what they amount to, and the variables of its cells and results.

A cell is a block of a corpus: every statistic of every head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from esscher.core.codec import Count, Hash, Index, Name, Record
from esscher.core.errors import InputError
from esscher.core.options import Seed, SomeHeads, SomeLayers, option
from esscher.core.validation import as_indices
from esscher.core.variables import Data, var
from esscher.engine.models.outline import ModelRecord, Outline
from esscher.engine.sampled.sizes import Mode, default_mode
from esscher.engine.text.documents import check_text
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.model_study import WithModel
from esscher.runs.study import Setup, Work

if TYPE_CHECKING:
    import xarray as xr

    from esscher.engine.models.choice import AnyModel
    from esscher.engine.models.loaded import LoadedModel
    from esscher.engine.text.documents import TextSource

    Texts = Mapping[str, TextSource]
else:  # types of options are evaluated, and these need torch
    Texts = Any

#: Passage lengths unless one is given: pooled mode, and context mode.
POOLED, CONTEXT = 512, 1_024
#: Tokens of a block in pooled mode unless a number is given: four passages of 512, framed.
TOKENS = 2_000
#: Fewest tokens of a block.
FEWEST_TOKENS = 48


#: Names of statistics in figures and tables, in the order of tables; the headline is about the
#: first.
STATISTICS = {
    "tokens": "tokens for 10% output error",
    "ess": "tokens that the median query attends",
    "khat": "one-pass k-hat",
    "horizon": "horizon H",
    "frobenius": "Frobenius horizon F",
    "tau": "mean tilt tau",
    "sinks": "share of attention in sinks",
    "delimiters": "share of attention in delimiters",
}
#: Those whose means are compared. Of the others, which are positive and skewed, logarithms are
#: compared, and effects are ratios of geometric means.
LINEAR = ("khat", "sinks", "delimiters")


class Corpus(Record, frozen=True, kw_only=True):
    """A corpus: the user's name of it, where it comes from, SHA-256 and length of its text."""

    name: Name
    source: Name
    text_hash: Hash
    characters: Count


class BlockNumbers(Data):
    """A cell: a block of a corpus, and every head on it."""

    number = var("corpus block statistic layer head", format="s3")
    length = var("corpus block", "tokens", "n0", help="without delimiters")
    distinct = var("corpus block", "distinct", "p1", help="share of different tokens")
    unknown = var("corpus block", "unknown", "p1", help="share of unknown tokens")


class DomainsData(BlockNumbers):
    """The result: what differs between corpora.

    ``pair`` names two corpora, the second of which is the reference.
    """

    p = var("statistic layer head", "p", "s2", page=False, help="of the permutation test")
    adjusted_p = var(
        "statistic layer head",
        "adjusted p",
        "s2",
        terminal="p",
        help="p-value of the permutation test of the blocks, exact if blocks of one corpus are "
        "exchangeable, adjusted over the heads",
    )
    verdict = var(
        "statistic layer head",
        kind="U",
        terminal="verdict",
        help="differs, or undecided, which does not make corpora the same",
    )
    share = var(
        "statistic layer head",
        "share",
        "p0",
        terminal="share",
        help="of the variance over blocks that is between corpora",
    )
    effect = var(
        "statistic layer head pair bound",
        "effect",
        "s3",
        terminal="effect",
        help="ratio of one corpus to another (difference, for k-hat and shares), with 95% interval",
    )
    median = var(
        "statistic corpus bound",
        "median",
        "s3",
        terminal="median",
        help="over heads, with 95% interval over blocks",
    )


class DomainsSettings(Record, frozen=True, kw_only=True):
    """Settings of a run."""

    blocks: Count
    block_tokens: Count
    mode: Mode
    context: Count
    layers: tuple[Index, ...]
    heads: tuple[Index, ...]
    fdr: float
    seed: int

    @property
    def sequences(self) -> int | None:
        """Whole passages of a block; None when only the number of tokens counts."""
        return None if self.mode == "pooled" else max(1, self.block_tokens // self.context)


@dataclass(frozen=True, kw_only=True)
class DomainsStudy(WithModel[DomainsSettings]):
    """Test whether heads behave differently on different text.

    Every head is measured on several corpora. Each corpus is cut into blocks, which show how much a
    number varies within it; what differs between corpora is tested against that.
    """

    settings, data, cell = DomainsSettings, DomainsData, BlockNumbers
    records: ClassVar = {"model": ModelRecord, "texts": tuple[Corpus, ...]}
    sources: ClassVar[frozenset[str]] = frozenset({"model", "texts"})
    asks = "Do heads behave differently on different text?"
    next_step = "esscher plan MODEL --text TEXT --check OTHER_TEXT --budget 0.25"
    unit = "blocks"
    examples = (
        "esscher domains demo:minilm --text prose=demo:docs --text code=demo:code",
        "esscher domains ./my-model --text wiki=wiki.txt --text law=law.jsonl --out runs/domains",
    )

    texts: Annotated[
        Texts,
        option(
            "A corpus and its name, such as wiki=wiki.txt: a file, a folder, - for standard input, "
            "demo:docs, demo:code or hf:NAME; give at least two; in Python a dictionary of sources "
            "by name.",
            metavar="NAME=SOURCE",
            command="text",
        ),
    ] = field(kw_only=False)
    blocks: Annotated[
        int, option("Blocks per corpus, spread over all of it.", ge=3, le=100_000)
    ] = 6
    block_tokens: Annotated[
        int | None,
        option(
            "Tokens per block (default 2000; one passage in context mode).",
            ge=FEWEST_TOKENS,
            le=10**15,
        ),
    ] = None
    mode: Annotated[
        Mode | None,
        option(
            "pooled: the tokens of a block as one set (default for encoders); context: real "
            "sequences."
        ),
    ] = None
    context: Annotated[
        int | None, option("Tokens per passage (default 512; 1024 in context mode).", ge=1)
    ] = None
    layers: SomeLayers = None
    heads: SomeHeads = None
    fdr: Annotated[
        float,
        option(
            "Largest share of false ones among the heads said to differ; can be changed without "
            "a new run.",
            changeable=True,
            gt=0,
            le=0.5,
        ),
    ] = 0.05
    seed: Seed = 0

    def resolve(self, model: Outline) -> DomainsSettings:
        """Choose blocks, layers and heads that the model has."""
        mode = self.mode or default_mode(model)
        length = model.context(self.context, POOLED if mode == "pooled" else CONTEXT)
        tokens = self.block_tokens or (TOKENS if mode == "pooled" else max(length, FEWEST_TOKENS))
        if mode == "context" and tokens < length:
            raise InputError(
                f"blocks of {tokens} tokens do not hold a passage of {length}; give blocks of at "
                f"least {length} tokens, or a shorter context"
            )
        return self.settings_with(
            block_tokens=tokens,
            mode=mode,
            context=length,
            layers=as_indices(self.layers, model.shape.layers, "layers"),
            heads=as_indices(self.heads, model.shape.heads, "heads"),
        )

    def check_texts(self) -> None:
        """Refuse corpora that cannot be read, and too few blocks to see any difference."""
        from esscher.studies.domains.compare import smallest_p  # brings scipy

        named = named_texts(self.texts)
        streams = [name for name, source in named.items() if source == "-"]
        if len(streams) > 1:
            raise InputError(
                f"standard input (-) is given as {' and '.join(streams)}; give it once"
            )
        if smallest_p(len(named), self.blocks) > self.fdr:
            raise InputError(
                f"blocks is {self.blocks}; exchanging so few blocks between {len(named)} corpora "
                f"gives no p-value of at most {self.fdr:g}: give more blocks, or more corpora"
            )
        for name, source in named.items():
            try:
                check_text(source)
            except InputError as error:
                raise InputError(f"corpus {name!r}: {error}") from error

    def read(
        self,
        settings: DomainsSettings,
        loaded: LoadedModel,
        model: AnyModel,
        executor: CellExecutor,
    ) -> Work:
        """Read the corpora, and cut them into blocks."""
        from esscher.studies.domains.measure import cut_blocks, measure_block, read_corpora

        texts = read_corpora(named_texts(self.texts))
        cut = [cut_blocks(loaded, corpus, text, settings) for corpus, text in texts.items()]
        setup = Setup(settings, {"model": loaded.record, "texts": tuple(texts)})
        places = product(range(settings.blocks), enumerate(texts))
        tasks = [
            Task(cell_name(i, b), measure_block, (model, cut[i][b], corpus.name, b, settings))
            for b, (i, corpus) in places
        ]
        return setup, lambda run: [{task.name: task for task in tasks}]

    @staticmethod
    def cells(setup: Setup[DomainsSettings]) -> list[str]:
        """One cell per block; all corpora take turns, so that a part says something."""
        corpora = range(len(setup.records["texts"]))
        return [cell_name(i, block) for block in range(setup.settings.blocks) for i in corpora]

    @staticmethod
    def combine(setup: Setup[DomainsSettings], cells: Mapping[str, xr.Dataset]) -> DomainsData:
        """Compare corpora."""
        from esscher.studies.domains.compare import combine

        return combine(setup, cells)


def cell_name(corpus: int, block: int) -> str:
    """Return the name of a cell: corpora have numbers, as their names are the user's."""
    return f"block-{block}-corpus-{corpus}"


def named_texts(texts: Texts) -> dict[str, TextSource]:
    """Return at least two corpora with different names.

    Raises
    ------
    InputError
        Otherwise; the message names the corpus.
    """
    if not isinstance(texts, Mapping):
        raise InputError(
            f"texts is {type(texts).__name__}; it must be a dictionary of corpora by name, such as "
            '{"wiki": "a.txt", "code": "demo:code"}'
        )
    named: dict[str, TextSource] = {}
    for name, source in texts.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise InputError(f"the name of a corpus is {name!r}; give it a name of printable text")
        named[name.strip()] = source
    if len(named) < len(texts):
        raise InputError("two corpora have the same name; give each its own")
    if len(named) < 2:
        raise InputError(
            f"there {'is only one corpus' if named else 'are no corpora'}; a comparison needs at "
            "least two, such as --text wiki=a.txt --text code=demo:code"
        )
    return named
