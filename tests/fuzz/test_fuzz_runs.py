"""Damaged runs: ``show``, ``ls`` and ``report`` answer, or refuse with exit code 2."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

import esscher
from esscher.cli import main
from esscher.core.errors import EsscherError, InputError
from esscher.runs.result import RESULTS
from tests.fuzz.damage import (
    as_text,
    changed_bytes,
    changed_tree,
    effort,
    fuzz,
    randoms,
    resealed,
)
from tests.runs.made import unpack

KINDS = (
    "probe",
    "sweep",
    "sparse",
    "sparse-law",
    "deep",
    "deep-stack",
    "tails",
    "domains",
    "plan",
    "context-run",
    "paper",
)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    place = tmp_path_factory.mktemp("samples")
    return {kind: unpack(kind, place) for kind in KINDS}


def answered(*words) -> int:
    """Run a command; anything but an answer or a refusal in words fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers may overflow; what counts is how it ends
        result = CliRunner().invoke(main, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"{words}: {result.exception!r}") from result.exception
    assert result.exit_code in (0, 2), result.output
    assert "Traceback" not in result.output
    assert "\x1b" not in result.output
    return result.exit_code


def damage(run: Path, random) -> None:
    """Damage one file of a run; checksums are put right again, or nothing else would be read."""
    path = random.choice(sorted(path for path in run.rglob("*") if path.is_file()))
    data, way = path.read_bytes(), random.random()
    if path.suffix == ".json" and way < 0.9:
        path.write_bytes(as_text(changed_tree(json.loads(data), random)))
    elif path.suffix == ".safetensors" and way < 0.7:
        path.write_bytes(resealed(data, random))
    else:
        path.write_bytes(changed_bytes(data, random))
        beside = path.with_suffix(".json")
        if path.suffix == ".parquet" and beside.exists():
            about = json.loads(beside.read_bytes())
            about["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            beside.write_bytes(as_text(about))
    if path.parent.name == "parts" or path.name == "config.json":
        for name in ("results.json", RESULTS):
            (run / name).unlink(missing_ok=True)


def assert_same(one, other):
    """The same but for rounding: the processor that made the sample may add up in another order."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, float) and isinstance(other, float):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12, nan_ok=True)
    else:
        assert one == other


@pytest.mark.parametrize("kind", KINDS)
def test_undamaged_samples_are_read(kind, samples, tmp_path):
    """Or damaged ones would be refused for something else."""
    found = esscher.load(samples[kind])
    assert found.to_dict()["kind"] == kind.removesuffix("-run")
    assert found.complete
    assert not found.table().empty
    assert answered("show", samples[kind], "--json") == 0
    figure = "--figure", "main", "-o", tmp_path / "figure.png"
    assert answered("show", samples[kind], *figure) == 0
    # from its cells, too
    run = shutil.copytree(samples[kind], tmp_path / kind)
    for name in ("results.json", RESULTS):
        (run / name).unlink(missing_ok=True)
    assert_same(esscher.load(run).to_dict(), found.to_dict())


@pytest.mark.parametrize("kind", KINDS)
@effort(2, 80)
def test_damaged_runs(kind, examples, samples, tmp_path):
    run = tmp_path / "runs" / kind
    (tmp_path / "runs").mkdir()

    def property(random):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(samples[kind], run)
        damage(run, random)
        answered("show", run)
        answered("show", run, "--json")
        answered("ls", tmp_path / "runs")
        if examples > 10 and random.random() < 0.25:
            (tmp_path / "report.html").unlink(missing_ok=True)
            answered("report", run, "-o", tmp_path / "report.html")
        if examples > 10 and random.random() < 0.1:
            answered("show", run, "--figure", "main", "-o", tmp_path / "figure.png")
        assert {path.name for path in tmp_path.iterdir()} <= {"runs", "report.html", "figure.png"}

    fuzz(examples, randoms())(property)


@effort(10, 500)
def test_numbers_of_cells_are_those_that_were_stored(examples, samples, tmp_path):
    """Without a checksum that fits: refused, or every number is as before."""
    run = tmp_path / "probe"
    sound = esscher.load(samples["probe"]).to_dict()

    def property(random):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(samples["probe"], run)
        (run / "results.json").unlink()
        path = random.choice(sorted((run / "parts").glob("*.parquet")))
        path.write_bytes(changed_bytes(path.read_bytes(), random))
        with contextlib.suppress(InputError):
            assert_same(esscher.load(run).to_dict(), sound)

    fuzz(examples, randoms())(property)


@effort(25, 1500)
def test_damaged_plan_files(examples, samples, tmp_path):
    tree = json.loads((samples["plan"] / "plan.json").read_bytes())
    path = tmp_path / "plan.json"

    def property(random):
        path.write_bytes(as_text(changed_tree(tree, random)))
        with contextlib.suppress(InputError):
            plan = esscher.load(path)
            assert plan.token_budgets.tokens.ndim == 2
            assert (plan.token_budgets.ratios <= 1).all()

    fuzz(examples, randoms())(property)


@effort(8, 200)
def test_resuming_a_damaged_sweep(examples, samples, tmp_path):
    """What ``sweep --out`` takes up: configuration, limit, parts, predictions."""
    run = tmp_path / "sweep"
    head = esscher.gaussian_head(1.0, 2)

    def property(random):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(samples["sweep"], run)
        if random.random() < 0.4:
            path = run / "parts" / "limit.safetensors"
            path.write_bytes(resealed(path.read_bytes(), random))
            (run / "parts" / "replicate-000003.safetensors").unlink()
        else:
            damage(run, random)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with contextlib.suppress(EsscherError):
                esscher.sweep(head, (16, 32, 64), 8, alpha=(0.5, 1.0, 2.0), out=run, progress=False)

    fuzz(examples, randoms())(property)
