"""Claims about whole models: attention with a causal mask, and accuracy over n keys.

**causal.** The tokens of a decoder's head are pooled into a cloud of N triples (q, k, v), as they
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

**downstream.** Every layer of a model attends to n keys, drawn with replacement (the paper's
protocol: no finite-population factor bends the curve) and new in every layer; the first token,
delimiters and a decoder's last tokens, which ask, are kept for certain. The loss is the share of
answers that differ from the dense model's: a decoder's next token, the nearest neighbour of an
encoder's embedding among other texts, and the class that a linear classifier gives it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.statistics import LEVEL
from esscher.studies.paper.ledger import (
    Check,
    Claim,
    Entry,
    Measurement,
    Rows,
    Scale,
    Setting,
    Unit,
    entry,
    joint_verdict,
    verdict_of,
    with_interval,
)

if TYPE_CHECKING:
    import pandas as pd
    from altair.typing import ChartType
    from torch import Tensor

    from esscher.engine.reading import PassageReader

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

    from esscher.engine.text import first_passages, iterate_passages

    loaded = Setting("quick", 0, model, model, text).loaded(model)
    context = min(CONTEXT, loaded.max_positions)
    count = math.ceil(tokens / (context - 4))  # room for delimiters
    places = np.linspace(0, loaded.shape.layers - 1, heads).round().astype(int)
    chosen = [(int(layer), i % loaded.shape.heads) for i, layer in enumerate(places)]
    parts: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {i: [] for i in range(heads)}
    found = first_passages(loaded, text, count, context)
    for passage, inputs in iterate_passages(loaded, found, layers=sorted({at for at, _ in chosen})):
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
            own = drawn[start:stop]
            block = weights[own]
            both = block @ (seen[:, None] * ones) + torch.tril(block[:, own]) @ ones[own]
            output = both[:, :-1] / both[:, -1:]
            total += output.double().sum(dim=0)
            gaps[start:stop] = (output - limit[own]).square().sum(dim=1).numpy()
            seen += torch.bincount(own, minlength=count)
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
    found = means - factor * (control.mean(axis=1) - expected)
    return np.asarray(np.where(found > 0, found, means))


def student(values: Array) -> tuple[float, float, float]:
    """Mean of independent values, with the ends of its 95% interval."""
    count, mean = len(values), float(np.mean(values))
    if count < 2:
        return mean, -math.inf, math.inf
    half = float(scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2))
    half *= float(np.std(values, ddof=1)) / math.sqrt(count)
    return mean, mean - half, mean + half


def judge_causal(tables: Mapping[str, pd.DataFrame], setting: Setting) -> Entry:
    """Compare rates and constants with and without the mask; heads are the units of intervals."""
    import pandas as pd

    table = tables["causal"]
    sizes = np.sort(table["n"].unique())
    columns = table.columns.difference(["layer", "head", "replicate", "n"])
    heads, grids, places = [], [], []
    groups: Any = table.groupby(["layer", "head"], sort=True)
    for (layer, head), own in groups:
        heads.append((layer, head))
        grid = {
            name: own.pivot(index="replicate", columns="n", values=name).to_numpy()
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
    whole = student(slopes[:, 0] - slopes[:, 1])
    rate = student(late_slopes[:, 0] - late_slopes[:, 1])
    constant = _exponential(student(ratios[:, -1]))
    against_first = _exponential(student(ratios[:, -1] - limits[:, -1]))
    position = _exponential(student(place.mean(axis=1)))
    first_ratio = float(np.exp(limits[:, -1].mean()))

    span = f"n = {sizes[late][0]:,} to {sizes[-1]:,}"
    checks = [
        Check(
            says="The mean output converges at the same rate with the mask as without",
            verdict=verdict_of(
                rate[1] > -SAME and rate[2] < SAME, rate[1] > SAME or rate[2] < -SAME
            ),
            found=f"exponent with the mask minus without {with_interval(*rate)} on {span}; "
            f"{with_interval(*whole)} from n = {sizes[0]} on",
            rule=f"holds if the interval lies within {SAME:g} of 0, contradicted if it lies beyond",
        ),
        Check(
            says="The constant is larger",
            verdict=verdict_of(constant[1] > 1, constant[2] < 1),
            found=f"error with the mask over that without at n = {sizes[-1]:,}: "
            f"{with_interval(*constant)}; no effect would be 1, half the tokens 1.41",
            rule="holds if the interval lies above 1, contradicted if it lies below",
        ),
        Check(
            says="A query at position i errs as without a mask among i keys",
            verdict=verdict_of(
                position[1] > 1 / CLOSE and position[2] < CLOSE,
                position[1] > CLOSE or position[2] < 1 / CLOSE,
            ),
            found=f"error with the mask at positions n/2 to n over that without it among as many "
            f"keys: {with_interval(*position, digits=3)}",
            rule="holds if the interval lies within 5% of 1, contradicted if it lies beyond; the "
            "answer is known to be 1",
        ),
        Check(
            says="First-order theory gives the constant",
            verdict=verdict_of(
                against_first[1] > 1 / CLOSE and against_first[2] < CLOSE,
                against_first[1] > CLOSE or against_first[2] < 1 / CLOSE,
            ),
            found=f"measured ratio over that of first order ({first_ratio:.2f} in the geometric "
            f"mean): {with_interval(*against_first)}",
            rule="holds if the interval lies within 5% of 1, contradicted if it lies beyond",
            counts=False,
        ),
    ]
    curves, ratio_rows, place_rows = [], [], []
    for j, n in enumerate(sizes.tolist()):
        unit = 0.5 * np.log(sizes[j]) + first[:, 1, j]  # the constant without mask, to first order
        for which, name in enumerate((WITH, WITHOUT)):
            value, low, high = _exponential(student(logs[:, which, j] - unit))
            curves.append({"n": n, "mask": name, "error": value, "low": low, "high": high})
        value, low, high = _exponential(student(ratios[:, j]))
        theory = float(np.exp(limits[:, j].mean()))
        ratio_rows.append({"n": n, "ratio": value, "low": low, "high": high, "first_order": theory})
        if j:
            value, low, high = _exponential(student(place[:, j - 1]))
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
    return entry(
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
        "more heads and larger clouds (--scale standard)",
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


def _exponential(values: tuple[float, float, float]) -> tuple[float, float, float]:
    value, low, high = values
    return math.exp(value), math.exp(low), math.exp(high) if high < 700 else math.inf


def _records(found: Entry, name: str) -> list[dict[str, Any]]:
    """Rows of a table of an entry."""
    table = found.tables[name]
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def draw_causal(found: Entry) -> ChartType:
    """Draw errors with and without the mask, their ratio, and errors by position."""
    from esscher.show.chart import Axis, Series, figure, guides, lines, panel, points
    from esscher.show.theme import BLUE, GREY, LINE, VERMILION, limits

    errors, ratios, places = (_records(found, name) for name in ("errors", "ratios", "positions"))
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


# Accuracy of whole models.

#: Families of texts that the linear classifier tells apart: packages of the standard library, and
#: the language reference (demo:docs).
CLASSES = ("asyncio", "email", "importlib", "multiprocessing", "unittest", "xml", "docs")
#: Texts at most of a class, and texts of a unit.
PER_CLASS, TOGETHER = 16, 5
#: Ridge of the classifier, for embeddings of length 1.
RIDGE = 1.0
#: Sizes up to the last one over this are fitted; the last one is predicted.
BEYOND = 4
#: A prediction within this factor of what was measured hits it.
HIT = 1.5
RESAMPLES = 2000
TOKEN, NEIGHBOUR, CLASS = "next token", "nearest text", "class"
TASKS = (TOKEN, NEIGHBOUR, CLASS)


@dataclass(frozen=True)
class DownstreamPlan:
    """How much is measured.

    Attributes
    ----------
    passages, context, queries, token_sizes, token_draws
        Decoder: passages, their tokens, of which the last ones ask; numbers of keys; samples of
        each.
    texts, text_context, text_sizes, text_draws
        Encoder: texts that ask, tokens of a text, numbers of keys, samples of each.
    token_first, text_first
        Smaller sizes are shown, not fitted: there the loss is near its ceiling.
    """

    passages: int
    context: int
    queries: int
    token_sizes: tuple[int, ...]
    token_first: int
    token_draws: int
    texts: int
    text_context: int
    text_sizes: tuple[int, ...]
    text_first: int
    text_draws: int


#: The authors' sizes: 64 to 4,096, 20 of them.
AUTHORS = tuple(int(n) for n in np.geomspace(64, 4096, 20).round())
DOWNSTREAM: dict[Scale, DownstreamPlan] = {
    "quick": DownstreamPlan(
        passages=11,
        context=256,
        queries=48,
        token_sizes=(16, 64, 192, 512, 2048),
        token_first=64,
        token_draws=1,
        texts=40,
        text_context=128,
        text_sizes=(8, 32, 96, 256, 1024),
        text_first=32,
        text_draws=2,
    ),
    "standard": DownstreamPlan(
        passages=32,
        context=384,
        queries=64,
        token_sizes=(16, 64, 128, 256, 512, 2048),
        token_first=64,
        token_draws=1,
        texts=100,
        text_context=128,
        text_sizes=(8, 32, 64, 128, 256, 1024),
        text_first=32,
        text_draws=4,
    ),
    "paper": DownstreamPlan(
        passages=48,
        context=4096,
        queries=128,
        token_sizes=AUTHORS,
        token_first=64,
        token_draws=20,
        texts=100,
        text_context=128,
        text_sizes=AUTHORS,
        text_first=64,
        text_draws=20,
    ),
}


def downstream_units(scale: Scale) -> list[Unit]:
    """One unit per passage of the decoder, and per five texts of the encoder."""
    plan = DOWNSTREAM[scale]
    passages = [{"model": "decoder", "first": i} for i in range(plan.passages)]
    return passages + [{"model": "encoder", "first": i} for i in range(0, plan.texts, TOGETHER)]


def measure_downstream(unit: Unit, setting: Setting) -> Rows:
    """Share of answers that differ from the dense model's, and of right ones, by n and draw."""
    plan = DOWNSTREAM[setting.scale]
    if unit["model"] == "decoder":
        return _next_tokens(unit["first"], plan, setting)
    return _embeddings(unit["first"], plan, setting)


