"""The study: which options there are, which cells, and how they become a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from esscher.core.errors import InputError
from esscher.core.options import BY_MODEL, Heads, Layers, Seed, option
from esscher.core.validation import as_indices
from esscher.engine.models.outline import Outline
from esscher.engine.sampled.sizes import Mode, usual_mode
from esscher.engine.text.documents import check_text
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell, CellRun
from esscher.runs.old_model_study import WithModel
from esscher.runs.old_study import OneBatch
from esscher.studies.domains.result import BlockCell, Corpus, Domains

if TYPE_CHECKING:
    from esscher.engine.models.choice import AnyModel
    from esscher.engine.models.loaded import LoadedModel
    from esscher.engine.text.documents import TextSource

    Texts = Mapping[str, TextSource] | tuple[Corpus, ...]
else:
    # what is stored in the place of texts; see Study.sources
    Texts = tuple[Corpus, ...]

#: Passage lengths unless one is given: pooled mode, and context mode.
POOLED, CONTEXT = 512, 1_024
#: Tokens of a block in pooled mode unless a number is given: four passages of 512, framed.
TOKENS = 2_000
#: Fewest tokens of a block.
FEWEST_TOKENS = 48


@dataclass(frozen=True, kw_only=True)
class DomainsStudy(WithModel[Domains]):
    """Test whether heads behave differently on different text.

    Every head is measured on several corpora. Each corpus is cut into blocks, which show how much a
    number varies within it; what differs between corpora is tested against that.
    """

    name = "domains"
    asks = "Do heads behave differently on different text?"
    next_step = "esscher plan MODEL --text TEXT --check OTHER_TEXT --budget 0.25"
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
            "Largest share of false ones among the heads said to differ; can be changed without "
            "a new run.",
            changeable=True,
            gt=0,
            le=0.5,
        ),
    ] = 0.05
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
        return replace(
            self,
            mode=mode,
            context=length,
            block_tokens=tokens,
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

    @property
    def sequences(self) -> int | None:
        """Whole passages of a block; None when only the number of tokens counts."""
        return None if self.mode == "pooled" else max(1, self.block_tokens // self.context)

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

    def read(self, loaded: LoadedModel, model: AnyModel, executor: CellExecutor) -> OneBatch:
        """Read the corpora, and cut them into blocks."""
        from esscher.studies.domains.measure import cut_blocks, measure_block, read_corpora

        texts = read_corpora(named_texts(self.texts))
        blocks = [cut_blocks(loaded, corpus, text, self) for corpus, text in texts.items()]
        study = replace(self, model=loaded.record, texts=tuple(texts))
        sent = replace(study, out=None, executor=None)  # an executor stays in this process
        tasks = {
            name: Task(name, measure_block, (model, blocks[corpus][block], block, sent))
            for name, (corpus, block) in study.places().items()
        }
        return OneBatch(study, tasks)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Domains:
        """Compare corpora."""
        from esscher.studies.domains.compare import assemble  # brings scipy

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
