"""Attention with a causal mask against the same head without it.

The tokens of a decoder's head are pooled into a cloud of N triples (q, k, v), as they
enter the softmax: rotated to the positions that they had, without delimiters and first tokens. Of
this cloud n tokens are drawn with replacement, in random order, so that tokens are i.i.d. and the
limit of attention, with and without a mask, is exactly dense attention over the cloud. (In a real
passage keys depend on the position, and there is no such limit to compare with.) Without a mask
every token attends to all n; with it, token i attends to the first i. Two errors are looked at:

* that of the output at position i. It has the law of the error without a mask among i keys, which
  is known exactly (the curve of the map);
* that of the mean output. With G(x) the limit at a query, w(x, z) its weight of key z (mean 1) and
  ``psi(z) = E_x w(x, z) (v_z - G(x))``, to first order

      without   (1/n) sum_j G(x_j) - EG + psi(x_j)
      with      (1/n) sum_j G(x_j) - EG + c_j psi(x_j),   c_j = 1/j + ... + 1/n ,

  and as the c_j have mean 1 and mean square ``2 - H_n/n`` (H_n the harmonic number), n times the
  mean squared errors tend to ``Vg + 2C + Vpsi`` and ``Vg + 2C + 2 Vpsi``: the same rate, and a
  constant that is larger, by a factor of at most sqrt(2) in root mean square where C >= 0.

The first-order sums of each replicate, whose expectation is exact, are control variates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.studies.paper.ledger import (
    Check,
    Claim,
    Entry,
    Measurement,
    Rows,
    Scale,
    Setting,
    Unit,
    exponential,
    judged,
    student_interval,
    verdict_of,
    with_interval,
)

if TYPE_CHECKING:
    import pandas as pd
    from altair.typing import ChartType
    from torch import Tensor


#: Tokens of a passage from which a cloud is pooled.
CONTEXT = 512
#: Queries taken at a time.
BLOCK = 256
#: Exponents that differ by less are called the same.
SAME = 0.05
#: Ratios within this factor of 1 are called 1.
CLOSE = 1.05
#: Octaves at the end of the sizes on which rates are compared.
OCTAVES = 3


@dataclass(frozen=True)
class CausalPlan:
    """How much is measured: heads, tokens of a cloud, sizes ``2^5`` to ``2^last``, replicates."""

    heads: int
    tokens: int
    last: int
    replicates: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of tokens."""
        return tuple(2**power for power in range(5, self.last + 1))


CAUSAL: dict[Scale, CausalPlan] = {
    "quick": CausalPlan(16, 1024, 15, 6),
    "standard": CausalPlan(24, 2048, 15, 12),
    "paper": CausalPlan(60, 4096, 16, 48),
}


def causal_units(scale: Scale) -> list[Unit]:
    """One unit per head; heads are spread over the layers."""
    return [{"head": number} for number in range(CAUSAL[scale].heads)]


def measure_causal(unit: Unit, setting: Setting) -> Rows:
    """Squared errors of a head with and without the mask, one row per replicate and size."""
    plan = CAUSAL[setting.scale]
    clouds = head_clouds(setting.decoder, setting.text, plan.heads, plan.tokens)
    layer, head, q, k, v = clouds[unit["head"]]
    rows = causal_errors(q, k, v, plan.sizes, plan.replicates, setting.seed, unit["head"])
    return [{"layer": layer, "head": head} | row for row in rows]


