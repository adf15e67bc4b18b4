"""Every figure of every kind of run: the numbers in it are those of the results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.container import ErrorbarContainer

import esscher
from esscher.core.errors import InputError
from esscher.show.catalogue import CATALOGUE, draw, figures_of, offered
from esscher.show.files import figure_bytes, write_figure
from esscher.show.style import DOUBLE, SINGLE, columns, escape, plain_number, printable
from tests.show.runs import HOSTILE, RUNS, make

METRICS = ("mean", "cov", "map")

#: Runs whose charts are specifications, tested with their studies.
SPECIFIED = ("tails", "sparse", "domains")


def points(axis):
    """Coordinates and lengths of the bars of every set of points with intervals."""
    found = []
    for container in axis.containers:
        if isinstance(container, ErrorbarContainer):
            line, _, bars = container
            ends = [np.array(part.get_segments()) for part in bars]
            found.append((np.column_stack(line.get_data()), ends[0] if ends else None))
    return found


def images(figure):
    """Numbers of the heatmaps."""
    meshes = [c for a in figure.axes for c in a.collections if isinstance(c, QuadMesh)]
    # a colour bar is a mesh of one column
    found = [np.ma.filled(mesh.get_array(), np.nan) for mesh in meshes if mesh.norm is not None]
    return [grid for grid in found if grid.shape[1] > 1]


@cache
def drawn(run, name):
    """A figure of a run as it is by default; tests only look at it."""
    return draw(*make(run), name)


@pytest.mark.parametrize("name", [n for n in RUNS if not n.startswith(SPECIFIED)])
def test_every_figure_of_every_kind_of_run(name):
    kind, found = make(name)
    known = offered(kind, found)
    assert next(iter(known)) == next(iter(CATALOGUE[kind]))
    for figure_name, about in known.items():
        assert about
        assert "\n" not in about
        figure = drawn(name, figure_name)
        assert figure.get_size_inches()[0] == DOUBLE
        assert any(axis.has_data() for axis in figure.axes)
    for figure_name in set(CATALOGUE[kind]) - set(known):
        with pytest.raises(InputError, match=f"no figure '{figure_name}'"):
            draw(kind, found, figure_name)


@pytest.mark.parametrize(
    ("name", "chosen"),
    [("probe", "heads"), ("sweep-one", "exponents"), ("plan", "budgets")],
)
def test_a_figure_as_a_file(name, chosen):
    """Well-formed, text as text, and no formula where somebody's name looks like one."""
    kind, found = make(name)
    picture = figure_bytes(draw(kind, found, chosen, width="single"), ".svg")
    root = ElementTree.fromstring(picture)
    text = " ".join("".join(node.itertext()) for node in root.iter() if node.tag.endswith("}text"))
    assert {"probe": "one-pass k-hat", "sweep": "horizon H"}.get(kind, "") in text
    if kind in ("probe", "plan"):
        for word in printable(HOSTILE).split():
            assert word in text
    assert abs(float(root.attrib["width"].removesuffix("pt")) - 72 * SINGLE) < 0.01


def test_variants_differ_in_what_they_offer():
    assert "layers" not in offered(*make("probe-one"))
    assert {"growth", "limit"} <= set(offered(*make("deep-stack")))
    assert {"end", "terciles"} <= set(offered(*make("deep")))
    kind, plan = make("plan")
    unchecked = plan.to_dict() | {"check": None}
    assert list(offered(kind, unchecked)) == ["plan", "budgets", "predicted"]
    assert len(draw(kind, unchecked).axes) == 3  # two panels and a colour bar
    assert figures_of(plan) == offered(kind, plan)
    assert make("theory")[0] == "theory"
    assert list(figures_of(make("theory")[1])) == ["curves"]


# --- the numbers -------------------------------------------------------------------------------


def test_heatmaps_of_a_probe():
    _, found = make("probe")
    table = found.table()
    shown = images(drawn("probe", "heads"))
    assert len(shown) == 6
    for column, grid in zip(("mean", "map", "H", "khat", "tokens_10"), shown, strict=False):
        wanted = table[column].to_numpy(dtype=float).reshape(2, 3)
        np.testing.assert_allclose(grid, wanted)
    lost = (table["sinks"] + table["delimiters"]).to_numpy(dtype=float)
    np.testing.assert_allclose(shown[5].ravel(), lost)
    # the same from plain results
    again = images(draw("probe", json.loads(json.dumps(found.to_dict())), "heads"))
    np.testing.assert_array_equal(np.stack(shown), np.stack(again))


