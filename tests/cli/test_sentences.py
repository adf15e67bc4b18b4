"""What commands say: plain numbers, grammar, notes about models, and what is being done."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from esscher.cli import main
from esscher.core.shown import announce
from esscher.math.tails import TailComparison
from esscher.math.tails.verdict import UNDECIDED, judge_thresholds
from esscher.runs.progress import Reporter
from esscher.studies.probe.assemble import headline
from tests.fuzz.damage import unpack
from tests.studies.probe.made import made_head


def shown(run) -> str:
    result = CliRunner().invoke(main, ["show", str(run)])
    assert result.exit_code == 0, result.output
    return result.output


def test_patterns_are_named_without_markup(tmp_path):
    output = shown(unpack("sparse-law", tmp_path))
    assert "[bold]" not in output
    assert "\nwindow keeps the exponent" in output


@pytest.mark.parametrize("kind", ["probe", "deep", "tails", "domains"])
def test_what_is_to_be_known_about_a_model_is_said(kind, tmp_path):
    run = unpack(kind, tmp_path)
    note = "logits carry a bias by relative position"
    assert f"Note: {note}." not in shown(run)
    for name in ("config.json", "results.json"):
        about = json.loads((run / name).read_text())
        about["configuration"]["model"]["note"] = note
        (run / name).write_text(json.dumps(about))
    for part in (run / "parts").glob("*.json"):  # they know the configuration by its hash
        stored = json.loads(part.read_text())
        del stored["run"]
        part.write_text(json.dumps(stored))
    assert f"Note: {note}." in shown(run)


@pytest.mark.parametrize(
    ("near", "start"),
    [
        (0, "The mean outputs of 0 of 2 heads converge like 1/sqrt(n); of the other 2, flags"),
        (1, "The mean output of 1 of 2 heads converges like 1/sqrt(n); of the other 1, flags"),
        (2, "The mean outputs of 2 of 2 heads converge like 1/sqrt(n). A typical head"),
    ],
)
def test_heads_are_counted_in_grammar(near, start):
    heads = []
    for i in range(2):
        beta, head = 0.5 if i < near else 0.2, made_head(i)
        mean = replace(head.fit.mean, exponent=beta, interval=(beta - 0.01, beta + 0.01))
        heads.append(replace(head, fit=replace(head.fit, mean=mean)))
    assert headline(heads).startswith(start)


def test_rates_of_progress_are_plain_numbers(monkeypatch):
    clock = iter([0.0, 0.0, 60.0])
    monkeypatch.setattr("esscher.runs.progress.time.monotonic", lambda: next(clock))
    reporter = Reporter(None, bar=False)
    reporter.expect(5000, 0)
    for _ in range(1320):
        reporter.advance()
    assert "1,320 a minute" in reporter.status()


def test_the_tail_shown_is_the_one_that_decided():
    def tail(low, high):
        criterion = {"Gaussian": 0.0, "Weibull": 0.0, "Pareto": 0.0}
        return TailComparison(
            share=0.1, threshold=2.0, exceedances=500, groups=10, tau=1.0,
            tau_interval=(low, high), k=0.1, inflation=1.0, level=0.95, weights={},
            gaussian_over_exponential=0.0, criterion=criterion,
        )  # fmt: skip

    # heavy from below, overruled further out, where nothing can be told
    assert judge_thresholds([tail(1.1, 1.5), tail(1.6, 3.0)]) == (UNDECIDED, 1)
    assert judge_thresholds([tail(1.0, 3.0), tail(0.5, 4.0)]) == (UNDECIDED, 0)


def test_what_is_done_before_the_first_bar_is_said_on_a_terminal(capsys, monkeypatch):
    announce("Loading demo:minilm")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    announce("Loading demo:minilm")
    assert capsys.readouterr() == ("", "Loading demo:minilm ...\n")
