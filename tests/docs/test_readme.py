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
#: Share of the tokens that the README's table is about.
BUDGET = 0.25


def row(start: str) -> str:
    """The row of a table that begins so."""
    return next(line for line in README.splitlines() if line.startswith(f"| {start}"))


def test_quality_is_that_of_the_finding() -> None:
    table = pd.read_csv(CURVES)
    rows = table[(table["text"] == ALL) & (table["budget"] == BUDGET)].set_index("configuration")
    others = rows.drop(index="planned")
    rules = others.drop(index="uniform")
    assert f"{two_digits(rows.loc['planned', 'kl'])} (0 to " in row("distance from the full cache")
    assert f"{rows.loc['planned', 'top1']:.1%}" in row("same most likely")
    paragraph = README.split("**How much closer is that?**")[1].split("\n\n")[0].replace("\n", " ")

    def ratio(name: str) -> str:
        ratios = rows.loc[name, ["over_planned", "over_planned_low", "over_planned_high"]]
        mean, low, high = map(two_digits, ratios.astype(float))
        return f"{mean} ({low} to {high}) times as far"

    # the best of all others, by both statistics
    assert {others["over_planned"].idxmin(), others["kl"].idxmin()} == {"uniform"}
    assert f"equal budgets are {ratio('uniform')}" in paragraph
    assert f"mean KL ({two_digits(rows.loc['uniform', 'kl'])})" in paragraph
    # the closest published rule, by either; two keep the same tokens
    assert rules["kl"].nunique() == 9
    assert "Of nine different published rules" in paragraph
    assert (rules["over_planned"].idxmin(), rules["kl"].idxmin()) == ("adakv", "kvzip")
    assert f"AdaKV is closest by the ratio, {ratio('adakv')}" in paragraph
    assert f"KVzip by mean KL ({two_digits(rows.loc['kvzip', 'kl'])})" in paragraph
    # texts are the units
    assert rows["texts"].unique().tolist() == [3]
    each = table[(table["configuration"] == "uniform") & (table["budget"] == BUDGET)]
    first, second, third = map(two_digits, each[each["text"] != ALL]["over_planned"])
    assert f"{first}, {second} and {third} times as far" in paragraph


@pytest.mark.parametrize(
    ("text", "budget"),
    [("biomedical", 0.25), ("code", 0.25), ("novel", 0.25), (ALL, 0.125), (ALL, 0.25), (ALL, 0.5)],
)
def test_gains_of_plans_are_those_of_the_finding(text: str, budget: float) -> None:
    table = pd.read_csv(CURVES)
    rows = table[(table["text"] == text) & (table["budget"] == budget)].set_index("configuration")
    closest = rows.drop(index=["planned", "uniform"])["over_planned"].idxmin()
    names = ["over_planned", "over_planned_low", "over_planned_high"]
    uniform, rule = (
        "{} ({} to {})".format(*map(two_digits, rows.loc[name, names].astype(float)))
        for name in ("uniform", closest)
    )
    where = "all three" if text == ALL else text
    page = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    start = f"| {where}, {100 * budget:g}%"
    (line,) = (line for line in page.splitlines() if line.startswith(start))
    assert line.endswith(f"| {uniform} | {NAMES[closest]}, {rule} |")


@pytest.mark.parametrize("budget", [0.0625, 0.125, 0.25])
def test_gains_at_equal_bytes_are_those_of_the_finding(budget: float) -> None:
    table = pd.read_csv(CURVES.with_name("bytes-smollm2-curves.csv"))
    rows = table[(table["text"] == ALL) & (table["budget"] == budget)].set_index("configuration")
    rules = rows.drop(index=["planned", "uniform"])
    closest = rules["over_planned"].idxmin()

    def cell(name: str, what: str) -> str:
        names = [what, f"{what}_low", f"{what}_high"]
        return "{} ({} to {})".format(*map(two_digits, rows.loc[name, names].astype(float)))

    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    line = next(x for x in page.splitlines() if x.startswith(f"| {100 * budget:g}% | "))
    bits = f"{NAMES[closest]} in {rules['bits'][closest]:.0f} bits"
    assert line == (
        f"| {100 * budget:g}% | {cell('planned', 'kl')} | {cell('uniform', 'over_planned')} | "
        f"{bits}, {cell(closest, 'over_planned')} | {rows.loc['planned', 'top1']:.1%} |"
    )
    if budget == 0.125:
        start = README.index("In bytes: with 12.5%")
        paragraph = README[start : README.index("\n\n", start)]
        for name in ("uniform", closest):
            assert cell(name, "over_planned") in paragraph
        assert cell("planned", "kl") in paragraph


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
