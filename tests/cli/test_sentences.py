"""What commands say of stored runs: names without markup, and notes about models."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from esscher.cli import main
from esscher.runs import read_run
from tests.fuzz.damage import unpack


def shown(run) -> str:
    result = CliRunner().invoke(main, ["show", str(run)])
    assert result.exit_code == 0, result.output
    return result.output


def test_patterns_are_named_without_markup(tmp_path):
    output = shown(unpack("sparse-law", tmp_path))
    assert "[bold]" not in output
    assert "\nwindow keeps the exponent" in output or "\nwindow is undecided" in output


@pytest.mark.parametrize("kind", ["probe", "deep", "tails", "domains"])
def test_what_is_to_be_known_about_a_model_is_said(kind, tmp_path):
    run = unpack(kind, tmp_path)
    note = "logits carry a bias by relative position"
    assert f"Note: {note}." not in shown(run)
    for name in ("config.json", "results.json"):
        about = json.loads((run / name).read_text())
        about["configuration"]["model"]["note"] = note
        (run / name).write_text(json.dumps(about))
    identity = read_run(run).identity
    for part in (run / "parts").glob("*.json"):  # they know the configuration by its hash
        stored = json.loads(part.read_text())
        part.write_text(json.dumps(stored | {"run": identity}))
    assert f"Note: {note}." in shown(run)
