"""Any executor of ``concurrent.futures`` computes cells, with sweeps as an example."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import esscher
from esscher.studies.sweep import sweep
from tests.studies.sweep.small import assert_same

SIZES = [10, 40, 130]


class Backwards(ThreadPoolExecutor):
    """Runs everything, and hands results over in the opposite order."""

    def __init__(self) -> None:
        super().__init__(1)
        self.held: list[tuple[object, ...]] = []

    def submit(self, function, /, *arguments, **named):  # type: ignore[no-untyped-def]
        future: Future[object] = Future()
        self.held.append((future, function, arguments))
        if len(self.held) == 5:
            threading.Thread(target=self.finish).start()
        return future

    def finish(self) -> None:
        for future, function, arguments in reversed(self.held):
            future.set_result(function(*arguments))  # type: ignore[operator, attr-defined]


def test_any_executor_and_any_order() -> None:
    head = esscher.gaussian_head(1.1, 2)
    alone = sweep(head, SIZES, 5, 1)
    backwards = Backwards()
    assert_same(alone, sweep(head, SIZES, 5, 1, executor=backwards))
    assert len(backwards.held) == 5
    with ThreadPoolExecutor(3) as threads:
        assert_same(alone, sweep(head, SIZES, 5, 1, executor=threads))
        assert threads.submit(int, "7").result() == 7  # it was not shut down
