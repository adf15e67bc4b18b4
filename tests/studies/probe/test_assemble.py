"""What the headline of a probe says."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from esscher.studies.probe.assemble import headline
from tests.studies.probe.made import made_head


@pytest.mark.parametrize(
    ("near", "start"),
    [
        (0, "The mean outputs of 0 of 2 heads converge like 1/sqrt(n); of the other 2, flags"),
        (1, "The mean output of 1 of 2 heads converges like 1/sqrt(n); of the other 1, flags"),
        (2, "The mean outputs of 2 of 2 heads converge like 1/sqrt(n). A typical head"),
    ],
)
def test_heads_are_counted_in_grammar(near, start):
    heads = []
    for i in range(2):
        beta, head = 0.5 if i < near else 0.2, made_head(i)
        mean = replace(head.fit.mean, exponent=beta, interval=(beta - 0.01, beta + 0.01))
        heads.append(replace(head, fit=replace(head.fit, mean=mean)))
    assert headline(heads).startswith(start)