def _row(
    task: str,
    text: int,
    draw: int,
    n: int,
    differs: float,
    right: float,
    dense: float,
    answers: int,
) -> dict[str, Any]:
    return {
        "task": task,
        "text": text,
        "draw": draw,
        "n": n,
        "loss": differs,
        "accuracy": right,
        "dense_accuracy": dense,
        "answers": answers,
    }


def _next_tokens(number: int, plan: DownstreamPlan, setting: Setting) -> Rows:
    """Next tokens of a decoder on one passage, against the dense model's and the text's."""
    from esscher.engine.reading import PassageReader
    from esscher.engine.text import first_passages

    loaded = setting.loaded(setting.decoder)
    context = min(plan.context, loaded.max_positions)
    passage = first_passages(loaded, setting.text, plan.passages, context)[number]
    reader = PassageReader(loaded, passage, context - plan.queries)
    certain = passage.is_delimiter.copy()
    certain[0] = True
    certain[reader.prefix :] = True
    truth = reader.next_tokens
    dense = _end(reader, None).argmax(dim=-1)
    dense_right = float((dense == truth).double().mean())
    rows: Rows = []
    for draw in range(plan.token_draws):
        for n in plan.token_sizes:
            drawn = SampledKeys(certain, setting.seed, "downstream tokens", number, draw, n)
            found = _end(reader, drawn).argmax(dim=-1)
            differs, right = ((found != dense), (found == truth))
            rows.append(
                _row(
                    TOKEN,
                    number,
                    draw,
                    n,
                    float(differs.double().mean()),
                    float(right.double().mean()),
                    dense_right,
                    len(truth),
                )
            )
    return rows


