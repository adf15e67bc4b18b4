"""Pages of docs/findings, made from small stored runs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from benchmarks.budgets import halves, make_plans
from benchmarks.pages.budgets import budgets_finding
from benchmarks.pages.manyheads import manyheads_finding
from benchmarks.pages.sparse import sparse_finding
from benchmarks.pages.tails import tails_finding

import esscher
from esscher.core.errors import InputError
from tests.engine.models.folders import WORDS, tiny


def prose(seed=0, count=2500, words=WORDS):
    """Words in random order: tokens of a real text do not repeat with a period."""
    return [" ".join(np.random.default_rng(seed).choice(words, size=count))]


@pytest.mark.parametrize(
    "finding",
    [budgets_finding, manyheads_finding,
     sparse_finding, tails_finding],
)  # fmt: skip
def test_a_page_needs_runs(finding):
    with pytest.raises(InputError, match=r"no runs|at least one"):
        finding([])


def test_budgets(tmp_path):
    model = tiny("llama", max_position_embeddings=160, strength=12.0)
    options = {"prefix": 120, "query_count": 12, "passages": 2, "check_passages": 3}
    texts = {"one": prose(1), "other": prose(2)}
    out = tmp_path / "run"
    make_plans(model, prose(0), texts, out, budgets=(0.5, 0.75), **options)
    page = budgets_finding([out])
    table = page.tables["run"]
    assert set(table["text"]) == {"one", "other"}
    planned = table[(table["configuration"] == "planned") & (table["budget"] == 0.5)].iloc[0]
    measures = esscher.load(out / "one" / "0.5").to_dict()["check"]["planned"]
    assert planned["distance"] == pytest.approx(measures["kl"]["mean"])
    assert "## llama" in page.text
    page.write(tmp_path / "page", formats=("png",))
    assert (tmp_path / "page" / "run.png").exists()
    with pytest.raises(InputError, match="there are no plans"):
        budgets_finding([tmp_path / "page"])


def test_halves_are_cut_between_paragraphs(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("one two\n\nthree four five six\n\nseven")
    assert halves(path) == ("one two\n\nthree four five six", "\n\nseven")


def test_many_heads(tmp_path):
    esscher.probe(tiny(), prose(), tokens=600, context=48, sizes=[16, 32, 64, 128], replicates=8,
                  layers=[0, 1], out=tmp_path / "run")  # fmt: skip
    finding = manyheads_finding([tmp_path / "run"])
    assert "independent heads of 4" in finding.text
    assert finding.write(tmp_path / "page").exists()


def test_sparse(tmp_path):
    runs = [tmp_path / "independent", tmp_path / "correlated"]
    for out, correlation in zip(runs, (0.0, 0.8), strict=True):
        esscher.sparse_law("gaussian", horizon=0.5, dim=2, tokens=400, replicates=8,
                           query_count=12, budgets=[8, 16, 32, 64], patterns="linformer",
                           correlation=correlation, out=out)  # fmt: skip
    finding = sparse_finding(runs)
    page = finding.write(tmp_path / "page").read_text()
    assert "nan" not in page
    for words in ("Which patterns keep the exponent", "AR(1) with rho = 0.8", "independent.png",
                  "infinite-token limit", "| linformer |"):  # fmt: skip
        assert words in page
    table = pd.read_csv(tmp_path / "page" / "correlated.csv")
    assert len(table) == 2 * 3
    assert (tmp_path / "page" / "independent-curves.csv").exists()
    with pytest.raises(InputError, match="same name"):
        sparse_finding([runs[0], runs[0]])
    with pytest.raises(InputError, match="does not exist"):
        sparse_finding([tmp_path / "nothing"])


def test_tails(tmp_path):
    esscher.tails(tiny(), prose(), tokens=1200, context=48, layers=[0, 1], heads=[0, 2],
                  out=tmp_path / "run")  # fmt: skip
    finding = tails_finding([tmp_path / "run", tmp_path / "run"])
    page = finding.write(tmp_path / "page").read_text()
    assert "sub-Gaussian" in page
    assert len(finding.figures) == 2
    assert not finding.trouble