def test_curves_of_chosen_heads():
    _, found = make("probe")
    figure = draw("probe", found, "curves", heads=[(2, 1), (0, 2)])
    assert len(figure.axes) == 2
    for axis, (layer, head) in zip(figure.axes, ((2, 1), (0, 2)), strict=True):
        about = found.head(layer, head)
        assert axis.get_title().startswith(f"head {layer}.{head}:")
        for (at, bars), metric in zip(points(axis), METRICS, strict=True):
            fit = about.fit[metric]
            scale = about.norm ** (2 if metric == "cov" else 1)
            np.testing.assert_allclose(at, np.transpose([fit.sizes, fit.mean]) / [1, scale])
            ends = np.transpose([fit.lower, fit.upper]) / scale
            np.testing.assert_allclose(bars[:, :, 1], ends)
        lines = [line for line in axis.lines if line.get_linestyle() == "--"]
        predicted = np.array(about.predicted_map.error) / about.norm
        np.testing.assert_allclose(lines[0].get_ydata(), predicted)
    with pytest.raises(InputError, match=r"no head 5\.1 .* layers 0, 2 and heads 0 to 2"):
        draw("probe", found, "curves", heads=[(5, 1)])
    with pytest.raises(InputError, match="takes no heads; that is for curves"):
        draw("probe", found, "heads", heads=[(0, 0)])


def test_predicted_exponents():
    _, found = make("probe")
    figure = drawn("probe", "predicted")
    table = found.table()
    at = np.concatenate([part for part, _ in points(figure.axes[0])])
    wanted = table[["predicted_khat", "mean"]].to_numpy(dtype=float)
    np.testing.assert_allclose(at[np.lexsort(at.T)], wanted[np.lexsort(wanted.T)])
    off = np.mean(np.abs(table["predicted_khat"] - table["mean"]))
    assert f"{off:.3f}" in figure.axes[0].texts[0].get_text()


def test_tokens_are_sorted_with_their_intervals():
    _, found = make("probe")
    axis = drawn("probe", "tokens").axes[0]
    need = found.table()["tokens_10"].dropna().sort_values().to_numpy(dtype=float)
    dots = axis.collections[1].get_offsets()
    np.testing.assert_allclose(dots[:, 1], need)


def test_heads_together():
    _, found = make("probe")
    figure = drawn("probe", "layers")
    together = found.layers[0].heads_together
    shown = images(figure)[0]
    upper, lower = np.triu_indices(3, 1), np.tril_indices(3, -1)
    np.testing.assert_allclose(shown[upper], np.array(together.correlation)[upper])
    magnitudes = np.array(together.magnitudes.correlation)
    np.testing.assert_allclose(shown[lower], magnitudes[lower])


@pytest.mark.parametrize("name", ["sweep", "sweep-one", "sweep-laplace"])
def test_curves_of_a_sweep(name):
    _, curve = make(name)
    figure = drawn(name, "curve")
    for axis, metric in zip(figure.axes, METRICS, strict=True):
        for scale, (at, bars) in enumerate(points(axis)):
            rate = curve.rate(metric, scale)
            np.testing.assert_allclose(at, np.transpose([rate.sizes, rate.errors]))
            np.testing.assert_allclose(bars[:, :, 1], np.transpose([rate.lower, rate.upper]))
    dashed = [line for line in figure.axes[2].lines if line.get_linestyle() == "--"]
    assert bool(dashed) == (curve.predictions is not None)
    if curve.predictions is not None:
        np.testing.assert_allclose(dashed[0].get_ydata(), curve.predictions[0].errors["map"])


def test_exponents_of_a_sweep():
    _, curve = make("sweep")
    axis = drawn("sweep", "exponents").axes[0]
    at = np.concatenate([part for part, _ in points(axis)])
    wanted = [(h, curve.rate("mean", s).exponent) for s, h in enumerate(curve.horizons)]
    np.testing.assert_allclose(at[np.argsort(at[:, 0])], wanted)
    labels = axis.get_legend_handles_labels()[1]
    assert "asymptotic, sharp" in labels
    # tokens without a limit have no asymptotic exponent to compare with
    axis = drawn("sweep-laplace", "exponents").axes[0]
    assert "asymptotic, sharp" not in axis.get_legend_handles_labels()[1]


