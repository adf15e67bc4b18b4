"""The stored samples of every kind: each gives a report, also those that are small."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from esscher.runs.registry import STUDIES
from esscher.runs.report import page_of, read_results
from tests.fuzz.make_samples import PLACE


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    with zipfile.ZipFile(PLACE) as archive:
        archive.extractall(folder)
    return folder


def runs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/config.json"))


def test_every_sample_has_a_page(samples: Path) -> None:
    found = read_results(runs(samples))
    assert {one.study.name for one in found} == set(STUDIES)
    pages = [page_of(one) for one in found]
    assert [page.title for page in pages] == [path.name for path in runs(samples)]
    for page in pages:
        assert page.answer
        assert page.parts
