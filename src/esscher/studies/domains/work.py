"""What is computed: a block of a corpus is a cell."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from esscher.core.errors import InputError
from esscher.engine.models import AnyModel, LoadedModel, opened_model
from esscher.engine.text import Document, TextSource, read_text
from esscher.engine.text.documents import source_name
from esscher.engine.text.packing import BETWEEN
from esscher.runs.executors import Task
from esscher.runs.folder import Cell, CellRun
from esscher.studies.domains.blocks import CorpusText, cut_blocks
from esscher.studies.domains.measure import measure_block
from esscher.studies.domains.records import Corpus
from esscher.studies.domains.study import DomainsStudy

#: Characters of a corpus that are looked at; a longer one is used up to there.
LONGEST = 20_000_000


def read_corpora(texts: Mapping[str, TextSource]) -> tuple[CorpusText, ...]:
    """Read corpora, each up to 20 million characters.

    Raises
    ------
    InputError
        For a source that cannot be read; the message names the corpus.
    """
    return tuple(_read(name, source) for name, source in texts.items())


def _read(name: str, source: TextSource) -> CorpusText:
    try:
        text = "".join(_pieces(read_text(source, limit_chars=LONGEST)))
    except InputError as error:
        raise InputError(f"corpus {name!r}: {error}") from error
    return CorpusText(name, source_name(source), text)


def _pieces(documents: Iterator[Document]) -> Iterator[str]:
    for i, document in enumerate(documents):
        if i and not document.part:
            yield BETWEEN
        yield document.text


def cut_corpora(study: DomainsStudy, loaded: LoadedModel, model: AnyModel) -> DomainsWork:
    """Cut the corpora of a study into blocks."""
    texts = [corpus for corpus in study.texts if isinstance(corpus, CorpusText)]
    blocks = [cut_blocks(loaded, corpus, study.shape, study.seed) for corpus in texts]
    study = replace(study, model=loaded.record, texts=tuple(_record(text) for text in texts))
    return DomainsWork(study, model, study.sizes(loaded.outline), blocks)


def _record(corpus: CorpusText) -> Corpus:
    return Corpus(
        name=corpus.name,
        source=corpus.source,
        text_hash=hashlib.sha256(corpus.text.encode("utf-8", "replace")).hexdigest(),
        characters=len(corpus.text),
    )


@dataclass(frozen=True, eq=False)
class DomainsWork:
    """A comparison that is ready: see :class:`esscher.runs.study.Work`."""

    study: DomainsStudy
    model: AnyModel
    sizes: tuple[int, ...]
    blocks: list[list[str]]

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield all blocks."""
        # an executor stays in this process
        study = replace(self.study, out=None, executor=None)
        yield {
            name: Task(
                name,
                _block_cell,
                (self.model, self.blocks[corpus][block], block, study, self.sizes),
            )
            for name, (corpus, block) in study.places().items()
        }


def _block_cell(
    model: AnyModel, text: str, block: int, study: DomainsStudy, sizes: tuple[int, ...]
) -> Cell:
    with opened_model(model) as loaded:
        return measure_block(loaded, text, block, study, sizes)
