"""Measurements: known constants, exact expectations, rows of a probe, simultaneous bands."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from scipy import stats

from esscher import fit_rate
from esscher.core.streams import random_stream
from esscher.math.laws import Cube, Sphere
from esscher.studies.paper import heads, models, study
from esscher.studies.paper.claims import growth_law
from esscher.studies.paper.models import causal_errors, controlled_means, extrapolate
from esscher.studies.paper.study import Growth, PaperStudy
from esscher.studies.paper.synthetic import SUPPORT_LAWS, set_growth, simultaneous_band, support_law
from esscher.studies.probe import probe
from tests.engine.models.folders import random_words, save

SIZES = np.array([100, 200, 400, 800])
SMALL = {"tokens": 300, "sizes": [16, 32, 64, 128], "replicates": 8}


# -- synthetic tokens


def draws(count: int, seed: int = 0) -> np.ndarray:
    rng = random_stream(seed, "draws")
    return np.column_stack([rng.standard_normal((count, 3)), rng.random(count)])


@pytest.mark.parametrize("law", SUPPORT_LAWS)
@pytest.mark.parametrize("radius", [0.5, 2.0, 8.0])
def test_limits_of_bounded_tokens(law: str, radius: float) -> None:
    """Tokens stay inside; outputs are tilted means; their variance is that of many outputs."""
    tokens, limit, variance = support_law(law, radius, draws(200_000))
    assert np.linalg.norm(tokens, axis=1).max() <= radius * (1 + 1e-9)
    squares = (limit**2).mean(axis=1)
    assert abs(squares.mean() - variance) < 4 * squares.std() / len(squares) ** 0.5 + 1e-12
    if law == "sphere":
        exact = Sphere(3, radius).tilted_mean(tokens[:50] / 3**0.5)
    elif law == "cube":
        exact = Cube(3, radius / 3**0.5).tilted_mean(tokens[:50] / 3**0.5)
    else:  # by importance sampling of the same tokens, where that is accurate
        if radius > 2:
            return
        weights = np.exp(tokens[:50] @ tokens.T / 3**0.5)
        exact = weights @ tokens / weights.sum(axis=1, keepdims=True)
        assert np.abs(limit[:50] - exact).max() < 0.02 * radius
        return
    np.testing.assert_allclose(limit[:50], exact, atol=1e-6 * radius)


def test_a_wide_truncated_gaussian_is_gaussian() -> None:
    """The limit of Gaussian tokens is Sigma t."""
    tokens, limit, variance = support_law("truncated Gaussian", 12.0, draws(1000))
    np.testing.assert_allclose(limit, tokens / 3**0.5, atol=1e-3)
    assert variance == pytest.approx(1 / 3, rel=1e-3)


def test_growth_tells_powers_from_exponentials() -> None:
    radii = np.geomspace(0.5, 8, 7)
    noise = np.exp(0.1 * np.random.default_rng(0).standard_normal((40, 7)))

    def growth(constants: np.ndarray) -> Growth:
        data = Growth.new(radius=radii)
        set_growth(data, radii, constants, 1.0, 0)
        return data

    power = growth(radii**1.5 * noise)
    assert growth_law(power) == "power"
    assert power.power[1] < 1.5 < power.power[2]
    exponential = growth(np.exp(0.7 * radii) * noise)
    assert growth_law(exponential) == "exponential"
    assert float(exponential.rate) == pytest.approx(0.7, abs=0.05)
    assert growth_law(growth(1.0 + 0 * radii + 0.5 * noise)) == "undecided"


def test_bands_hold_all_horizons_at_once() -> None:
    """Exponents that share half of their noise: the band holds all seven, one interval does not."""
    held, alone, studies = 0, 0, 200
    x = np.log(SIZES) - np.log(SIZES).mean()
    for number in range(studies):
        rng = random_stream(number, "bands")
        noise = rng.standard_normal((1, 24, 4)) + rng.standard_normal((7, 24, 4))
        errors = SIZES**-0.5 * np.exp(0.1 * noise)
        slopes = -(np.log(errors.mean(axis=1)) @ x) / (x @ x)
        rates = [SimpleNamespace(exponent=b, sizes=SIZES, weights=[0.25] * 4) for b in slopes]
        _, low, high = simultaneous_band(errors, SIZES, rates, number).T
        held += bool(np.all((low <= 0.5) & (high >= 0.5)))
        half = stats.t.ppf(0.975, 23) * 0.1 * 2**0.5 / (24 * (x @ x)) ** 0.5
        alone += bool(np.all(np.abs(slopes - 0.5) <= half))
    low, high = stats.binom.ppf([0.001, 0.999], studies, 0.95)
    assert low <= held <= high
    assert alone < low


def test_the_band_is_as_wide_as_the_intervals_of_the_fits_say() -> None:
    rng = random_stream(0, "joint")
    errors = SIZES ** -np.array([[[0.5]], [[0.3]]]) * np.exp(0.2 * rng.standard_normal((2, 16, 4)))
    rates = [fit_rate(replicates, SIZES) for replicates in errors]
    for (_, low, high), rate in zip(simultaneous_band(errors, SIZES, rates, 0), rates, strict=True):
        # two scales at once: wider than one interval, narrower than twice as wide
        assert 0.9 < (high - low) / (rate.interval[1] - rate.interval[0]) < 1.6
    assert np.isnan(simultaneous_band(errors[:, :1], SIZES, rates, 0)[:, 1:]).all()


# -- heads of an encoder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, settings):
    """Settings with a tiny encoder and a text, in files."""
    folder = tmp_path_factory.mktemp("encoder")
    save(folder / "bert")
    (folder / "text.txt").write_text(random_words(1000))
    files = {"encoder": str(folder / "bert"), "text": str(folder / "text.txt")}
    return msgspec.structs.replace(settings, seed=3, **files)


def test_heads_are_those_of_a_probe(tiny):
    result = probe(tiny.encoder, tiny.text, layers=[0], heads=[0, 1], seed=3, **SMALL)
    data = heads.measure_heads({"part": 0} | SMALL, tiny)
    first = data.dataset.isel(layer=0, head=slice(2))
    other = result.data.isel(layer=0).sel(metric=list(heads.METRICS))
    for name in ("psi", "psi_one_sided"):
        np.testing.assert_allclose(first[name], other[name])
    exponents = other["exponent"].transpose(*first["exponent"].dims)
    np.testing.assert_allclose(first["exponent"], exponents)
    _, low, high = np.moveaxis(data.fits.exponent.values, -1, 0)
    _, joint_low, joint_high = np.moveaxis(data.fits.joint.values, -1, 0)
    assert (joint_low <= low).all()
    assert (joint_high >= high).all()


def test_parts_have_every_layer_once(tiny):
    layers = [heads._layers(tiny, part) for part in range(heads.PARTS)]
    count = heads.loaded_model(tiny.encoder).shape.layers
    assert sorted(layer for part in layers for layer in part) == list(range(count))
    none = heads.measure_heads({"part": heads.PARTS - 1} | SMALL, tiny)
    assert none.dataset.sizes["layer"] == 0


def test_units_do_not_depend_on_what_ran_before(tiny):
    first = heads.measure_alpha({"alpha": 0.5} | SMALL, tiny)
    other = heads.measure_alpha({"alpha": 2.0} | SMALL, tiny)
    assert (
        other.fits.exponent.sel(bound="value").mean()
        < first.fits.exponent.sel(bound="value").mean()
    )
    heads._cloud.cache_clear()
    assert heads.measure_alpha({"alpha": 0.5} | SMALL, tiny).dataset.identical(first.dataset)


def normal_cloud(count=200, seed=0):
    x = np.random.default_rng(seed).standard_normal((count, 3)).astype(np.float32)
    return 2 * x, x, x + 1


def test_an_encoder_that_reads_long_passages_is_measured_as_bigbird_was(
    tiny, tmp_path, monkeypatch
):
    save(tmp_path / "bird", "big_bird")
    monkeypatch.setattr(study, "LONG_CONTEXT", 64)
    options = PaperStudy(("heads",), model=str(tmp_path / "bird"), text=tiny.text)
    assert not options.known().long  # at the authors' scale only
    bird = replace(options, scale="paper").known()
    assert bird.long
    assert heads.MEASUREMENTS["heads"].units(bird)[0]["sizes"][0] == 1_000


def test_argmax_has_its_exact_expectation(monkeypatch):
    monkeypatch.setattr(heads, "QUERIES", 37)  # the last block is shorter
    q, k, v = normal_cloud()
    sizes, replicates = (4, 16, 48), 600
    shift, square = heads.argmax_errors(q, k, v, sizes, replicates, random_stream(0, "test"))
    order = np.argsort(-(q @ k.T), axis=1)
    gap = (v[order] - v[order[:, :1]]).astype(float)
    left = 1 - np.arange(len(k) + 1) / len(k)
    for j, n in enumerate(sizes):
        chance = left[:-1] ** n - left[1:] ** n
        for measured, expected in (
            (shift[:, j], np.einsum("r,qrd->d", chance, gap) / len(q)),
            (square[:, j, None], np.einsum("r,qrd->", chance, gap**2)[None] / len(q)),
        ):
            noise = measured.std(axis=0, ddof=1) / np.sqrt(replicates)
            assert np.abs((measured.mean(axis=0) - expected) / noise).max() < 3.5


def test_argmax_sizes_go_up_to_a_quarter_of_the_tokens(tiny):
    data = heads.measure_argmax({"part": 0, "tokens": 300, "first": 4, "replicates": 8}, tiny)
    assert data.dataset["size"].values.tolist() == [4, 8, 16, 32, 64]
    assert (data.error.sel(bound="low") <= data.error.sel(bound="value")).all()


def test_errors_of_zero_have_no_exponent():
    data = heads.HeadErrors.new(layer=[0], head=[0], metric=["mean"])
    heads.set_exponents(data.fits, np.zeros((1, 1, 1, 4, 3)), (8, 16, 32), 0)
    assert data.fits.exponent.isnull().all()
    assert data.fits.law.item() == "none"


# -- the causal mask


def causal_cloud(seed=0, size=80, dim=3, horizon=0.6):
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.standard_normal((size, dim)), dtype=torch.float32)
    return horizon * x, x, torch.tanh(x)


def by_hand(q, k, v, drawn):
    """Outputs with and without mask from the whole matrix of weights, and the limit."""
    limit = torch.softmax(q.double() @ k.double().T, dim=-1) @ v.double()
    logits = q[drawn].double() @ k[drawn].double().T
    masked = logits.masked_fill(~torch.ones_like(logits, dtype=torch.bool).tril(), -torch.inf)
    outputs = [torch.softmax(part, dim=-1) @ v[drawn].double() for part in (masked, logits)]
    return *outputs, limit


def test_errors_are_those_of_the_whole_masked_matrix(monkeypatch):
    monkeypatch.setattr(models, "BLOCK", 16)  # sizes end within blocks and at their ends
    q, k, v = causal_cloud()
    sizes, replicates = (8, 24, 50, 300), 2
    data = causal_errors(q, k, v, sizes, replicates, seed=5, head=3)
    for replicate in range(replicates):
        stream = random_stream(5, "causal", 3, replicate)
        whole = torch.from_numpy(stream.integers(len(q), size=300))
        for n in sizes:
            drawn, at = whole[:n], {"item": 3, "replicate": replicate, "size": n}
            *outputs, limit = by_hand(q, k, v, drawn)
            errors = [
                float((part.mean(dim=0) - limit.mean(dim=0)).square().sum()) for part in outputs
            ]
            measured = data.error.sel(at)
            np.testing.assert_allclose(measured[:2], errors, rtol=1e-3, atol=1e-9)
            gaps = [(part - limit[drawn]).square().sum(dim=1) for part in outputs]
            outputs = [float(gaps[1].mean()), float(gaps[0][n // 2 :].mean())]
            np.testing.assert_allclose(measured[4:], outputs, rtol=1e-4)


def test_first_order_of_uniform_attention_is_exact():
    # without tilts outputs are means of values: the first order is all there is
    q, k, v = causal_cloud(horizon=0.0)
    data = causal_errors(q, k, v, (16, 64), 3, seed=0)
    np.testing.assert_allclose(data.error[:, :2], data.error[:, 2:4], rtol=1e-3)
    variance = float((v - v.mean(dim=0)).square().sum(dim=1).mean())
    for n in (16, 64):
        harmonic = np.sum(1 / np.arange(1, n + 1))
        exact = [(2 - harmonic / n) * variance / n, variance / n]
        np.testing.assert_allclose(data.expected.sel(item=0, size=n)[2:4], exact, rtol=1e-4)


def test_first_order_parts_have_the_expectation_that_is_stated():
    data = causal_errors(*causal_cloud(seed=1), (32,), 2000, seed=0)
    first = data.error.values[0, 2:4, :, 0]
    error = first.std(axis=1, ddof=1) / np.sqrt(first.shape[1])
    gap = first.mean(axis=1) - data.expected.values[0, 2:4, 0]
    assert (np.abs(gap) < 4 * error).all()


def test_a_control_removes_the_noise_that_it_explains():
    rng = np.random.default_rng(0)
    control = rng.exponential(size=(4, 50, 2))
    expected = np.ones((4, 2))
    np.testing.assert_allclose(controlled_means(3 * control, control, expected), 3.0)


# -- accuracy


@pytest.mark.parametrize("exponent", [0.3, 1.0])
def test_a_power_law_is_extrapolated(exponent):
    rng = np.random.default_rng(2)
    sizes = np.array([16, 64, 128, 256, 512, 2048])
    rates = 2 * sizes**-exponent
    losses = rng.binomial(50, np.minimum(rates, 1.0), size=(40, 6)) / 50
    fitted = (sizes >= 64) & (sizes <= 512)
    (_, low, high), _, predicted = extrapolate(losses, sizes, fitted, 0.5 / 2000, seed=0)
    assert low < exponent < high
    by_rule = dict(zip(models.RULES, predicted, strict=True))
    assert by_rule["fitted"][1] < 1 < by_rule["fitted"][2]
    assert by_rule["no change"][1] > 1