def _embeddings(start: int, plan: DownstreamPlan, setting: Setting) -> Rows:
    """Nearest texts and classes of some texts' embeddings, against those of dense ones."""
    texts = labelled_texts(setting.encoder, plan.text_context)
    rows: Rows = []
    # texts that ask are spread over the classes
    asking = np.linspace(0, len(texts.labels) - 1, min(plan.texts, len(texts.labels)))
    for i in asking.round().astype(int)[start : start + TOGETHER].tolist():
        reader, label = texts.readers[i], texts.labels[i]
        neighbour, named = texts.answers(i, texts.embeddings[i])
        certain = reader.passage.is_delimiter.copy()
        certain[0] = True
        for draw in range(plan.text_draws):
            for n in plan.text_sizes:
                drawn = SampledKeys(certain, setting.seed, "downstream texts", i, draw, n)
                near, name = texts.answers(i, _unit(_end(reader, drawn).double().numpy()))
                beside = float(texts.labels[neighbour] == label)
                rows.append(
                    _row(
                        NEIGHBOUR,
                        i,
                        draw,
                        n,
                        float(near != neighbour),
                        float(texts.labels[near] == label),
                        beside,
                        1,
                    )
                )
                rows.append(
                    _row(
                        CLASS,
                        i,
                        draw,
                        n,
                        float(name != named),
                        float(name == label),
                        float(named == label),
                        1,
                    )
                )
    return rows


