"""What is in a report's file: the numbers of the run, nothing that runs or loads, bounded size."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shlex

import numpy as np
import pytest
from click.testing import CliRunner

import esscher
import esscher.show.render as rendering
from esscher.cli.program import main
from esscher.core.errors import InputError
from esscher.runs.registry import STUDIES
from esscher.show.content import Page, Table
from esscher.show.numbers import between, shown, visible
from esscher.show.pages import KINDS, make_pages
from esscher.show.pages.comparison import _typical
from esscher.show.render import as_data
from esscher.show.stored import read_runs
from tests.show.page_probe import changed, wide_probe
from tests.show.runs import HOSTILE, make

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


def written(found, tmp_path, **options):
    return esscher.report(found, tmp_path / "report.html", **options).read_text("utf-8")


def data_of(text):
    return json.loads(DATA.search(text)[1])


def test_every_kind_that_is_stored_has_a_page():
    assert set(KINDS) <= set(STUDIES)


@pytest.mark.parametrize(
    "name", ["probe", "sparse", "deep", "deep-stack", "tails", "plan", "context"]
)
def test_the_answer_comes_first_and_every_value_is_escaped(name, tmp_path):
    found = make(name)[1]
    text = written(found, tmp_path)
    assert len(text.encode()) < rendering.LARGEST
    before = text[: text.index('id="data"')]
    answer = re.search(r'<p class="answer">(.*?)</p>', before)[1]
    assert html.unescape(answer) == found.headline
    if name != "deep-stack":
        assert html.escape(HOSTILE, quote=False) in before
    assert HOSTILE not in before
    assert "<b>" not in before
    for loads in ("src=", "@import", "url(", '<link rel="stylesheet', "<iframe", "<object"):
        assert loads not in before
    assert re.findall(r'href="(?!#|data:,)', before) == []


def test_only_our_scripts_may_run(tmp_path):
    text = written(make("context")[1], tmp_path)
    policy = html.unescape(re.search(r'Content-Security-Policy" content="(.*?)"', text)[1])
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for word in ("unsafe-eval", "http", "*"):
        assert word not in policy
    assert "'unsafe-inline'" not in policy.split(";")[1]
    scripts = SCRIPT.findall(text)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_data_cannot_end_its_element():
    hostile = {"</script><!--": ["<script>", "&lt;", "a\u2028b\u2029"]}
    text = as_data(hostile)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == hostile
    assert (
        as_data([float("nan"), np.float64("inf"), np.int64(3), 1 / 3]) == "[null,null,3,0.333333]"
    )


def test_the_table_of_heads_is_the_probe_s(tmp_path):
    found = make("probe")[1]
    explorer = next(
        part for part in data_of(written(found, tmp_path)).values() if part["part"] == "explorer"
    )
    frame, data = found.table(), explorer["table"]["data"]
    for key in ("layer", "head", "H", "khat", "mean", "mean_low", "cov_high", "tokens_10", "ess"):
        np.testing.assert_allclose(
            np.array(data[key], dtype=float), frame[key].astype(float), rtol=1e-5
        )
    for curve, head in zip(explorer["curves"], found.heads, strict=True):
        for metric in ("mean", "cov", "map"):
            np.testing.assert_allclose(curve[metric], head.curve[metric].mean, rtol=1e-5)
            np.testing.assert_allclose(curve[f"{metric}_low"], head.fit[metric].lower, rtol=1e-5)
    assert [[flag for flag, _ in flags] for flags in explorer["flags"]] == [
        [flag.flag for flag in head.flags] for head in found.heads
    ]


def test_the_exponents_of_a_sweep_are_the_fitted_ones(tmp_path):
    curve = make("sweep")[1]
    table = next(
        part for part in data_of(written(curve, tmp_path)).values() if part["title"] == "Exponents"
    )
    expected = [
        curve.rate(metric, s).exponent for s in range(3) for metric in ("map", "mean", "cov")
    ]
    np.testing.assert_allclose(table["data"]["exponent"], expected, rtol=1e-5)
    np.testing.assert_allclose(table["data"]["horizon"][::3], curve.horizons, rtol=1e-5)


def test_a_report_that_is_too_large_keeps_the_curves_that_matter(tmp_path, monkeypatch):
    found = wide_probe(12, 8)
    whole = written(found, tmp_path)
    monkeypatch.setattr(rendering, "LARGEST", len(whole.encode()) - 20_000)
    text = written(found, tmp_path)
    assert len(text.encode()) <= rendering.LARGEST
    explorer = next(part for part in data_of(text).values() if part["part"] == "explorer")
    kept = [i for i, curve in enumerate(explorer["curves"]) if curve]
    assert 0 < len(kept) < 96
    assert f"has the curves of {len(kept)} of 96" in text
    needed = np.array(explorer["table"]["data"]["tokens_10"], dtype=float)
    needed[np.isnan(needed)] = np.inf
    assert needed[kept].min() >= np.delete(needed, kept).max()
    monkeypatch.setattr(rendering, "LARGEST", 1_000_000)
    with pytest.raises(InputError, match="report fewer runs"):
        written(found, tmp_path)
    # what was there before is still whole
    assert (tmp_path / "report.html").read_text("utf-8") == text


def test_several_runs_are_compared(tmp_path):
    def double(results):
        for head in results["heads"]:
            for tolerance, tokens in head["tokens_for"].items():
                head["tokens_for"][tolerance] = None if tokens is None else 2 * tokens

    one, two = wide_probe(3, 4), changed(wide_probe(3, 4), double)
    pages = make_pages(read_runs([one, two, make("sweep")[1], make("sweep-one")[1]]))
    assert len(pages) == 5
    assert isinstance(pages[0], Page)
    titles = [part.title for part in pages[0].parts]
    assert titles[:3] == ["Runs", "Exponents of all sweeps", "Errors of all sweeps"]
    table = next(p for p in pages[0].parts if isinstance(p, Table) and "agree" in p.title)
    row = table.data["quantity"].index("tokens for 10% error")
    assert table.data["change"][row] == pytest.approx(2.0)
    assert table.data["low"][row] == pytest.approx(2.0)
    assert table.data["rank"][row] == pytest.approx(1.0)
    assert "2.00 (2.00 to 2.00) times as many" in pages[0].answer


def test_heads_of_other_weights_are_not_paired():
    """The same name, layers and heads: only the hash tells two models apart."""

    def hashed(probe, weights):
        return changed(
            probe, lambda results: results["configuration"]["model"].update(weight_hash=weights)
        )

    one, two, three = (wide_probe(3, 4) for _ in range(3))
    two = hashed(two, "0" * 64)
    page = make_pages(read_runs([one, two]))[0]
    assert [part.title for part in page.parts] == ["Runs"]
    assert "correlation" not in page.answer
    assert "other weights or other heads are not compared" in page.answer
    # among several, those of the same weights are
    page = make_pages(read_runs([one, two, three]))[0]
    table = next(p for p in page.parts if isinstance(p, Table) and "agree" in p.title)
    assert set(table.data["run"]) == {"wide (2)"}
    one, three = hashed(one, ""), hashed(three, "")  # stored without a hash: nobody knows
    assert "correlation" not in make_pages(read_runs([one, three]))[0].answer


def test_the_interval_of_a_median_covers_it():
    """Of 2,000 samples of 41 normal numbers at least 95% (minus 4 standard errors) hold 0."""
    rng = np.random.default_rng([5, 1])
    found = [_typical(rng.normal(size=41)) for _ in range(2000)]
    covered = np.mean([one["low"] <= 0 <= one["high"] for one in found])
    assert covered >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / 2000)


@pytest.mark.parametrize(
    "words",
    [
        "sweep gaussian --horizon 0.6 --dim 3 --sizes 20,40 --alpha 0.5,2 --replicates 4 --seed 3 "
        "--no-predict",
        "sparse-law gaussian --horizon 0.5 --dim 2 --tokens 128 --replicates 8 --query-count 8 "
        "--budgets 16,32 --patterns random,topk",
        "deep-stack --depth 2 --dim 2 --sizes 16,32 --replicates 4",
    ],
)
def test_the_command_is_remembered_and_can_be_rebuilt(words, tmp_path):
    first = tmp_path / "first"
    asked = [*words.split(), "--out", str(first)]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    page = make_pages(read_runs([first]))[0]
    assert page.command == shlex.join(["esscher", *asked])
    # without the memory: what the configuration says makes the same run
    config = first / "config.json"
    about = json.loads(config.read_text())
    config.write_text(json.dumps(about | {"command": None}))
    rebuilt = shlex.split(make_pages(read_runs([first]))[0].command)
    assert rebuilt[0] == "esscher"
    assert rebuilt[-2:] == ["--out", "first"]
    again = tmp_path / "again"
    result = CliRunner().invoke(main, [*rebuilt[1:-1], str(again)])
    assert result.exit_code == 0, result.output
    assert (
        json.loads((again / "config.json").read_text())["configuration"] == about["configuration"]
    )
    # and the memory is no part of what resuming compares
    assert CliRunner().invoke(main, asked).exit_code == 0


def test_the_model_s_command_is_rebuilt():
    run = read_runs([make("probe")[1]])[0]
    command = make_pages([run])[0].command
    assert command is not None
    words = shlex.split(command)
    assert words[:3] == ["esscher", "probe", HOSTILE]
    assert words[words.index("--layers") + 1] == "0,2"
    assert words[words.index("--sizes") + 1] == "16,32,64"


def test_a_head_that_no_option_describes_has_no_command():
    head = esscher.gaussian_head(spectrum=[1.0, 0.2], dim=2)
    curve = esscher.sweep(head, [20, 40], 4)
    page = make_pages(read_runs([curve]))[0]
    assert page.command is None
    assert "Python" in page.command_note


@pytest.mark.parametrize("found", [3, None, "nowhere", [], {"kind": "probe"}])
def test_what_is_no_run_is_refused(found, tmp_path):
    with pytest.raises(InputError):
        esscher.report(found, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "how", "text"),
    [
        (0.4567, "d2", "0.46"),
        (1234.5, "s3", "1,234"),
        (0.000012345, "s3", "1.23×10⁻⁵"),
        (2.5e9, "s2", "2.5×10⁹"),
        (264_690, "n3", "265,000"),
        (264_690, "n0", "264,690"),
        (0.1234, "p1", "12.3%"),
        (None, "d2", "–"),
        (float("inf"), "n0", "∞"),
        (True, "text", "yes"),
    ],
)
def test_numbers(value, how, text):
    assert shown(value, how) == text


def test_intervals_and_tokens():
    assert between(0.5, (0.4, 0.61), "d2") == "0.50 (0.40 to 0.61)"
    assert between(0.5, None, "d2") == "0.50"
    assert visible("a\n\u202eb é") == "a\\n\\u202eb é"
