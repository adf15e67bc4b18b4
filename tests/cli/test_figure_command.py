"""``esscher figure`` as a user meets it: files, lists, and what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import esscher
from esscher.cli.program import main
from tests.runs.made import make


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["figure", *map(str, arguments)])


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "my sweep"
    esscher.sweep(esscher.gaussian_head(0.5, 2), [16, 32, 64], 6, out=folder)
    return folder


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sparse"
    esscher.sparse_law(
        "gaussian", horizon=0.5, dim=2, tokens=256, replicates=8, query_count=16, budgets=[16, 32],
        patterns="window", out=folder,
    )  # fmt: skip
    return folder


def test_the_main_figure_here(swept: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(swept, "--dpi", 60, "--width", "single")
    assert result.exit_code == 0, result.output
    assert result.output == "Figure: my sweep-curve.png\n"
    assert [path.name for path in tmp_path.iterdir()] == ["my sweep-curve.png"]
    # PNG: width in bytes 16 to 20
    header = (tmp_path / "my sweep-curve.png").read_bytes()[:24]
    assert int.from_bytes(header[16:20], "big") == int(3.4 * 60)


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<svg"), ("pdf", b"%PDF")])
def test_vectors_into_a_new_folder(swept: Path, tmp_path: Path, ending: str, start: bytes) -> None:
    path = tmp_path / "new" / f"figure.{ending}"
    title = [] if ending == "svg" else ["--no-title"]
    result = run(swept, "--kind", "exponents", "-o", path, *title)
    assert result.exit_code == 0, result.output
    assert path.read_bytes().startswith(start)
    assert (b"Gaussian tokens" in path.read_bytes()) == (ending == "svg")


def test_what_a_run_offers(swept: Path, sparse: Path) -> None:
    result = run(swept, "--list")
    assert result.exit_code == 0, result.output
    for name in ("curve", "exponents", "study", "errors against n"):
        assert name in result.output
    result = run(sparse, "--list")
    assert "infinite-token limit" in result.output


def test_a_plan_s_file(tmp_path: Path) -> None:
    make("plan")[1].save(tmp_path / "plan.json")
    result = run(tmp_path / "plan.json", "--kind", "budgets", "-o", tmp_path / "x.svg")
    assert result.exit_code == 0, result.output
    assert b"tokens kept" in (tmp_path / "x.svg").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--kind", "heads"), "there is no chart 'heads' of this result; choose from curve, exp"),
        (("-o", "x.gif"), "-o x.gif: the name must end in .png, .svg, .pdf"),
        (("--head", "1.2"), "takes no heads; leave them out"),
        (("--head", "1-2"), "--head is '1-2'; write LAYER.HEAD"),
        (("--width", "wide"), "width is 'wide'"),
        (("--width", "500"), "inches from 2 to 20"),
        (("--dpi", "3"), "--dpi is 3"),
    ],
)
def test_bad_options(swept: Path, tmp_path: Path, monkeypatch, arguments, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(swept, *arguments)
    assert result.exit_code == 2
    assert said in result.output.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_runs_that_cannot_be_drawn(swept: Path, sparse: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    cases = {"nowhere": "nowhere", "empty": "not a run"}
    damaged = shutil.copytree(swept, tmp_path / "damaged")
    part = next((damaged / "parts").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:50])
    cases["damaged"] = "damaged"
    fresh = shutil.copytree(sparse, tmp_path / "fresh")
    for path in (*(fresh / "parts").iterdir(), fresh / "results.json"):
        path.unlink()
    cases["fresh"] = "no results yet"
    odd = shutil.copytree(sparse, tmp_path / "odd")
    results = json.loads((odd / "results.json").read_text())
    del results["patterns"]["window"]["fit"]
    (odd / "results.json").write_text(json.dumps(results))
    cases["odd"] = "patterns[...] has no 'fit'"
    other = shutil.copytree(sparse, tmp_path / "other")
    about = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(about | {"kind": "unknown"}))
    cases["other"] = "'unknown'"
    before = sorted(tmp_path.iterdir())
    for name, said in cases.items():
        result = run(name)
        assert result.exit_code == 2, name
        assert said in result.output.replace("\n", " "), name
        assert result.exception is None or isinstance(result.exception, SystemExit)
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_of_several_runs(swept: Path, sparse: Path, tmp_path: Path) -> None:
    for name, source in (("a", swept), ("b", sparse)):
        shutil.copytree(source, tmp_path / name)
    result = run(tmp_path, "-o", tmp_path / "x.png")
    assert result.exit_code == 2
    assert "is not a run: it has no config.json" in result.output.replace("\n", " ")


def test_a_file_that_cannot_be_written(swept: Path, tmp_path: Path) -> None:
    """What stood there before is untouched."""
    (tmp_path / "x.png").mkdir()
    result = run(swept, "-o", tmp_path / "x.png", "--dpi", "40")
    assert result.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]