class SampledKeys:
    """Attention to keys that are kept for certain and n draws of the others, new in every layer.

    Draws are a function of (seed, purpose, text, draw, layer), and those of n the first n of them.
    """

    def __init__(self, certain: Any, seed: int, purpose: str, text: int, draw: int, n: int) -> None:
        self._certain, self._others = certain, np.flatnonzero(~certain)
        self._key, self._n = (seed, purpose, text, draw), n

    def __call__(self, inputs: Any) -> Tensor:
        """Output of a layer."""
        import torch

        from esscher.studies.deep.sampling import KeySample, sampled_attention

        seed, purpose, text, draw = self._key
        stream = random_stream(seed, purpose, text, draw, inputs.layer)
        drawn = self._others[stream.integers(len(self._others), size=self._n)]
        times = torch.from_numpy(np.bincount(drawn, minlength=len(self._certain)))
        return sampled_attention(inputs, KeySample(torch.from_numpy(self._certain), times))


def _end(reader: PassageReader, attention: SampledKeys | None) -> Tensor:
    """What the model says at its end, with sampled attention or its own."""
    import torch

    from esscher.engine.models import attention_override

    with torch.no_grad():
        if attention is None:
            return reader.end()
        with attention_override(reader.loaded, attention):
            return reader.end()


def _unit(vector: Array) -> Array:
    return np.asarray(vector / np.linalg.norm(vector))


@dataclass(frozen=True, eq=False)
class LabelledTexts:
    """Texts with their classes, dense embeddings of length 1, and a classifier for each half.

    Texts with even numbers are classified by what was fitted to the odd ones, and vice versa.
    """

    readers: tuple[PassageReader, ...]
    labels: tuple[int, ...]
    embeddings: Array
    classifiers: tuple[tuple[Array, Array], ...]

    def answers(self, i: int, embedding: Array) -> tuple[int, int]:
        """Return the nearest of the other texts, by dense embeddings, and the class."""
        cosines = self.embeddings @ embedding
        cosines[i] = -np.inf
        weights, offset = self.classifiers[i % 2]
        return int(cosines.argmax()), int((embedding @ weights + offset).argmax())


