"""Does a plan earn its place? Dense, uniform, planned and published selections on unseen text.

The dense prefix of a decoder's passage is read once; only the tokens after it are read again, with
a cache that holds what a configuration keeps (see ``configurations.py``). An encoder keeps part of
its tokens in every call; it is compared with uniform budgets and with ``heavy``: equal budgets for
the tokens that receive most attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from esscher.core.validation import Array
from esscher.engine.cache.observation import observe
from esscher.engine.cache.selection import Kept, reduced_attention, select_largest
from esscher.engine.models import LayerInputs
from esscher.engine.reading import Pass, compare_laws, surprise
from esscher.runs.cells import Cell
from esscher.studies.plan.calibrate import ObservedPassage
from esscher.studies.plan.configurations import (
    Budgets,
    Chosen,
    KeptLayers,
    Named,
    count_kept,
    kept_layers,
    starts,
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
    seed, draws
        Seed and number of the samples; measures are means over them.
    """

    def __init__(
        self, observed: ObservedPassage, chosen: Chosen, seed: int, draws: int = 1
    ) -> None:
        self.observed, self.chosen, self._seed, self._draws = observed, chosen, seed, draws
        self.dense = observed.reader.read(lambda inputs: None)
        self._kept: dict[str, KeptLayers] = {}
        if observed.prompt is not None:
            self._kept = kept_layers(observed.prompt, chosen, self._named, seed)

    def cell(self) -> Cell:
        """Measure all configurations; the table has (configuration, layer, measure, value)."""
        rows: list[tuple[str, int, str, float]] = []
        number = self.observed.reader.passage.number
        about = PlanCell(passage=number)
        found, about = self._decoder(about) if self.observed.loaded.causal else self._encoder(about)
        for name, passes in found.items():
            errors = np.mean([self._errors(one) for one in passes], axis=0)
            rows += [(name, layer, "error", float(e)) for layer, e in enumerate(errors)]
            measures = [self._end(one) for one in passes]
            for measure in measures[0]:
                value = float(np.mean([one[measure] for one in measures]))
                rows.append((name, END, measure, value))
        for layer, errors in enumerate(self.head_errors()):
            rows += [(f"head {h}", layer, "realised", float(e)) for h, e in enumerate(errors)]
        table = pd.DataFrame(rows, columns=["configuration", "layer", "measure", "value"])
        return Cell(about, table)

    def _decoder(self, about: PlanCell) -> tuple[dict[str, list[Pass]], PlanCell]:
        """Read the queries with the caches of all configurations."""
        prompt = self.observed.prompt
        assert prompt is not None
        found: dict[str, list[Pass]] = {}
        taken = None
        for name, own in self._kept.items():
            cache = prompt.reduced(own)
            if name == "planned":
                taken = CacheBytes(planned=cache.nbytes, dense=cache.dense_nbytes)
            found[name] = [self.observed.reader.read(lambda inputs: None, cache)]
        return found, PlanCell(
            passage=about.passage,
            dense_nll=surprise(self.dense.end, self.observed.reader.next_tokens),
            cache=taken,
            kept={name: count_kept(own) for name, own in self._kept.items()},
        )

    def _encoder(self, about: PlanCell) -> tuple[dict[str, list[Pass]], PlanCell]:
        """Read the passage with what all configurations keep in every call."""
        draws = range(self._draws)
        found = {
            "planned": [self._reduced_pass(self.chosen.planned, draw) for draw in draws],
            "uniform": [self._reduced_pass(self.chosen.uniform, draw) for draw in draws],
            "heavy": [self._reduced_pass(None, 0)],
        }
        ends = {"dense": [self.dense.end]} | {
            name: [one.end for one in passes] for name, passes in found.items()
        }
        return found, PlanCell(
            passage=about.passage,
            embeddings={
                name: tuple(tuple(end.tolist()) for end in own) for name, own in ends.items()
            },
        )

    def _reduced_pass(self, budgets: Budgets | None, draw: int) -> Pass:
        """Read an encoder's passage with a sample, or without budgets with heavy hitters."""
        observed = self.observed

        def replacement(inputs: LayerInputs) -> Tensor:
            seen = observe(inputs)
            if budgets is None:
                each, scores = self.chosen.uniform, seen.heavy_score(inputs.k.shape[1])
                kept = [
                    select_largest(own, observed.certain, int(each.tokens[inputs.layer, g]))
                    for g, own in enumerate(scores)
                ]
            else:
                kept = self._sample(inputs.layer, seen.score(inputs.v[0]), budgets, draw)
            return reduced_attention(inputs, kept, observed.keys)[None]

        return observed.reader.read(replacement)

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
            square = torch.zeros(len(own))
            for draw in range(self._draws):
                kept = self._planned(inputs, draw)
                apart = reduced_attention(inputs, kept, self.observed.keys) - own
                # with all keys the difference is rounding, not an error
                whole = torch.tensor([len(one.index) == self.observed.keys for one in kept])
                apart[whole.repeat_interleave(inputs.group)] = 0.0
                square += apart.square().sum(-1).mean(-1) / self._draws
            norm = own.square().sum(-1).mean(-1)
            found.append((square / norm).sqrt().double().numpy())

        self.observed.reader.read(look)
        return np.stack(found)

    @property
    def _named(self) -> Named:
        return (PURPOSE, self.observed.reader.passage.number)

    def _planned(self, inputs: LayerInputs, draw: int) -> Sequence[Kept]:
        """What a layer keeps under the plan: a decoder's prompt has one sample."""
        if self._kept:
            return self._kept["planned"][inputs.layer]
        scores = self.observed.scores(inputs)
        return self._sample(inputs.layer, scores, self.chosen.planned, draw)

    def _sample(self, layer: int, scores: Tensor, budgets: Budgets, draw: int) -> list[Kept]:
        """One of the samples of an encoder's layer."""
        drawn = [
            starts(self._named, self._seed, layer, g, self._draws)[draw] for g in range(len(scores))
        ]
        return budgets.select_layer(layer, scores, self.observed.certain, drawn, None)

    def _errors(self, found: Pass) -> list[float]:
        """Relative error of every layer's attention output."""
        rows = self.observed.reader.asking
        out = []
        for dense, other in zip(self.dense.attention, found.attention, strict=True):
            difference = torch.linalg.vector_norm((other - dense)[:, rows].double())
            out.append(float(difference / torch.linalg.vector_norm(dense[:, rows].double())))
        return out

    def _end(self, found: Pass) -> Mapping[str, float]:
        if self.observed.loaded.causal:
            return compare_laws(self.dense.end, found.end, self.observed.reader.next_tokens)
        return {"cosine": float(torch.cosine_similarity(found.end, self.dense.end, dim=0))}