def test_errors_by_layer():
    for name, curve in (("deep-stack", "map"), ("deep", "independent")):
        _, found = make(name)
        curves = points(drawn(name, "errors").axes[0])
        for j, (at, bars) in enumerate(curves):
            errors = [layer.error[curve].mean[j] for layer in found.layers]
            ends = [layer.error[curve].interval[j] for layer in found.layers]
            np.testing.assert_allclose(at[:, 1], errors)
            np.testing.assert_allclose(bars[:, 1, 1], np.array(ends)[:, 1])


def test_end_of_a_model():
    _, found = make("deep")
    axis = drawn("deep", "end").axes[0]
    for (at, _), mode in zip(points(axis), ("independent", "shared"), strict=True):
        end = found.end.kl[mode].mean
        np.testing.assert_allclose(at, np.transpose([found.sizes, end]))


def test_plans():
    _, plan = make("plan")
    results = plan.to_dict()
    np.testing.assert_array_equal(images(drawn("plan", "budgets"))[0], results["budgets"])
    axis = drawn("plan", "cost").axes[0]
    wanted = [1 - results["check"][name]["cosine"]["mean"] for name in ("planned", "uniform")]
    np.testing.assert_allclose([bar.get_height() for bar in axis.patches[:2]], wanted)
    dots = drawn("plan", "calibration").axes[0].lines[0]
    heads = results["check"]["heads"]
    shown = (np.ravel(heads["predicted"]) > 0) & (np.ravel(heads["realised"]) > 0)
    np.testing.assert_allclose(dots.get_xdata(), np.ravel(heads["predicted"])[shown])
    np.testing.assert_allclose(dots.get_ydata(), np.ravel(heads["realised"])[shown])
    # decoders are compared by KL
    check = {name: part | {"kl": {"mean": 0.5, "interval": [0.4, 0.7]}} if name in
             ("planned", "uniform", "heavy", "recent") else part
             for name, part in results["check"].items()}  # fmt: skip
    axis = draw("plan", results | {"check": check}, "cost").axes[0]
    assert {bar.get_height() for bar in axis.patches} == {0.5}
    assert "nats" in axis.get_ylabel()


def test_context_lengths():
    _, found = make("context")
    heads = found.to_dict()["heads"]
    axis = drawn("context", "saturation").axes[0]
    steps = {line.get_label(): line.get_data() for line in axis.lines}
    finite = np.array([head["length"] for head in heads if head["length"] is not None])
    for label, inside in (("measured", True), ("extrapolated", False)):
        at, share = steps[label]
        assert np.all((at <= 256) == inside)
        np.testing.assert_allclose(share, [np.sum(finite <= n) / 12 for n in at])
    assert any("1 head still changing at 256" in text.get_text() for text in axis.texts)

    figure = drawn("context", "lengths")
    grid = images(figure)[0]
    wanted = [np.nan if head["length"] is None else head["length"] for head in heads]
    np.testing.assert_allclose(grid.ravel(), wanted)
    marks = {patch.get_hatch(): patch.get_xy() for patch in figure.axes[0].patches}
    mesh = next(c for c in figure.axes[0].collections if isinstance(c, QuadMesh))
    assert all(patch.get_zorder() > mesh.get_zorder() for patch in figure.axes[0].patches)
    assert marks == {"xxxx": (0.5, 0.5), "////": (2.5, 0.5)}  # heads 1.1 and 1.3

    axis = draw("context", found, "curves", heads=[(0, 1), (1, 3)]).axes[0]
    np.testing.assert_allclose(axis.lines[0].get_ydata(), heads[1]["rest"])
    with pytest.raises(InputError, match=r"no head 3\.0"):
        draw("context", found, "curves", heads=[(3, 0)])


def test_predictions():
    _, prediction = make("theory")
    left, right = drawn("theory", "curves").axes
    for line, curve in zip(left.lines, prediction.curves.values(), strict=False):
        np.testing.assert_allclose(line.get_ydata(), curve.error)
    np.testing.assert_allclose(
        right.lines[0].get_ydata(), next(iter(prediction.curves.values())).local_slopes()
    )


# --- files and style ---------------------------------------------------------------------------


def test_the_same_run_gives_the_same_bytes(tmp_path):
    """In this process twice, and in another one with other hashes of strings."""
    kind, found = make("context")
    once = {e: figure_bytes(draw(kind, found, "lengths"), e, 60) for e in (".png", ".svg", ".pdf")}
    assert (
        figure_bytes(draw(kind, found, "lengths"), ".svg", 300) == once[".svg"]
    )  # vectors have no dots
    results = tmp_path / "results.json"
    results.write_text(json.dumps(found.to_dict()))
    script = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from esscher.show.contexts import draw_lengths\n"
        "from esscher.show.files import write_figure\n"
        "folder = Path(sys.argv[1])\n"
        "found = json.loads((folder / 'results.json').read_text())\n"
        "for ending in ('png', 'svg', 'pdf'):\n"
        "    write_figure(draw_lengths(found), folder / f'figure.{ending}', 60)\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env=environment)
    for ending, data in once.items():
        assert (tmp_path / f"figure{ending}").read_bytes() == data