@lru_cache(maxsize=1)
def head_clouds(
    model: str, text: str, heads: int, tokens: int
) -> tuple[tuple[int, int, Tensor, Tensor, Tensor], ...]:
    """Layer, head, tilts, keys and values of some heads, spread over the layers of a model."""
    import torch

    from esscher.engine.text.collect import iterate_passages
    from esscher.engine.text.packing import first_passages

    loaded = Setting("quick", 0, model, model, text).loaded(model)
    context = min(CONTEXT, loaded.max_positions)
    count = math.ceil(tokens / (context - 4))  # room for delimiters
    places = np.linspace(0, loaded.shape.layers - 1, heads).round().astype(int)
    chosen = [(int(layer), i % loaded.shape.heads) for i, layer in enumerate(places)]
    parts: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {i: [] for i in range(heads)}
    passages = first_passages(loaded, text, count, context)
    for passage, inputs in iterate_passages(
        loaded, passages, layers=sorted({at for at, _ in chosen})
    ):
        keep = torch.from_numpy(~passage.is_delimiter)
        keep[0] = False  # whatever token is first attracts attention because it is first
        for i, (layer, head) in enumerate(chosen):
            if layer == inputs.layer:
                key_head = head // inputs.group
                parts[i].append(
                    (
                        inputs.q[0, head, keep].float() * inputs.scaling,
                        inputs.k[0, key_head, keep].float(),
                        inputs.v[0, key_head, keep].float(),
                    )
                )
    out = []
    for i, (layer, head) in enumerate(chosen):
        q, k, v = (torch.cat(part)[:tokens].cpu() for part in zip(*parts[i], strict=True))
        out.append((layer, head, q, k, v))
    return tuple(out)


