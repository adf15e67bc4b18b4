"""Errors of a model whose keys are subsampled, on one passage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from esscher.engine.models import LayerInputs
from esscher.engine.reading import Pass, compare_laws, surprise
from esscher.runs.folder import Cell
from esscher.studies.deep.records import DeepCell
from esscher.studies.deep.sampling import KeyDraws, SampledPassage, sampled_attention

#: Numbers of a layer. ``residual``, ``typical``: relative error of the tokens behind its block,
#: root mean square and median over tokens. ``common``: share of their error that is the same for
#: all, norm of the mean error over root mean square. ``attention``: relative error of the attention
#: output; ``fresh``: the part of it that the layer's own sample made.
LAYER_METRICS = ("residual", "typical", "common", "attention", "fresh")
#: What is measured at the end of a model.
DECODER_END, ENCODER_END = ("kl", "top1", "nll"), ("cosine",)
#: Stands for the end of the model where the tables have the number of a layer.
END = -1
COLUMNS = ["variant", "draw", "n", "layer", "quantity", "value"]


class PassageMeasurement:
    """A passage, its dense pass, and the errors of sampled ones."""

    def __init__(self, reader: SampledPassage) -> None:
        self.reader = reader
        self.dense = reader.read(lambda inputs: None)
        rows = reader.asking
        self._lengths = [_lengths(state[rows]) for state in self.dense.residual]
        self._sizes = [_norm(output[:, rows]) for output in self.dense.attention]

    def cell(
        self,
        variants: Mapping[str, tuple[str, Mapping[int, Collection[int]] | None]],
        sizes: Sequence[int],
        draws: int,
        seed: int,
    ) -> Cell:
        """Measure some variants at every size.

        Parameters
        ----------
        variants
            By name: how its keys are drawn, and the heads by layer that see the sample only (None
            for all heads of all layers).
        sizes
            Numbers n of keys.
        draws
            Samples per size.
        seed
            Seed of the samples.
        """
        rows: list[tuple[Any, ...]] = []
        for variant, (way, heads) in variants.items():
            for draw in range(draws):
                number = self.reader.passage.number
                keys = KeyDraws(self.reader.certain, seed, number, way, draw)
                for n in sizes:
                    found = self._errors(keys, n, heads)
                    rows += [(variant, draw, n, *entry) for entry in found]
        return Cell(self._about(), pd.DataFrame(rows, columns=COLUMNS))

    def _errors(
        self, keys: KeyDraws, n: int, heads: Mapping[int, Collection[int]] | None
    ) -> list[tuple[int, str, float]]:
        """(layer, quantity, value) of one sampled pass."""
        fresh: list[float] = []
        rows = self.reader.asking

        def replacement(inputs: LayerInputs) -> Tensor | None:
            chosen = None if heads is None else heads.get(inputs.layer, ())
            if chosen is not None and not chosen:
                fresh.append(0.0)
                return None
            output = sampled_attention(inputs, keys.sample(inputs.layer, n), chosen)
            fresh.append(_norm((output - inputs.own())[0].cpu()[:, rows]))
            return output

        found = self.reader.read(replacement)
        out: list[tuple[int, str, float]] = []
        for i in range(len(found.residual)):
            moved = (found.residual[i] - self.dense.residual[i])[rows].double()
            # token by token: a few tokens of huge norm must not stand for all
            relative = _lengths(moved) / self._lengths[i]
            whole = float(moved.square().sum(dim=-1).mean().sqrt())
            off = _norm((found.attention[i] - self.dense.attention[i])[:, rows])
            values = (
                float(relative.square().mean().sqrt()),
                float(relative.median()),
                _norm(moved.mean(dim=0)) / whole if whole > 0 else 0.0,
                off / self._sizes[i],
                fresh[i] / self._sizes[i],
            )
            out += [(i, name, value) for name, value in zip(LAYER_METRICS, values, strict=True)]
        return out + [(END, name, value) for name, value in self._end(found).items()]

    def _end(self, found: Pass) -> dict[str, float]:
        if not self.reader.loaded.causal:
            cosine = torch.cosine_similarity(found.end.double(), self.dense.end.double(), dim=0)
            return {"cosine": float(cosine)}
        return compare_laws(self.dense.end, found.end, self.reader.next_tokens)

    def _about(self) -> DeepCell:
        reader, causal = self.reader, self.reader.loaded.causal
        return DeepCell(
            passage=reader.passage.number,
            eligible=reader.eligible,
            queries=len(reader.asking),
            residual_norm=tuple(float(lengths.median()) for lengths in self._lengths),
            positions=len(reader.positions) if causal else None,
            dense_nll=surprise(self.dense.end, reader.next_tokens) if causal else None,
        )


def _lengths(values: Tensor) -> Tensor:
    """Norms along the last axis."""
    lengths: Tensor = torch.linalg.vector_norm(values.double(), dim=-1)
    return lengths


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values.double()))
