"""The README: its numbers come from stored results, its commands and its code run as they stand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from benchmarks.cache_tables import ALL
from benchmarks.front import CURVES, DECODE

from esscher.core.shown import two_digits
from esscher.studies.plan.view import NAMES
from tests.docs.pages import ROOT, blocks, command_lines

README = (ROOT / "README.md").read_text(encoding="utf-8")
FINDINGS = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")


def row(start: str) -> str:
    """The row of a table that begins so."""
    return next(line for line in README.splitlines() if line.startswith(f"| {start}"))


@pytest.mark.parametrize("model", CURVES)
@pytest.mark.parametrize("budget", [0.0625, 0.125, 0.25])
def test_quality_is_that_of_the_finding(model: str, budget: float) -> None:
    """Texts are the units; of published rules the closest by the geometric mean is named."""
    table = pd.read_csv(CURVES[model])
    rows = table[(table["text"] == ALL) & (table["budget"] == budget)].set_index("configuration")
    rules = rows.drop(index=["planned", "uniform"])
    closest = rules["over_planned"].idxmin()
    assert rows["texts"].unique().tolist() == [13]

    def cell(name: str, what: str) -> str:
        names = [what, f"{what}_low", f"{what}_high"]
        return "{} ({} to {})".format(*map(two_digits, rows.loc[name, names].astype(float)))

    line = row(f"{model.split(',')[0]}, {100 * budget:g}%")
    assert line in FINDINGS
    rule = f"{NAMES[closest]} in {rules['bits'][closest]:.0f} bits"
    assert line.split(" | ", 1)[1] == (
        f"{cell('planned', 'kl')} | {rows.loc['planned', 'top1']:.1%} | "
        f"{cell('uniform', 'over_planned')} | {rule}, {cell(closest, 'over_planned')} |"
    )


def test_what_rounding_does_is_that_of_the_finding() -> None:
    table = pd.read_csv(CURVES["Qwen2.5-Coder, 1.5B"])
    (rows,) = table[(table["text"] == ALL) & (table["budget"] == 1)].to_dict("records")
    low, high = two_digits(rows["kl_low"]), two_digits(rows["kl_high"])
    told = f"{two_digits(rows['kl'])} ({low} to {high})"
    assert told in FINDINGS
    assert told in README


def test_speed_and_bytes_are_those_of_the_benchmark() -> None:
    stored = json.loads(DECODE.read_text(encoding="utf-8"))
    times = {(point["batch"], point["length"]): point for point in stored["tokens"]["result"]}
    single, four, short = times[1, 8192], times[4, 8192], times[1, 1024]
    paragraph = row("a token after it")
    for key in ("dense_ms", "planned_ms"):
        assert f"{single[key]:.0f} / {four[key]:.0f} ms" in paragraph
    assert f"{short['dense_ms']:.0f} ms | {short['planned_ms']:.0f} ms" in row(
        "a token after 1,024"
    )
    reading = {point["length"]: 1 + point["share"] for point in stored["prefill"]["result"]}
    assert f"{reading[2048]:.1f} / {reading[8192]:.1f} |" in row("reading a prompt")
    dense = stored["memory"]["result"]["dense_cache_mb"]
    assert f"{dense:.0f} MB | {dense * single['bytes']:.0f} MB" in row("cache after a prompt")


@pytest.mark.slow
def test_commands_and_code_run_in_an_empty_folder(tmp_path: Path) -> None:
    names = ("A.txt", "B.txt")
    commands = [words for _, words in command_lines(README) if not set(names) & set(words)]
    assert {"paper", "probe", "plan", "generate", "report"} <= {words[0] for words in commands}
    for words in commands:
        ran = subprocess.run(
            [sys.executable, "-m", "esscher", *words], cwd=tmp_path, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
    for made in ("report.html", "heads.html", "heads.png", "paper.html"):
        assert (tmp_path / made).stat().st_size > 10_000, made
    code = next(b.text for b in blocks(README) if b.language == "python" and "past_key" in b.text)
    (tmp_path / "long.txt").write_text("A cache holds keys and values of all tokens. " * 120)
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "bytes instead of" in ran.stdout
