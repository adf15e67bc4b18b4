"""The study: which options there are, which cells, and how they become a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from esscher.core.errors import InputError
from esscher.core.options import BY_MODEL, Heads, Layers, Seed, option
from esscher.core.validation import as_indices
from esscher.engine.models.outline import Outline
from esscher.engine.sampled.sizes import (
    FEWEST_KEYS,
    Mode,
    default_sizes,
    needed_context,
    passage_keys,
    usual_mode,
)
from esscher.engine.text.documents import check_text
from esscher.runs.executors import CellExecutor
from esscher.runs.folder import Cell, CellRun
from esscher.runs.model_study import WithModel
from esscher.studies.domains.records import BlockCell, Corpus
from esscher.studies.domains.result import Domains
from esscher.studies.domains.statistics import STATISTICS

if TYPE_CHECKING:
    from esscher.engine.models import AnyModel, LoadedModel
    from esscher.engine.text.documents import TextSource
    from esscher.studies.domains.blocks import CorpusText
    from esscher.studies.domains.work import DomainsWork

    Texts = Mapping[str, TextSource] | tuple[CorpusText, ...] | tuple[Corpus, ...]
else:
    # what is stored in the place of texts; see Study.sources
    Texts = tuple[Corpus, ...]

#: Passage lengths unless one is given: pooled mode, and context mode.
POOLED, CONTEXT = 512, 1_024
#: Tokens of a block in pooled mode unless a number is given: four passages of 512, framed.
TOKENS = 2_000
#: Fewest tokens of a block.
FEWEST_TOKENS = 48
#: Sizes of the samples of which errors are measured: number, and first.
COUNT, FIRST = 5, 32


@dataclass(frozen=True)
class BlockShape:
    """What a block is made of.

    Attributes
    ----------
    count
        Blocks of a corpus.
    tokens
        Tokens of a block, without delimiters.
    context
        Tokens that the model reads at a time.
    sequences
        Number of whole passages of a block; None when only the tokens count.
    """

    count: int
    tokens: int
    context: int
    sequences: int | None


@dataclass(frozen=True, kw_only=True)
class DomainsStudy(WithModel[Domains]):
    """Test whether heads behave differently on different text.

    Every head is measured on several corpora. Each corpus is cut into blocks, which show how much a
    number varies within it; what differs between corpora is tested against that.
    """

    name = "domains"
    asks = "Do heads behave differently on different text?"
    next_step = "esscher plan MODEL --text TEXT --check OTHER_TEXT --budget 0.25"
    abridged = True
    unit = "blocks"
    cell = BlockCell
    result = Domains
    sources: ClassVar[frozenset[str]] = frozenset({"model", "texts"})
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
        int,
        option(
            "Tokens per block (default 2000; one passage in context mode).",
            ge=FEWEST_TOKENS,
            le=10**15,
        ),
    ] = BY_MODEL
    mode: Annotated[
        Mode,
        option(
            "pooled: the tokens of a block as one set (default for encoders); context: real "
            "sequences."
        ),
    ] = BY_MODEL
    context: Annotated[
        int, option("Tokens per passage (default 512; 1024 in context mode).", ge=1)
    ] = BY_MODEL
    layers: Layers = BY_MODEL
    heads: Heads = BY_MODEL
    fdr: Annotated[
        float,
        option(
            "False discovery rate, and one minus the level of intervals; can be changed without a "
            "new run.",
            changeable=True,
            gt=0,
            le=0.5,
        ),
    ] = 0.05
    permutations: Annotated[
        int,
        option(
            "Least number of permutations of the blocks; many tests may need more. Can be changed "
            "without a new run.",
            changeable=True,
            ge=1_000,
            le=100_000,
        ),
    ] = 20_000
    exponents: Annotated[
        bool, option("Also measure how fast the error falls in every block (its exponent).")
    ] = False
    replicates: Annotated[int, option("Random samples for the exponents.", ge=0, le=10**6)] = 8
    seed: Seed = 0

    def fill(self, model: Outline) -> DomainsStudy:
        """Choose blocks, layers and heads that the model has."""
        mode = self.mode or usual_mode(model)
        length = model.context(self.context, POOLED if mode == "pooled" else CONTEXT)
        tokens = self.block_tokens or (TOKENS if mode == "pooled" else max(length, FEWEST_TOKENS))
        if mode == "context" and tokens < length:
            raise InputError(
                f"blocks of {tokens} tokens do not hold a passage of {length}; give blocks of at "
                f"least {length} tokens, or a shorter context"
            )
        if self.exponents and not self.replicates:
            raise InputError("replicates is 0; exponents take at least 1")
        study = replace(
            self,
            mode=mode,
            context=length,
            block_tokens=tokens,
            layers=as_indices(self.layers, model.shape.layers, "layers"),
            heads=as_indices(self.heads, model.shape.heads, "heads"),
            replicates=self.replicates if self.exponents else 0,
        )
        study.sizes(model)
        return study

    def sizes(self, model: Outline) -> tuple[int, ...]:
        """Return sizes of samples for exponents: up to a quarter of the keys; none without them.

        Raises
        ------
        InputError
            If there are too few keys.
        """
        if not self.exponents:
            return ()
        pooled = self.mode == "pooled"
        keys = self.block_tokens if pooled else passage_keys(model, self.context)
        if keys >= FEWEST_KEYS:
            return default_sizes(keys, FIRST, COUNT, 4)
        needed = needed_context(model)
        raise InputError(
            f"a context of {self.context} leaves {keys} keys, but exponents need {FEWEST_KEYS}; "
            + (
                f"give a context of at least {needed}, or leave exponents out"
                if needed <= model.max_positions
                else f"{model.name} reads only {model.max_positions} tokens: leave exponents out"
            )
        )

    def check_texts(self) -> None:
        """Refuse corpora that cannot be read."""
        named = named_texts(self.texts)
        streams = [name for name, source in named.items() if source == "-"]
        if len(streams) > 1:
            raise InputError(
                f"standard input (-) is given as {' and '.join(streams)}; give it once"
            )
        self._check_blocks(len(named))
        for name, source in named.items():
            try:
                check_text(source)
            except InputError as error:
                raise InputError(f"corpus {name!r}: {error}") from error

    def _check_blocks(self, corpora: int) -> None:
        """Refuse so few blocks that nothing would be found if all heads differed in a statistic.

        A p-value of a permutation test is at least one over the number of arrangements. Those of
        one statistic are a share of all tests, and are discoveries from that share of ``fdr`` on.
        """
        from esscher.studies.domains.decided import least_blocks  # brings scipy

        count = len(STATISTICS) - (not self.exponents)
        least = least_blocks(corpora, self.fdr / count)
        if self.blocks < least:
            raise InputError(
                f"blocks is {self.blocks}; with so few blocks of {corpora} corpora no permutation "
                f"test of {count} statistics can reach a false discovery rate of {self.fdr:g}, "
                "even if every head differed in one of them: give at least "
                f"{least} blocks, or more corpora"
            )

    def usual(self, name: str) -> bool:
        """Whether an option need not be in the command; see ``command_words`` for the texts."""
        unused = name == "replicates" and not self.exponents
        return name == "texts" or unused or super().usual(name)

    def command_words(self) -> list[str] | None:
        """Return the words of the command, with a ``--text`` for every corpus."""
        words = super().command_words()
        if words is None:
            return None
        named = [f"{corpus.name}={corpus.source}" for corpus in self.corpora]
        return [*words[:2], *(word for text in named for word in ("--text", text)), *words[2:]]

    @property
    def shape(self) -> BlockShape:
        """What a block is made of."""
        whole = None if self.mode == "pooled" else max(1, self.block_tokens // self.context)
        return BlockShape(self.blocks, self.block_tokens, self.context, whole)

    @property
    def corpora(self) -> tuple[Corpus, ...]:
        """The corpora of a study that has been read."""
        assert isinstance(self.texts, tuple)
        return tuple(corpus for corpus in self.texts if isinstance(corpus, Corpus))

    def places(self) -> dict[str, tuple[int, int]]:
        """Corpus and block of every cell: all corpora take turns, so that a part says something.

        Corpora are numbered: their names are the user's, and no names of files.
        """
        return {
            f"block-{block}-corpus-{corpus}": (corpus, block)
            for block in range(self.blocks)
            for corpus in range(len(self.corpora))
        }

    def cells(self) -> list[str]:
        """One cell per block."""
        return list(self.places())

    def prepare(self, executor: CellExecutor) -> DomainsWork:
        """Read the corpora before the model, whose weights take longer to load."""
        from esscher.studies.domains.work import read_corpora  # brings torch

        study = replace(self, texts=read_corpora(named_texts(self.texts)))
        loaded, model = study.choice.for_tasks(executor.remote, self.progress, executor.share)
        return study.fill(loaded.outline).read(loaded, model, executor)

    def read(self, loaded: LoadedModel, model: AnyModel, executor: CellExecutor) -> DomainsWork:
        """Cut the corpora into blocks."""
        from esscher.studies.domains.work import cut_corpora

        return cut_corpora(self, loaded, model)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Domains:
        """Compare corpora."""
        from esscher.studies.domains.assemble import assemble  # brings scipy

        return assemble(self, cells, run)


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
    found: dict[str, TextSource] = {}
    for name, source in texts.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise InputError(f"the name of a corpus is {name!r}; give it a name of printable text")
        found[name.strip()] = source
    if len(found) < len(texts):
        raise InputError("two corpora have the same name; give each its own")
    if len(found) < 2:
        raise InputError(
            f"there {'is only one corpus' if found else 'are no corpora'}; a comparison needs at "
            "least two, such as --text wiki=a.txt --text code=demo:code"
        )
    return found
