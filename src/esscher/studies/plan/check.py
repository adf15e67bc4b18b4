"""Does a plan earn its place? Dense, uniform, planned and published selections on unseen text.

The dense prefix of a decoder's passage is read once; only the tokens after it are read again, with
a cache that holds what a configuration keeps (see ``configurations.py``).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from esscher.core.validation import Array
from esscher.engine.cache.selection import reduced_attention
from esscher.engine.models import LayerInputs
from esscher.engine.reading import Pass, compare_laws, surprise
from esscher.runs.folder import Cell
from esscher.studies.plan.calibrate import ObservedPassage
from esscher.studies.plan.configurations import (
    Chosen,
    count_kept,
    kept_layers,
)
from esscher.studies.plan.records import END, CacheBytes, PlanCell

#: Of the samples of a check; see :func:`~esscher.studies.plan.configurations.starts`.
PURPOSE = "plan check"


class PassageCheck:
    """One held-out passage: its dense pass, and what every configuration makes of it.

    Parameters
    ----------
    observed
        The passage.
    chosen
        What is compared.
    seed
        Seed of the samples.
    """

    def __init__(self, observed: ObservedPassage, chosen: Chosen, seed: int) -> None:
        self.observed = observed
        self.dense = observed.reader.read(lambda inputs: None)
        named = (PURPOSE, observed.reader.passage.number)
        self._kept = kept_layers(observed.prompt, chosen, named, seed)

    def cell(self) -> Cell:
        """Measure all configurations; the table has (configuration, layer, measure, value)."""
        rows: list[tuple[str, int, str, float]] = []
        reader, taken = self.observed.reader, None
        for name, own in self._kept.items():
            cache = self.observed.prompt.reduced(own)
            if name == "planned":
                taken = CacheBytes(planned=cache.nbytes, dense=cache.dense_nbytes)
            found = reader.read(lambda inputs: None, cache)
            rows += [(name, layer, "error", e) for layer, e in enumerate(self._errors(found))]
            ends = compare_laws(self.dense.end, found.end, reader.next_tokens)
            rows += [(name, END, measure, float(value)) for measure, value in ends.items()]
        for layer, errors in enumerate(self.head_errors()):
            rows += [(f"head {h}", layer, "realised", float(e)) for h, e in enumerate(errors)]
        table = pd.DataFrame(rows, columns=["configuration", "layer", "measure", "value"])
        about = PlanCell(
            passage=reader.passage.number,
            dense_nll=surprise(self.dense.end, reader.next_tokens),
            cache=taken,
            kept={name: count_kept(own) for name, own in self._kept.items()},
        )
        return Cell(about, table)

    def head_errors(self) -> Array:
        """Relative error of each head's output when only it is reduced, [layers, heads].

        It is 0 where nothing is reduced: in layers with a sliding window, and where all keys are
        kept.
        """
        found: list[Array] = []

        def look(inputs: LayerInputs) -> None:
            if inputs.window is not None:
                found.append(np.zeros(inputs.q.shape[1]))
                return
            own = inputs.own()[0].to(torch.float32)
            kept = self._kept["planned"][inputs.layer]
            apart = reduced_attention(inputs, kept, self.observed.keys) - own
            # with all keys the difference is rounding, not an error
            whole = torch.tensor([len(one.index) == self.observed.keys for one in kept])
            apart[whole.repeat_interleave(inputs.group)] = 0.0
            square = apart.square().sum(-1).mean(-1)
            norm = own.square().sum(-1).mean(-1)
            found.append((square / norm).sqrt().double().numpy())

        self.observed.reader.read(look)
        return np.stack(found)

    def _errors(self, found: Pass) -> list[float]:
        """Relative error of every layer's attention output."""
        rows = self.observed.reader.asking
        out = []
        for dense, other in zip(self.dense.attention, found.attention, strict=True):
            difference = torch.linalg.vector_norm((other - dense)[:, rows].double())
            out.append(float(difference / torch.linalg.vector_norm(dense[:, rows].double())))
        return out