@lru_cache(maxsize=1)
def labelled_texts(model: str, context: int) -> LabelledTexts:
    """Read the second passage of some files of the standard library, and of topics of its docs.

    A file gives one text, so that training and test share none; its first passage often names the
    package.
    """
    from esscher.engine.reading import PassageReader
    from esscher.engine.text import Document, passages
    from esscher.engine.text.documents import language_reference, standard_library

    loaded = Setting("quick", 0, model, model, "").loaded(model)
    families: dict[str, list[tuple[str, str]]] = {name: [] for name in CLASSES}
    for name, text in standard_library():
        package = name.split("/")[1]
        if package in families:
            families[package].append((name, text))
    families["docs"] = list(language_reference())
    readers, labels = [], []
    for label, family in enumerate(CLASSES):
        taken = 0
        for name, text in families[family]:
            stream = passages(
                loaded, [Document(name, text[:65_536])], context=context, keep_short=False
            )
            found = list(islice(stream, 2))
            if len(found) == 2 and taken < PER_CLASS:
                readers.append(PassageReader(loaded, found[1], 0))
                labels.append(label)
                taken += 1
    embeddings = np.array([_unit(_end(reader, None).double().numpy()) for reader in readers])
    classifiers = []
    targets = np.eye(len(CLASSES))[labels]
    for half in (1, 0):  # of the texts that it is fitted to
        x, y = embeddings[half::2], targets[half::2]
        centre, mean = x.mean(axis=0), y.mean(axis=0)
        gram = (x - centre).T @ (x - centre) + RIDGE * np.eye(x.shape[1])
        weights = np.linalg.solve(gram, (x - centre).T @ (y - mean))
        classifiers.append((weights, mean - centre @ weights))
    return LabelledTexts(tuple(readers), tuple(labels), embeddings, tuple(classifiers))


@dataclass(frozen=True)
class Extrapolation:
    """A power law fitted to small sizes, and what it says about the last one.

    Attributes
    ----------
    exponent
        With its 95% interval, texts resampled.
    constant
        The factor in front.
    predicted
        Predicted over measured loss at the last size, with its interval, by exponent: the fitted
        one (``"fitted"``), 1/2, 1, and 0 (``"no change"``), the last three with a fitted constant.
    """

    exponent: tuple[float, float, float]
    constant: float
    predicted: dict[str, tuple[float, float, float]]


def extrapolate(
    losses: Array, sizes: Array, fitted: Array, least: float, seed: int, index: int = 0
) -> Extrapolation:
    """Fit ``loss ~ C n^-b`` to some sizes, and compare it with the last one.

    Least squares of the logarithm of the mean loss, weighted by the inverse of its variance; texts
    are resampled, and intervals are Student's with the spread of the resamples.

    Parameters
    ----------
    losses
        Axes [text, size].
    sizes, fitted
        Numbers of keys, and which of them are fitted (bool).
    least
        Stands for a mean loss of 0: half of one answer.
    seed, index
        Of the resampling.
    """
    count = len(losses)
    stream = random_stream(seed, "downstream resamples", index)
    picks = stream.multinomial(count, np.full(count, 1 / count), size=RESAMPLES) / count
    logs = np.log(np.maximum(np.vstack([losses.mean(axis=0), picks @ losses]), least))
    x = np.log(sizes[fitted])
    weights = 1 / np.maximum(logs[1:, fitted].var(axis=0), 1e-6)
    weights /= weights.sum()
    centred = x - weights @ x
    slope = logs[:, fitted] @ (weights * centred) / (weights @ centred**2)
    level = logs[:, fitted] @ weights
    far = np.log(sizes[-1]) - weights @ x
    quantile = float(scipy.special.stdtrit(max(count - 1, 1), (1 + LEVEL) / 2))
    quantile *= math.sqrt(count / max(count - 1, 1))

    def interval(values: Array) -> tuple[float, float, float]:
        half = quantile * float(values[1:].std())
        return float(values[0]), float(values[0]) - half, float(values[0]) + half

    powers: dict[str, Any] = {"fitted": slope, "1/2": -0.5, "1": -1.0, "no change": 0.0}
    return Extrapolation(
        exponent=interval(-slope),
        constant=float(np.exp(level[0] - slope[0] * (weights @ x))),
        predicted={
            name: _exponential(interval(level + power * far - logs[:, -1]))
            for name, power in powers.items()
        },
    )


