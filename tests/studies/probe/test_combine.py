"""From cells to results: means over passages, samples side by side, flags, the headline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from esscher.engine.sampled.sizes import METRICS
from esscher.math.theory.cloud import Predicted
from esscher.runs.study import Setup
from esscher.studies.probe.combine import FLAGS, combine, raised
from esscher.studies.probe.measure import predicted_error
from esscher.studies.probe.study import ProbeData, ProbeStudy, Samples
from esscher.studies.probe.view import headline
from tests.engine.models.folders import tiny, words
from tests.runs.made import make
from tests.studies.probe.sizes import SEQUENCES


@pytest.fixture(scope="module")
def run() -> Any:
    """Two passages of a decoder: their setup, and their cells."""
    known: dict[str, Any] = {}

    class Kept(ProbeStudy):
        @staticmethod
        def combine(setup: Setup[Any], cells: Any) -> ProbeData:
            known.update(setup=setup, cells=list(cells.values()))
            return ProbeStudy.combine(setup, cells)

        @classmethod
        def name(cls) -> str:
            return "probe"

    options = SEQUENCES | {"tokens": 128, "layers": [0, 1], "heads": [0, 3]}
    Kept(tiny("llama"), [words(1000)], **options).run()
    return known["setup"], known["cells"]


def test_passages_are_one(run):
    setup, cells = run
    whole = combine(setup, cells).dataset
    assert whole.sizes["replicate"] == 6
    for i, cell in enumerate(cells):
        mine = whole["replicate_error"].isel(replicate=slice(3 * i, 3 * i + 3)).values
        np.testing.assert_array_equal(mine, cell["error"].isel(passage=0).values)
    for name in ("horizon", "psi", "ess", "at_context", "predicted_error", "curve_exponent"):
        each = np.array([cell[name].isel(passage=0).values for cell in cells])
        np.testing.assert_allclose(whole[name].values, each.mean(axis=0), rtol=1e-14, err_msg=name)
    for name in ("predicted_standard_error", "curve_exponent_error"):
        # predictions from different passages are independent
        each = np.array([cell[name].isel(passage=0).values for cell in cells])
        wanted = each.mean(axis=0) / np.sqrt(2)
        np.testing.assert_allclose(whole[name].values, wanted, rtol=1e-14)
    one = combine(setup, cells[:1]).dataset
    for name in ("horizon", "tokens", "predicted_standard_error", "sink_token"):
        np.testing.assert_array_equal(one[name].values, cells[0][name].isel(passage=0).values)


def test_what_is_missing_in_a_passage_is_missing(run):
    setup, cells = run
    changed = cells[1].copy(deep=True)
    changed["tokens"][..., 2] = np.nan  # the upper end is open
    changed["sink_received"][..., 1:] = np.nan
    data = Samples(cells[0].copy(deep=True))
    data.one_pass.sink_received = np.full(data.one_pass.sink_received.shape, 0.25)
    data.one_pass.sink_token = np.full(data.one_pass.sink_token.shape, "x")
    whole = ProbeData(combine(setup, [data.dataset, changed]).dataset).one_pass
    assert whole.tokens.sel(bound="high").isnull().all()
    assert whole.tokens.sel(bound=["value", "low"], within=0.1).notnull().all()
    assert (whole.sink_token.isel(rank=slice(1, None)) == "").all()


def quiet(heads: int = 1, replicates: int = 64) -> ProbeData:
    """Heads about which nothing stands out."""
    data = make("probe")[1].data.isel(layer=[0], other=[0]).isel(head=[0] * heads)
    data = data.isel(replicate=[0] * replicates)
    made = ProbeData(
        data.assign_coords(layer=[0], head=range(heads), other=[0], replicate=range(replicates))
    )
    shape = (1, heads, len(METRICS))
    made.fit.exponent = np.full((*shape, 3), (0.5, 0.48, 0.52))
    made.predicted_exponent = np.full((*shape, 3), (0.5, 0.48, 0.52))
    made.one_pass.curve_exponent = made.one_pass.sharp = np.full(shape, 0.5)
    made.standard_error = made.one_pass.curve_exponent_error = np.full(shape, 0.01)
    made.fit.trusted = np.full(shape, True)
    made.reference_share = np.zeros((1, heads))
    return made


def put(data: ProbeData, name: str, metric: str, value: Any, head: int = 0) -> ProbeData:
    """The same with another number of one head."""
    array = data.dataset[name]
    place = {"layer": 0, "head": head, "metric": metric}
    if "bound" in array.dims:
        place["bound"] = "value"
    array.loc[place] = value
    return data


def flags(data: ProbeData) -> list[list[str]]:
    return [[f for f, up in zip(FLAGS, head, strict=True) if up] for head in raised(data)[0]]


def test_slow_exponents_by_metric():
    data = put(put(quiet(3), "exponent", "map", 0.3), "exponent", "cov", 0.3, head=1)
    slow_map, slow_covariance, nothing = flags(data)
    assert slow_map == ["slow map", "prediction off (map)"]
    assert slow_covariance == ["slow covariance", "prediction off (covariance)"]
    assert nothing == []


def test_many_heads_need_more_evidence():
    # 2.5 standard errors: enough for one head, not for one among a hundred
    assert "slow mean" in flags(put(quiet(1), "exponent", "mean", 0.475))[0]
    assert flags(put(quiet(100), "exponent", "mean", 0.475))[0] == []


@pytest.mark.parametrize(
    ("exponent", "noise", "replicates", "slow"),
    [
        (0.35, 0.01, 64, True),
        (0.35, 0.05, 64, True),
        (0.35, 0.2, 64, False),
        (0.35, 1.0, 64, False),
        (0.475, 0.01, 64, True),
        (0.475, 0.01, 3, False),
    ],
)
def test_less_data_gives_no_more_flags(exponent, noise, replicates, slow):
    data = put(quiet(1, replicates), "exponent", "mean", exponent)
    (names,) = flags(put(data, "standard_error", "mean", noise))
    assert ("slow mean" in names) == slow


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"curve_exponent": 0.3}, ["slow mean (predicted)"]),
        # curves bend: measured exponents are compared with the weights of their fit
        ({"predicted_exponent": 0.3}, ["prediction off (mean)"]),
        ({"sharp": 0.1}, ["not Gaussian"]),
        ({"trusted": False}, ["fit"]),
        ({"exponent": np.nan, "standard_error": np.nan, "trusted": False}, []),
    ],
)
def test_flags_of_a_single_head(changes, names):
    data = quiet()
    for name, value in changes.items():
        put(data, name, "mean", value)
    assert flags(data) == [names]


def test_a_reference_that_is_not_exact_and_a_predicted_covariance():
    data = quiet()
    data.reference_share = [[0.3]]
    assert flags(data) == [["reference"]]
    # of the covariance it is no flag: it found too few
    assert flags(put(quiet(), "curve_exponent", "cov", 0.3)) == [[]]


def said(data: ProbeData, predict: bool = False) -> str:
    """The headline of heads."""
    result = make("probe")[1]
    records = result.setup.records
    model = structs.replace(records["model"], max_positions=512)
    settings = structs.replace(result.setup.settings, predict=predict)
    setup = Setup(settings, records | {"model": model})
    return headline(replace(result, data=data.dataset, setup=setup))


def test_rates_have_three_classes():
    data = quiet(3)
    for name in ("exponent", "predicted_exponent"):
        ends = [(0.48, 0.52), (0.3, 0.4), (-0.4, 1.3)]
        data.dataset[name].loc[{"metric": "mean", "bound": ["low", "high"]}] = [ends]
    words_ = "falls like 1/sqrt(n) in 1 head, more slowly in 1, undecided in 1"
    assert said(data).endswith(f"{words_} (measured).")
    assert said(data, predict=True).endswith(f"{words_} (predicted).")


def test_the_answer_says_what_is_extrapolated_and_which_heads_are_far_off():
    data = quiet(3)
    data.one_pass.keys = np.full((1, 3), 1000.0)
    data.one_pass.at_context = [[(0.02, 0.01, 0.04), (0.04, 0.03, 0.08), (0.9, 0.6, 1.8)]]
    place = {"within": 0.1, "bound": "value"}
    data.dataset["tokens"].loc[place] = [[123.4, 456.0, 4321.0]]
    assert said(data).startswith(
        "For 10% output error a typical head needs 460 tokens, the neediest (0.2) ~4,300 tokens "
        "(extrapolated). At 512 tokens, the model's own context length, 1 head is more than 50% "
        "off: keep all tokens there. "
    )
    few = ProbeData(data.dataset.isel(head=slice(2)))
    assert "off" not in said(few)
    data.dataset["tokens"].loc[place] = np.nan
    assert "a typical head needs more tokens than can be predicted" in said(data)


def test_what_is_left_out_is_part_of_the_stated_errors():
    sizes = np.array([64.0, 128.0, 256.0])
    squares = 1 / sizes
    curve = Predicted(
        sizes=sizes, square=squares, covariance=np.diag((0.01 * squares) ** 2), shape=np.ones(3)
    )
    (error, noise, (slope, slope_noise)), (other, wide, (same, wider)) = (
        predicted_error(curve, left_out) for left_out in (0.0, 0.03)
    )
    np.testing.assert_array_equal(error, other)
    assert slope == same == pytest.approx(0.5)
    # an error of 3% at each of the sizes, and the slope through three such points
    np.testing.assert_allclose(np.sqrt(wide**2 - noise**2), 0.03 * curve.norm)
    added = np.sqrt(wider**2 - slope_noise**2)
    assert added == pytest.approx(0.03 / (np.sqrt(2) * np.log(2)))