def causal_errors(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sizes: Sequence[int],
    replicates: int,
    seed: int,
    head: int = 0,
) -> Rows:
    """Squared errors of attention over tokens drawn from a cloud, with and without causal mask.

    Parameters
    ----------
    q, k, v
        Tilts (queries times the factor of the logits), keys and values of the cloud, [N, d].
    sizes
        Numbers of tokens, increasing; a replicate draws the last one, and smaller samples are its
        beginnings.
    replicates, seed, head
        Number of samples; their stream is a function of (seed, head, replicate).

    Returns
    -------
    Rows
        Per replicate and size n: squared errors of the mean output with the mask (``causal``) and
        without (``dense``); their first-order parts (``causal_first``, ``dense_first``), and the
        exact expectations of these (``causal_expected``, ``dense_expected``); ``map``: squared
        error of the outputs without mask, averaged over queries; ``position``: squared error of the
        outputs with mask, averaged over the second half of the positions.
    """
    import torch

    count = len(q)
    weights = q @ k.T
    weights = torch.exp(weights - weights.max(dim=1, keepdim=True).values)
    sums = weights.sum(dim=1, keepdim=True)
    limit = weights @ v / sums
    mean = limit.mean(dim=0)
    limit, v = limit - mean, v - mean
    share = weights / sums  # of a key in the attention of a query, over the cloud
    psi = (share.sum(dim=0)[:, None] * v - share.T @ limit).double()
    del share
    ones = torch.cat([v, torch.ones(count, 1)], dim=1)  # numerator and denominator in one product
    g = limit.double()
    g_part = float((g.square() + 2 * g * psi).sum(dim=1).mean())
    psi_part = float(psi.square().sum(dim=1).mean())
    harmonic = np.cumsum(1 / np.arange(1, sizes[-1] + 1))
    rows: Rows = []
    for replicate in range(replicates):
        stream = random_stream(seed, "causal", head, replicate)
        drawn = torch.from_numpy(stream.integers(count, size=sizes[-1]))
        # with the mask: keys of earlier blocks are counted, those of its own block seen one by one
        seen = torch.zeros(count)
        total = torch.zeros(v.shape[1], dtype=torch.float64)
        causal, gaps = {}, np.empty(sizes[-1])
        edges = sorted({*range(0, sizes[-1], BLOCK), *sizes, 0})
        for start, stop in pairwise(edges):
            picked = drawn[start:stop]
            block = weights[picked]
            both = block @ (seen[:, None] * ones) + torch.tril(block[:, picked]) @ ones[picked]
            output = both[:, :-1] / both[:, -1:]
            total += output.double().sum(dim=0)
            gaps[start:stop] = (output - limit[picked]).square().sum(dim=1).numpy()
            seen += torch.bincount(picked, minlength=count)
            if stop in sizes:
                causal[stop] = float((total / stop).square().sum())
        first = g[drawn].cumsum(dim=0)
        inner = psi[drawn].cumsum(dim=0)
        outer = (inner / torch.arange(1, sizes[-1] + 1)[:, None]).cumsum(dim=0)
        for n in sizes:
            times = torch.bincount(drawn[:n], minlength=count).float()
            asked = torch.nonzero(times)[:, 0]
            if len(asked) < count // 2:  # then it pays to take out their rows and columns
                both = weights[asked][:, asked] @ (times[asked, None] * ones[asked])
            else:
                asked = torch.arange(count)
                both = weights @ (times[:, None] * ones)
            output = (both[:, :-1] / both[:, -1:]).double()
            total = (output * times[asked, None]).sum(dim=0)
            gap = (output - g[asked]).square().sum(dim=1) @ times[asked].double()
            at = n - 1
            rows.append(
                {
                    "replicate": replicate,
                    "n": n,
                    "causal": causal[n],
                    "dense": float((total / n).square().sum()),
                    "causal_first": float(((first[at] + outer[at]) / n).square().sum()),
                    "dense_first": float(((first[at] + inner[at]) / n).square().sum()),
                    "causal_expected": (g_part + (2 - harmonic[at] / n) * psi_part) / n,
                    "dense_expected": (g_part + psi_part) / n,
                    "map": float(gap / n),
                    "position": float(gaps[n // 2 : n].mean()),
                }
            )
    return rows


def controlled_means(values: Array, control: Array, expected: Array) -> Array:
    """Means over replicates, [head, size], with the help of a control of known expectation.

    ``values`` and ``control`` have axes [head, replicate, size], ``expected`` [head, size]. The
    factor of the control is that of least squares over all heads, each in units of its expectation.
    A mean that the control would push to 0 or below is left alone.
    """
    unit = expected[:, None]
    centred = (control - control.mean(axis=1, keepdims=True)) / unit
    spread = np.sum(centred**2, axis=(0, 1))
    factor = np.sum(centred * values / unit, axis=(0, 1)) / np.where(spread > 0, spread, 1.0)
    means = values.mean(axis=1)
    corrected = means - factor * (control.mean(axis=1) - expected)
    return np.asarray(np.where(corrected > 0, corrected, means))


def judge_causal(tables: Mapping[str, pd.DataFrame], setting: Setting) -> Entry:
    """Compare rates and constants with and without the mask; heads are the units of intervals."""
    import pandas as pd

    table = tables["causal"]
    sizes = np.sort(table["n"].unique())
    columns = table.columns.difference(["layer", "head", "replicate", "n"])
    heads, grids, places = [], [], []
    groups: Any = table.groupby(["layer", "head"], sort=True)
    for (layer, head), rows in groups:
        heads.append((layer, head))
        grid = {
            name: rows.pivot(index="replicate", columns="n", values=name).to_numpy()
            for name in columns
        }
        grids.append(grid)
        # without a mask, mean over i keys for i from n/2 to n: between sizes a power of i
        dense = grid["map"].mean(axis=0)
        power = np.diff(np.log(dense)) / np.diff(np.log(sizes))
        among = [
            np.mean((np.arange(n // 2 + 1, n + 1) / n) ** b) * level
            for n, b, level in zip(sizes[1:], power, dense[1:], strict=True)
        ]
        places.append(0.5 * np.log(grid["position"].mean(axis=0)[1:] / among))
    values = {name: np.array([grid[name] for grid in grids]) for name in columns}
    kinds = ("causal", "dense")
    expected = [values[f"{kind}_expected"][:, 0] for kind in kinds]
    squares = [
        controlled_means(values[kind], values[f"{kind}_first"], known)
        for kind, known in zip(kinds, expected, strict=True)
    ]
    # [head, with and without, size]
    logs, first = (0.5 * np.log(np.stack(both, axis=1)) for both in (squares, expected))
    ratios, limits = logs[:, 0] - logs[:, 1], first[:, 0] - first[:, 1]
    place = np.array(places)

    late = sizes >= sizes[-1] / 2**OCTAVES
    slopes = -_slopes(np.log(sizes), logs)
    late_slopes = -_slopes(np.log(sizes[late]), logs[:, :, late])
    whole = student_interval(slopes[:, 0] - slopes[:, 1])
    rate = student_interval(late_slopes[:, 0] - late_slopes[:, 1])
    constant = exponential(student_interval(ratios[:, -1]))
    against_first = exponential(student_interval(ratios[:, -1] - limits[:, -1]))
    position = exponential(student_interval(place.mean(axis=1)))
    first_ratio = float(np.exp(limits[:, -1].mean()))

    span = f"n = {sizes[late][0]:,} to {sizes[-1]:,}"
    checks = [
        Check(
            says="The mean output converges at the same rate with the mask as without",
            verdict=verdict_of(
                rate[1] > -SAME and rate[2] < SAME, rate[1] > SAME or rate[2] < -SAME
            ),
            measured=f"exponent with the mask minus without {with_interval(*rate)} on {span}; "
            f"{with_interval(*whole)} from n = {sizes[0]} on",
            rule=f"holds if the interval lies within {SAME:g} of 0, contradicted if it lies beyond",
        ),
        Check(
            says="The constant is larger",
            verdict=verdict_of(constant[1] > 1, constant[2] < 1),
            measured=f"error with the mask over that without at n = {sizes[-1]:,}: "
            f"{with_interval(*constant)}; no effect would be 1, half the tokens 1.41",
            rule="holds if the interval lies above 1, contradicted if it lies below",
        ),
        Check(
            says="A query at position i errs as without a mask among i keys",
            verdict=verdict_of(
                position[1] > 1 / CLOSE and position[2] < CLOSE,
                position[1] > CLOSE or position[2] < 1 / CLOSE,
            ),
            measured="error with the mask at positions n/2 to n over that without it among as "
            f"many keys: {with_interval(*position, digits=3)}",
            rule="holds if the interval lies within 5% of 1, contradicted if it lies beyond; the "
            "answer is known to be 1",
        ),
        Check(
            says="First-order theory gives the constant",
            verdict=verdict_of(
                against_first[1] > 1 / CLOSE and against_first[2] < CLOSE,
                against_first[1] > CLOSE or against_first[2] < 1 / CLOSE,
            ),
            measured=f"measured ratio over that of first order ({first_ratio:.2f} in the geometric "
            f"mean): {with_interval(*against_first)}",
            rule="holds if the interval lies within 5% of 1, contradicted if it lies beyond",
            counts=False,
        ),
    ]
    curves, ratio_rows, place_rows = [], [], []
    for j, n in enumerate(sizes.tolist()):
        unit = 0.5 * np.log(sizes[j]) + first[:, 1, j]  # the constant without mask, to first order
        for which, name in enumerate((WITH, WITHOUT)):
            value, low, high = exponential(student_interval(logs[:, which, j] - unit))
            curves.append({"n": n, "mask": name, "error": value, "low": low, "high": high})
        value, low, high = exponential(student_interval(ratios[:, j]))
        theory = float(np.exp(limits[:, j].mean()))
        ratio_rows.append({"n": n, "ratio": value, "low": low, "high": high, "first_order": theory})
        if j:
            value, low, high = exponential(student_interval(place[:, j - 1]))
            place_rows.append({"n": n, "ratio": value, "low": low, "high": high})
    per_head = pd.DataFrame(
        {
            "layer": [layer for layer, _ in heads],
            "head": [head for _, head in heads],
            "exponent_with": late_slopes[:, 0],
            "exponent_without": late_slopes[:, 1],
            "ratio": np.exp(ratios[:, -1]),
            "first_order": np.exp(limits[:, -1]),
        }
    )
    clouds = CAUSAL[setting.scale].tokens
    return judged(
        "causal",
        f"With the mask the mean output errs {with_interval(*constant)} times as much at "
        f"n = {sizes[-1]:,} ({first_ratio:.2f} to first order), and its exponent differs by "
        f"{with_interval(*rate)} on {span}. At n = {sizes[0]} the ratio is "
        f"{ratio_rows[0]['ratio']:.2f}: until it has risen, the mean with the mask falls more "
        "slowly.",
        checks,
        f"Tokens are drawn independently from {clouds:,} of {setting.text}, which real passages "
        "are not; what a head would do beyond that many different tokens is not seen. "
        f"{len(heads)} heads stand for the model.",
        "more heads and larger clouds",
        {
            "errors": pd.DataFrame(curves),
            "ratios": pd.DataFrame(ratio_rows),
            "positions": pd.DataFrame(place_rows),
            "heads": per_head,
        },
    )


WITH, WITHOUT = "with the mask", "without"


def _slopes(x: Array, y: Array) -> Array:
    """Least-squares slopes of y against x, which is its last axis."""
    centred = x - x.mean()
    return np.asarray(y @ centred / (centred @ centred))


def draw_causal(entry: Entry) -> ChartType:
    """Draw errors with and without the mask, their ratio, and errors by position."""
    from esscher.show.chart import Axis, Series, figure, guides, lines, panel, points
    from esscher.show.theme import BLUE, GREY, LINE, VERMILION, limits

    errors, ratios, places = (entry.rows(name) for name in ("errors", "ratios", "positions"))
    sizes = [row["n"] for row in ratios]
    x = Axis("n", "tokens n", log=True, limits=limits(sizes, log=True))
    names = (WITH, WITHOUT, "first order")
    series = Series(
        "mask",
        names,
        colours=(VERMILION, BLUE, GREY),
        shapes=("circle", "square", LINE),
        dashes=((1, 0), (1, 0), (4, 2)),
    )
    last = ratios[-1]["first_order"]
    theory = [
        {"n": n, "mask": "first order", "error": factor * n**-0.5, "line": factor}
        for factor in (1.0, last)
        for n in sizes
    ]
    ends = [row[key] for row in errors for key in ("low", "high")]
    y = Axis("error", "error of the mean / constant", log=True, limits=limits(ends, log=True))
    half = len(theory) // 2
    first = panel(
        lines(theory[:half], x, y, series),
        lines(theory[half:], x, y, series),
        lines(errors, x, y, series),
        points(errors, x, y, series),
        title="Mean output",
    )
    tops = [row["high"] for row in ratios] + [1.5]
    y = Axis("ratio", "error with / without", limits=limits([0.9, *tops]))
    expected = [
        {"n": row["n"], "ratio": row["first_order"], "mask": "first order"} for row in ratios
    ]
    measured = [row | {"mask": WITH} for row in ratios]
    second = panel(
        guides([{"at": 1.0, "name": "no effect"}], x, y),
        lines(expected, x, y, series),
        lines(measured, x, y, series),
        points(measured, x, y, series),
        title="Their ratio",
    )
    ends = [row[key] for row in places for key in ("low", "high")]
    y = Axis("ratio", "with / without, i keys", limits=limits([0.9, 1.1, *ends]))
    at = Axis("n", "position i", log=True, limits=limits(sizes, log=True))
    measured = [row | {"mask": WITH} for row in places]
    third = panel(
        guides([{"at": 1.0}], at, y),
        points(measured, at, y, series),
        title="Error at a position",
    )
    return figure(
        [first, second, third],
        "Attention with a causal mask",
        note="geometric means over heads; bars: 95% intervals, heads as units",
    )


MEASUREMENTS: dict[str, Measurement] = {"causal": Measurement(causal_units, measure_causal)}
CLAIMS: dict[str, Claim] = {
    "causal": Claim(
        title="With a causal mask: the same rate, a larger constant",
        says="Since the paper: causal attention has a limit, too (arXiv 2605.09213). Averaged over "
        "positions it converges at the same rate, with a larger constant.",
        uses=("causal",),
        judge=judge_causal,
        draw=draw_causal,
    ),
}