def judge_downstream(tables: Mapping[str, pd.DataFrame], setting: Setting) -> Entry:
    """Judge whether answers change as n falls, and whether their loss is a power of n."""
    import pandas as pd

    table = tables["downstream"]
    plan = DOWNSTREAM[setting.scale]
    curves, fits, alternatives = [], [], []
    changes, drops, hits, slower = [], [], [], []
    words: dict[str, list[str]] = {name: [] for name in ("change", "drop", "hit", "slower")}
    for index, task in enumerate(TASKS):
        own = table[table["task"] == task]
        sizes = np.sort(own["n"].unique())
        grids = {
            name: own.groupby(["text", "n"])[name].mean().unstack().to_numpy()
            for name in ("loss", "accuracy", "dense_accuracy")
        }
        first = plan.token_first if task == TOKEN else plan.text_first
        fitted = (sizes >= first) & (sizes <= sizes[-1] / BEYOND)
        least = 0.5 / (float(own["answers"].sum()) / len(sizes))
        law = extrapolate(grids["loss"], sizes, fitted, least, setting.seed, index)
        # what changes from the last size to the first, text by text
        change = student(grids["loss"][:, 0] - grids["loss"][:, -1])
        drop = student(grids["dense_accuracy"][:, 0] - grids["accuracy"][:, 0])
        hit = law.predicted["fitted"]
        changes.append(verdict_of(change[1] > 0, change[2] < 0))
        drops.append(verdict_of(drop[1] > 0, drop[2] < 0))
        positive = verdict_of(law.exponent[1] > 0, law.exponent[2] < 0)
        near = verdict_of(hit[1] > 1 / HIT and hit[2] < HIT, hit[1] > HIT or hit[2] < 1 / HIT)
        hits.append(joint_verdict([positive, near]))
        slower.append(verdict_of(law.exponent[2] < 0.5, law.exponent[1] > 0.5))
        words["change"].append(f"{task} {with_interval(*change)}")
        words["drop"].append(f"{task} {with_interval(*drop)}")
        words["hit"].append(
            f"{task}: exponent {with_interval(*law.exponent)}, predicted over measured at "
            f"n = {sizes[-1]:,} {with_interval(*hit)}"
        )
        words["slower"].append(f"{task} {with_interval(*law.exponent)}")
        dense = float(grids["dense_accuracy"].mean())
        for j, n in enumerate(sizes.tolist()):
            loss, low, high = student(grids["loss"][:, j])
            right, right_low, right_high = student(grids["accuracy"][:, j])
            curves.append(
                {
                    "task": task,
                    "n": n,
                    "loss": loss,
                    "low": max(low, 0.0),
                    "high": min(high, 1.0),
                    "fit": law.constant * n ** -law.exponent[0] if n >= first else None,
                    "fitted": bool(fitted[j]),
                    "accuracy": right,
                    "accuracy_low": max(right_low, 0.0),
                    "accuracy_high": min(right_high, 1.0),
                    "dense_accuracy": dense,
                }
            )
        fits.append(
            {
                "task": task,
                "texts": len(grids["loss"]),
                "exponent": law.exponent[0],
                "low": law.exponent[1],
                "high": law.exponent[2],
                "n_fitted": int(sizes[fitted][-1]),
                "n_predicted": int(sizes[-1]),
            }
        )
        alternatives += [
            {
                "task": task,
                "exponent": name,
                "predicted_over_measured": ratio,
                "low": low,
                "high": high,
            }
            for name, (ratio, low, high) in law.predicted.items()
        ]
    others = [
        f"exponent {name}: "
        + ", ".join(
            f"{row['predicted_over_measured']:.2f}"
            for row in alternatives
            if row["exponent"] == name
        )
        for name in ("1/2", "1", "no change")
    ]
    checks = [
        Check(
            says="Answers of a model whose attention sees n keys change as n falls",
            verdict=joint_verdict(changes),
            found="share of answers that differ from the dense model's, smallest n minus largest: "
            + ", ".join(words["change"]),
            rule="holds if all intervals (over texts) lie above 0, contradicted if one lies below",
        ),
        Check(
            says="Accuracy falls with them",
            verdict=joint_verdict(drops),
            found="dense accuracy minus that at the smallest n: " + ", ".join(words["drop"]),
            rule="holds if all intervals (over texts) lie above 0, contradicted if one lies below",
        ),
        Check(
            says="The loss is a power of n that extrapolates by a factor of four",
            verdict=joint_verdict(hits),
            found="; ".join(words["hit"])
            + ". Predicted over measured of other rules, in this order: "
            + "; ".join(others),
            rule="holds if every exponent's interval lies above 0 and that of predicted over "
            f"measured within a factor of {HIT:g} of 1; contradicted if one lies beyond",
        ),
        Check(
            says="The loss falls more slowly than n^-1/2",
            verdict=joint_verdict(slower),
            found="exponents: " + ", ".join(words["slower"]),
            rule="holds if all intervals lie below 1/2, contradicted if one lies above",
            counts=False,
        ),
    ]
    short = ", ".join(
        f"{row['exponent']:.2f} ({row['low']:.2f} to {row['high']:.2f}) for {_OF[str(row['task'])]}"
        for row in fits
    )
    return entry(
        "downstream",
        f"With attention over n keys in every layer, the share of changed answers falls with the "
        f"exponent {short}; fitted up to n_max/4, these laws predict "
        + ", ".join(
            f"{row['predicted_over_measured']:.2f}"
            for row in alternatives
            if row["exponent"] == "fitted"
        )
        + " times what was measured at n_max.",
        checks,
        f"{fits[0]['texts']} passages and {fits[1]['texts']} short texts that come with Python, "
        "two small models; keys are drawn independently in every layer, the tokens that ask are "
        "never left out.",
        "more texts and draws (--scale standard)",
        {
            "curves": pd.DataFrame(curves),
            "fits": pd.DataFrame(fits),
            "alternatives": pd.DataFrame(alternatives),
        },
    )