def test_vectors_keep_their_text():
    kind, found = make("context")
    figure = draw(kind, found, "saturation")
    assert b"tokens of context</text>" in figure_bytes(figure, ".svg")
    pdf = figure_bytes(figure, ".pdf")
    assert b"/CIDFontType2" in pdf or b"/TrueType" in pdf
    assert b"/Type3" not in pdf
    assert b"CreationDate" not in pdf


def test_the_caller_s_settings_neither_matter_nor_change():
    kind, found = make("context")
    plain = figure_bytes(draw(kind, found, "saturation"), ".svg")
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True, "lines.linewidth": 9}):
        before = dict(matplotlib.rcParams)
        other = figure_bytes(draw(kind, found, "saturation"), ".svg")
        assert dict(matplotlib.rcParams) == before
    assert other == plain


def test_a_picture_that_is_too_large_or_of_no_format(tmp_path):
    figure = draw(*make("context"), "saturation")
    with pytest.raises(InputError, match="dots on a side"):
        figure_bytes(figure, ".png", 20_000)
    with pytest.raises(InputError, match=r"must end in \.png, \.svg, \.pdf"):
        write_figure(figure, tmp_path / "new" / "figure.gif")
    assert not list(tmp_path.iterdir())
    write_figure(figure, tmp_path / "new" / "figure.PNG", 50)
    assert (tmp_path / "new" / "figure.PNG").read_bytes().startswith(b"\x89PNG")


def test_names_in_other_scripts_draw_without_alarm():
    """Warnings are errors here: the font has no such letters."""
    kind, found = make("context")
    results = json.loads(json.dumps(found.to_dict()))
    results["configuration"]["model"]["name"] = "\u6a21\u578b \u0627\u0644\u0639"
    assert figure_bytes(draw(kind, results, "saturation"), ".png", 50)
    assert "\u6a21\u578b".encode() in figure_bytes(draw(kind, results, "saturation"), ".svg")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("probe", "context", "heads"), "the result of this probe is damaged: "),
        (("context", "context", "curve"), "choose from context, saturation, lengths, curves"),
        (("nothing", "context", None), "no figures of a run of kind 'nothing'"),
    ],
)
def test_what_cannot_be_drawn(arguments, said):
    kind, run, name = arguments
    with pytest.raises(InputError, match=said):
        draw(kind, make(run)[1].to_dict(), name)


def test_damaged_and_empty_results():
    results = json.loads(json.dumps(make("context")[1].to_dict()))
    with pytest.raises(InputError, match="nothing to draw yet"):
        draw("context", results | {"heads": []})
    del results["lengths"]
    with pytest.raises(InputError, match="KeyError: 'lengths'"):
        draw("context", results)


@pytest.mark.parametrize("width", ["triple", "0.5", 99.0, "nan", None])
def test_impossible_widths(width):
    with pytest.raises(InputError, match="single, double, or inches from 2 to 20"):
        draw(*make("context"), width=width)


def test_titles_can_be_left_out_or_given():
    kind, found = make("context")
    assert draw(kind, found, title="").get_suptitle() == ""
    assert draw(kind, found, title="Costs $5 and $6").get_suptitle() == r"Costs \$5 and \$6"
    assert escape(HOSTILE) in " ".join(draw(kind, found).get_suptitle().split("\n"))


def test_the_python_call():
    _, found = make("context")
    assert esscher.figure(found, "lengths", width=5).get_size_inches()[0] == 5
    assert esscher.figures_of(found)["lengths"] == "context that every head uses"
    with pytest.raises(InputError, match="int is nothing"):
        esscher.figure(3)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.001, "0.001"), (300.0, "300"), (1e4, "$10^{4}$"), (3e-5, r"$3{\times}10^{-5}$"), (0, "0")],
)
def test_numbers_at_ticks(value, text):
    assert plain_number(value) == text


def test_panels_share_rows_evenly():
    assert [columns(7.0, count, 1.7) for count in (1, 2, 4, 6, 7)] == [1, 2, 4, 3, 4]
    assert columns(1.0, 5, 3.0) == 1
