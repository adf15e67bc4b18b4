"""The guides' code does what the guides say."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT, blocks


def test_the_family_of_the_guide_reads_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's ELECTRA family on a small random model: attention is recomputed exactly."""
    import torch

    from esscher.engine.models import capturing, families
    from tests.engine.models import tiny

    text = (ROOT / "docs/guides/add-a-model-family.md").read_text(encoding="utf-8")
    family, configuration = (b.text for b in blocks(text) if b.language == "python")
    space: dict[str, object] = {}
    exec(compile(family, "add-a-model-family.md", "exec"), space)
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, space["Electra"]()))
    entry = eval(f"{{{configuration}}}", {"ENCODER": tiny.ENCODER})
    monkeypatch.setitem(tiny.MODELS, "electra", entry["electra"])

    loaded = tiny.tiny_model("electra")
    assert loaded.family.name == "ELECTRA"
    seen: list[object] = []
    with capturing(loaded, seen.append):
        tiny.final_output(loaded, tiny.tiny_batch(loaded))
    assert len(seen) == loaded.shape.layers
    for capture in seen:
        own = capture.output.double()  # type: ignore[attr-defined]
        error = (capture.attend(torch.float64) - own).abs().max()  # type: ignore[attr-defined]
        assert error < 2e-6 * own.abs().max()
