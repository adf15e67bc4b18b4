"""Context lengths: heads whose weights are known functions of distance."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from esscher.cli.main import main
from esscher.errors import InputError
from esscher.models import wrap_model
from esscher.planning import context_lengths
from esscher.planning.saturation import SINKS, doublings, layer_changes, saturation
from tests.models.folders import WORDS, decoder_tokenizer, encoder_tokenizer
from tests.models.tiny import tiny_model
from tests.planning.inputs import layer_inputs


def test_lengths_double_and_end_at_the_longest() -> None:
    assert doublings(1024).tolist() == [32, 64, 128, 256, 512, 1024]
    assert doublings(100, 25).tolist() == [25, 50, 100]


def test_changes_are_those_of_truncated_attention() -> None:
    inputs = layer_inputs(heads=2, key_heads=1, queries=48, keys=48, offset=0)
    lengths = np.array([8, 16, 32])
    changes, norms = layer_changes(inputs, 5, lengths)
    for h in range(2):
        outputs = []
        for length in lengths:
            rows = []
            for i in range(43, 48):
                keys = sorted({*range(SINKS), *range(i - length + 1, i + 1)})
                logits = inputs.q[0, h, i].double() @ inputs.k[0, 0, keys].double().T
                weights = torch.softmax(logits * inputs.scaling, dim=-1)
                rows.append(weights @ inputs.v[0, 0, keys].double())
            outputs.append(torch.stack(rows))
        stacked = torch.stack(outputs)
        expected = (stacked[1:] - stacked[:-1]).square().sum(-1).mean(-1)
        np.testing.assert_allclose(changes[h], expected, rtol=1e-4)
        assert norms[h] == pytest.approx(float(stacked[-1].square().sum(-1).mean()), rel=1e-4)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("tolerance", [0.3, 0.01])
def test_a_power_law_is_solved_exactly(exponent: float, tolerance: float) -> None:
    lengths = doublings(4096)
    changes = 0.5 * (lengths[:-1] / 32.0) ** -exponent
    found = saturation(changes[None] ** 2, np.ones(1), lengths, tolerance, 0)
    assert found.exponent == pytest.approx(exponent)
    # rest(L) = c(L)/(1 - 2^-b), a straight line in logarithms
    exact = 32 * (0.5 / (1 - 2**-exponent) / tolerance) ** (1 / exponent)
    assert found.length == pytest.approx(max(exact, 32.0), rel=1e-6)
    assert found.extrapolated == (exact > 4096)


def test_changes_that_do_not_fall_have_no_length() -> None:
    lengths = doublings(1024)
    found = saturation(np.full((3, 5), 0.04), np.ones(3), lengths, 0.1, 0)
    assert found.length == np.inf
    assert found.to_dict()["length"] is None


def test_the_interval_holds_the_truth() -> None:
    """Passages scatter around a law; the interval of the length covers it as often as it says."""
    lengths = doublings(2048)
    law = 0.4 * (lengths[:-1] / 32.0) ** -1.0
    truth = saturation(law[None] ** 2, np.ones(1), lengths, 0.1, 0).length
    rng = np.random.default_rng(0)
    held = 0
    for seed in range(100):
        scatter = rng.gamma(8.0, 1 / 8.0, size=(12, len(law)))
        found = saturation(law**2 * scatter, np.ones(12), lengths, 0.1, seed)
        held += found.interval[0] <= truth <= found.interval[1]
    # percentile intervals of 12 passages are a little short: 95% nominal, binomial error 2.2%
    assert held >= 85


def test_a_tiny_decoder_from_the_command_line(tmp_path: Path) -> None:
    loaded = tiny_model("llama", max_position_embeddings=256)
    loaded.model.save_pretrained(tmp_path / "model")
    decoder_tokenizer().save_pretrained(tmp_path / "model")
    rng = np.random.default_rng(0)
    (tmp_path / "text.txt").write_text(" ".join(rng.choice(WORDS, size=900)))
    asked = ["plan", str(tmp_path / "model"), "--text", str(tmp_path / "text.txt"), "--context"]
    asked += ["--prefix", "128", "--passages", "3", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    assert "heads are within 10%" in result.output
    found = json.loads(CliRunner().invoke(main, [*asked, "--json"]).stdout)
    assert found["lengths"] == [32, 64, 128]
    assert len(found["heads"]) == 12
    assert {"length", "interval", "extrapolated", "change"} <= set(found["heads"][0])
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "run")])
    assert found["headline"] in shown.output
    for wrong, said in (
        (["--budget", "0.5"], "--budget is for plans"),
        (["--prefix", "250"], "longest possible context is 193"),
        (["--tolerance", "2"], "tolerance is 2"),
        (["--prefix", "9"], "at least 16"),
    ):
        refused = CliRunner().invoke(main, [*asked[:-2], *wrong])
        assert refused.exit_code == 2
        assert said in refused.output.replace("\n", " ")


def test_encoders_are_refused() -> None:
    loaded = tiny_model("bert")
    with pytest.raises(InputError, match="is an encoder"):
        context_lengths(wrap_model(loaded.model, encoder_tokenizer(), name="bert"), ["a text"])