_OF = {TOKEN: "next tokens", NEIGHBOUR: "nearest texts", CLASS: "classes"}


def draw_downstream(found: Entry) -> ChartType:
    """Draw losses with their power laws, and accuracies beside the dense ones."""
    from esscher.show.chart import Axis, Series, figure, guides, lines, panel, points
    from esscher.show.theme import BLUE, GREEN, VERMILION, limits

    curves = _records(found, "curves")
    series = Series("task", TASKS, colours=(VERMILION, BLUE, GREEN))
    x = Axis("n", "keys n", log=True, limits=limits([row["n"] for row in curves], log=True))
    shown = [row | {"hollow": not row["fitted"]} for row in curves]
    least = 0.3 * min(row["loss"] for row in curves if row["loss"] > 0)
    ends = [*(max(row["low"], least) for row in curves), *(row["high"] for row in curves)]
    y = Axis("loss", "share of changed answers", log=True, limits=limits(ends, log=True))
    laws = [
        {"task": row["task"], "n": row["n"], "loss": row["fit"]}
        for row in curves
        if row["fit"] is not None
    ]
    first = panel(lines(laws, x, y, series), points(shown, x, y, series), title="Changed answers")
    right = [
        {
            "task": row["task"],
            "n": row["n"],
            "accuracy": row["accuracy"],
            "low": row["accuracy_low"],
            "high": row["accuracy_high"],
        }
        for row in curves
    ]
    dense = [
        {"task": task, "at": next(row["dense_accuracy"] for row in curves if row["task"] == task)}
        for task in TASKS
    ]
    z = Axis(
        "accuracy", "accuracy", limits=limits([row[k] for row in right for k in ("low", "high")])
    )
    second = panel(
        guides(dense, x, z, series),
        lines(right, x, z, series),
        points(right, x, z, series),
        title="Accuracy; dotted: dense",
    )
    return figure(
        [first, second],
        "Models whose attention sees n keys",
        note="lines: power laws fitted to the filled points; bars: 95% intervals, texts as units",
    )


MEASUREMENTS: dict[str, Measurement] = {
    "causal": Measurement(causal_units, measure_causal),
    "downstream": Measurement(downstream_units, measure_downstream),
}
CLAIMS: dict[str, Claim] = {
    "causal": Claim(
        title="With a causal mask: the same rate, a larger constant",
        says="Since the paper: causal attention has a limit, too (arXiv 2605.09213). Averaged over "
        "positions it converges at the same rate, with a larger constant.",
        uses=("causal",),
        judge=judge_causal,
        draw=draw_causal,
    ),
    "downstream": Claim(
        title="The slowdown shows in downstream accuracy",
        says="The slow convergence of attention over n tokens is reflected in the accuracy of "
        "downstream tasks (third version of the paper).",
        uses=("downstream",),
        judge=judge_downstream,
        draw=draw_downstream,
    ),
}
