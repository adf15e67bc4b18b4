"""Variables are attributes that mypy knows, and a schema that datasets are checked against."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from esscher.core.errors import InputError
from esscher.core.variables import Data, check, var

ROOT = Path(__file__).parents[2]
#: Lines with the names of variables that are not declared, marked by a comment.
CODE = """\
from esscher.studies.tails.study import TailsData
from esscher.core.variables import Data, var
class Norms(Data):
    norm = var("layer head")
def read(data: TailsData, norms: Norms) -> None:
    print(data.kappa.values, data.keys.tau, Norms.norm.label, norms.norm.sel(layer=0))
    norms.norm = [[1.0]]
    print(data.kapa)  # wrong
    print(data.keys.tao)  # wrong
    norms.nrom = [[1.0]]  # wrong
    print(Norms.nrom.label)  # wrong
"""


@pytest.mark.slow
def test_a_misspelt_variable_fails_mypy(tmp_path):
    (tmp_path / "code.py").write_text(CODE)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ROOT / ".mypy_cache"]
    done = subprocess.run(
        [*command, tmp_path / "code.py"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    wrong = [i for i, line in enumerate(CODE.splitlines(), 1) if line.endswith("# wrong")]
    assert [int(n) for n in re.findall(r":(\d+): error: .* has no attribute", done.stdout)] == wrong
    assert f"Found {len(wrong)} errors" in done.stdout


class Norms(Data):
    """A result with an estimate for each head."""

    norm = var("layer head bound")
    count = var("layer", kind="i")
    note = var("layer", kind="U", optional=True)


def norms() -> Norms:
    data = Norms.new(layer=[0, 2], head=[1])
    data.norm, data.count = [[[1.0, 0.5, 2.0]], [[2.0, 1.0, 3.0]]], [3, 4]
    return data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.drop_vars("count"), "count is missing"),
        (lambda d: d.assign(x=("layer", [1, 2])), "it has a variable 'x', which is not known"),
        (lambda d: d.assign(count=("layer", [1.0, 2.0])), "count is of type float64; it must be"),
        (lambda d: d.transpose("head", ...), "norm has axes"),
        (lambda d: d.assign(norm=d["norm"] * float("inf")), "norm holds an infinite number"),
        (lambda d: d.drop_vars("layer"), "the labels of 'layer', along count, must be whole"),
        (lambda d: d.assign_coords(layer=[0, 0]), "the labels of 'layer' are not distinct"),
        (lambda d: d.isel(bound=[0, 2, 1]), "the labels of 'bound' must be value, low, high"),
        (lambda d: d.assign_coords(unit=("layer", [1, 2])), "it has labels 'unit', which are not"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, message):
    data = norms().dataset
    assert check(data, Norms, "file") is data
    with pytest.raises(InputError, match=f"file: {message}"):
        check(change(data), Norms, "file")
