"""A real decoder understands the questions; tasks say little about one that does not."""

from __future__ import annotations

import pytest

from esscher.engine.text.tasks.asking import ask, read_context
from esscher.engine.text.tasks.items import task_items
from tests.engine.models.demo import demo_model


@pytest.mark.slow
@pytest.mark.parametrize(("task", "least"), [("needle", 3), ("quote", 3), ("variables", 1.5)])
def test_smollm2_answers(task, least):
    loaded = demo_model("demo:smollm2")
    items = task_items(loaded, task, 3, 512)
    assert sum(ask(loaded, read_context(loaded, item), item).score for item in items) >= least
