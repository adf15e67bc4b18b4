"""Passages that tiny models read with attention to sampled keys."""

from __future__ import annotations

from esscher.engine.text import passages, read_text
from esscher.studies.deep.sampling import SampledPassage
from tests.engine.models.folders import tiny, words


def reader_of(name, context=60):
    """The first passage of a text of 200 words."""
    loaded = tiny(name)
    passage = next(passages(loaded, read_text([words(200)]), context=context))
    return SampledPassage(loaded, passage)
