"""Measurements of whole models: the causal mask, accuracy, and what other studies say.

**Causal mask.** The tokens of a decoder's head are pooled into a cloud of N triples (q, k, v), as
they enter the softmax: rotated to the positions that they had, without delimiters and first tokens.
Of this cloud n tokens are drawn with replacement, in random order, so that tokens are i.i.d. and
the limit of attention, with and without a mask, is exactly dense attention over the cloud. (In a
real passage keys depend on the position, and there is no such limit to compare with.) Without a
mask every token attends to all n; with it, token i attends to the first i. Two errors are looked
at:

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

**Accuracy.** Every layer of a model attends to n keys, drawn with replacement (the paper's
protocol: no finite-population factor bends the curve) and new in every layer; the first token,
delimiters and a decoder's last tokens, which ask, are kept for certain. The loss is the share of
answers that differ from the dense model's: a decoder's next token, the nearest neighbour of an
encoder's embedding among other texts, and the class that a linear classifier gives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
import xarray as xr

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.core.variables import joined
from esscher.math.statistics import LEVEL
from esscher.math.statistics.intervals import mean_bounds, slopes
from esscher.math.tails.verdict import kind_of
from esscher.studies.paper.heads import loaded_model
from esscher.studies.paper.study import (
    Answers,
    Causal,
    Depth,
    Errors,
    Heads,
    Losses,
    Measurement,
    PaperSettings,
    Patterns,
    Unit,
    by_scale,
)
from esscher.studies.paper.synthetic import geometric

if TYPE_CHECKING:
    from torch import Tensor

    from esscher.engine.reading import PassageReader

# -- the causal mask

#: Tokens of a passage from which a cloud is pooled.
CONTEXT = 512
#: Queries taken at a time.
BLOCK = 256
#: Octaves at the end of the sizes on which rates are compared.
OCTAVES = 3
WITH, WITHOUT = "with the mask", "without"
CAUSAL_METRICS = (WITH, WITHOUT, "first order, with", "first order, without", "map", "position")


def measure_causal(unit: Unit, settings: PaperSettings) -> Errors:
    """Squared errors of a head with and without the mask."""
    clouds = head_clouds(settings.decoder, settings.text, unit["heads"], unit["tokens"])
    sizes, replicates, head = unit["sizes"], unit["replicates"], unit["head"]
    return causal_errors(*clouds[head], sizes, replicates, settings.seed, head)


@lru_cache(maxsize=1)
def head_clouds(
    model: str, text: str, heads: int, tokens: int
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Tilts, keys and values of some heads, spread over the layers of a model."""
    import torch

    from esscher.engine.text.collect import iterate_passages
    from esscher.engine.text.packing import first_passages

    loaded = loaded_model(model)
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
    clouds = []
    for of_head in parts.values():
        q, k, v = (torch.cat(part)[:tokens].cpu() for part in zip(*of_head, strict=True))
        clouds.append((q, k, v))
    return clouds


def causal_errors(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sizes: Sequence[int],
    replicates: int,
    seed: int,
    head: int = 0,
) -> Errors:
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
    Errors
        By metric (``CAUSAL_METRICS``): of the mean output with and without the mask, and the
        first-order part of both; of outputs without the mask, the mean over queries; of outputs
        with it, at the second half of positions. The first-order parts have exact expectations.
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
    errors = np.empty((1, len(CAUSAL_METRICS), replicates, len(sizes)))
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
        for j, n in enumerate(sizes):
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
            errors[0, :, replicate, j] = (
                causal[n],
                float((total / n).square().sum()),
                *(float(((first[at] + part[at]) / n).square().sum()) for part in (outer, inner)),
                float(gap / n),
                float(gaps[n // 2 : n].mean()),
            )
    data = Errors.new(item=[head], metric=CAUSAL_METRICS, replicate=range(replicates), size=sizes)
    data.error = errors
    at_sizes = np.asarray(sizes)
    expected = np.full((1, len(CAUSAL_METRICS), len(sizes)), np.nan)
    expected[0, 2] = (g_part + (2 - harmonic[at_sizes - 1] / at_sizes) * psi_part) / at_sizes
    expected[0, 3] = (g_part + psi_part) / at_sizes
    data.expected = expected
    return data


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


def exponential(values: Array) -> Array:
    """Exponentials of means and of the ends of their intervals; NaN for an end beyond numbers."""
    with np.errstate(over="ignore"):
        result = np.exp(values)
    return np.where(np.isinf(result), np.nan, result)


def summarise_causal(
    units: Sequence[Unit], cells: Sequence[xr.Dataset], settings: PaperSettings
) -> Causal:
    """Rates and constants with and without the mask; heads are the units of intervals."""
    raw = Errors(joined(cells, "item"))
    sizes, expected = raw.dataset["size"].values, raw.expected.values[:, 2:4]
    # of axes [head, curve, replicate, size], and those of the map and of positions without curves
    square, control = raw.error.values[:, :2], raw.error.values[:, 2:4]
    map_square, position_square = raw.error.values[:, 4], raw.error.values[:, 5]
    means = [controlled_means(square[:, c], control[:, c], expected[:, c]) for c in (0, 1)]
    logs, first = 0.5 * np.log(np.stack(means, axis=1)), 0.5 * np.log(expected)
    ratios, limits = logs[:, 0] - logs[:, 1], first[:, 0] - first[:, 1]
    # without a mask, mean over i keys for i from n/2 to n: between sizes a power of i
    dense = map_square.mean(axis=1)
    powers = np.diff(np.log(dense), axis=1) / np.diff(np.log(sizes))
    among = np.empty_like(powers)
    for j, n in enumerate(sizes[1:].tolist()):
        shares = np.arange(n // 2 + 1, n + 1) / n
        for i, power in enumerate(powers[:, j].tolist()):
            among[i, j] = np.mean(shares**power) * dense[i, j + 1]
    places = 0.5 * np.log(position_square.mean(axis=1)[:, 1:] / among)

    data = Causal.new(curve=[WITH, WITHOUT], size=sizes)
    late = sizes >= sizes[-1] / 2**OCTAVES
    exponents = -slopes(np.log(sizes), logs)
    late_exponents = -slopes(np.log(sizes[late]), logs[:, :, late])
    data.difference = mean_bounds(exponents[:, 0] - exponents[:, 1])
    data.late_difference = mean_bounds(late_exponents[:, 0] - late_exponents[:, 1])
    unit = 0.5 * np.log(sizes) + first[:, 1]  # the constant without mask, to first order
    data.error = exponential(mean_bounds(logs - unit[:, None]))
    data.ratio = exponential(mean_bounds(ratios))
    data.first_ratio = np.exp(limits.mean(axis=0))
    position = exponential(mean_bounds(places))
    data.position = np.concatenate([np.full((1, 3), np.nan), position])
    data.position_ratio = exponential(mean_bounds(places.mean(axis=1)))
    data.against_first = exponential(mean_bounds(ratios[:, -1] - limits[:, -1]))
    data.heads, data.tokens = len(ratios), units[0]["tokens"]
    return data


# -- accuracy

#: Families of texts that the linear classifier tells apart: packages of the standard library, and
#: the language reference (demo:docs).
CLASSES = ("asyncio", "email", "importlib", "multiprocessing", "unittest", "xml", "docs")
#: Texts at most of a class, and texts of a unit.
PER_CLASS, TOGETHER = 16, 5
#: Ridge of the classifier, for embeddings of length 1.
RIDGE = 1.0
#: Sizes up to the last one over this are fitted; the last one is predicted.
BEYOND = 4
RESAMPLES = 2000
TOKEN, NEIGHBOUR, CLASS = "next token", "nearest text", "class"
TASKS = (TOKEN, NEIGHBOUR, CLASS)
#: Exponents of the laws that predict the loss at the last size, by name.
RULES = ("fitted", "1/2", "1", "no change")


def measure_tokens(unit: Unit, settings: PaperSettings) -> Answers:
    """Next tokens of a decoder on one passage, against the dense model's and the text's."""
    from esscher.engine.reading import PassageReader
    from esscher.engine.text.packing import first_passages

    number, sizes, draws = unit["passage"], unit["sizes"], range(unit["draws"])
    loaded = loaded_model(settings.decoder)
    context = min(unit["context"], loaded.max_positions)
    passage = first_passages(loaded, settings.text, unit["passages"], context)[number]
    reader = PassageReader(loaded, passage, context - unit["queries"])
    certain = passage.is_delimiter.copy()
    certain[0] = True
    certain[reader.prefix :] = True
    truth = reader.next_tokens
    dense = _end(reader, None).argmax(dim=-1)
    data = Answers.new(task=[TOKEN], item=[number], draw=draws, size=sizes)
    loss, accuracy = np.empty((2, 1, 1, len(draws), len(sizes)))
    for draw in draws:
        for j, n in enumerate(sizes):
            drawn = sampled_keys(certain, (settings.seed, "downstream tokens", number, draw), n)
            answers = _end(reader, drawn).argmax(dim=-1)
            loss[0, 0, draw, j] = float((answers != dense).double().mean())
            accuracy[0, 0, draw, j] = float((answers == truth).double().mean())
    data.loss, data.accuracy = loss, accuracy
    data.dense_accuracy, data.answers = [[float((dense == truth).double().mean())]], [[len(truth)]]
    return data


def measure_texts(unit: Unit, settings: PaperSettings) -> Answers:
    """Nearest texts and classes of some texts' embeddings, against those of dense ones."""
    start, sizes, draws = unit["start"], unit["sizes"], range(unit["draws"])
    texts = labelled_texts(settings.encoder, unit["context"])
    # texts that ask are spread over the classes
    asking = np.linspace(0, len(texts.labels) - 1, min(unit["texts"], len(texts.labels)))
    numbers = asking.round().astype(int)[start : start + TOGETHER].tolist()
    data = Answers.new(task=[NEIGHBOUR, CLASS], item=numbers, draw=draws, size=sizes)
    loss, accuracy = np.empty((2, 2, len(numbers), len(draws), len(sizes)))
    dense = np.empty((2, len(numbers)))
    for i, number in enumerate(numbers):
        reader, label = texts.readers[number], texts.labels[number]
        neighbour, named = texts.answers(number, texts.embeddings[number])
        dense[:, i] = texts.labels[neighbour] == label, named == label
        certain = reader.passage.is_delimiter.copy()
        certain[0] = True
        for draw in draws:
            for j, n in enumerate(sizes):
                key = (settings.seed, "downstream texts", number, draw)
                drawn = sampled_keys(certain, key, n)
                sampled = _end(reader, drawn).double().numpy()
                near, name = texts.answers(number, sampled / np.linalg.norm(sampled))
                loss[:, i, draw, j] = near != neighbour, name != named
                accuracy[:, i, draw, j] = texts.labels[near] == label, name == label
    data.loss, data.accuracy, data.dense_accuracy = loss, accuracy, dense
    data.answers = np.ones(dense.shape, int)
    return data


def sampled_keys(certain: Any, key: tuple[Any, ...], n: int) -> Callable[[Any], Tensor]:
    """Attention to keys that are kept for certain and n draws of the others, new in every layer.

    Draws are a function of the key (a seed, a purpose and numbers) and the layer; those of n are
    the first n of them.
    """
    import torch

    from esscher.studies.deep.sampling import sampled_attention

    others = np.flatnonzero(~certain)

    def attention(inputs: Any) -> Tensor:
        stream = random_stream(*key, inputs.layer)
        drawn = others[stream.integers(len(others), size=n)]
        times = torch.from_numpy(np.bincount(drawn, minlength=len(certain)))
        return sampled_attention(inputs, torch.from_numpy(certain), times)

    return attention


def _end(reader: PassageReader, attention: Callable[[Any], Tensor] | None) -> Tensor:
    """Output of the model at its end, with sampled attention or its own."""
    import torch

    from esscher.engine.models.capture import attention_override

    with torch.no_grad():
        if attention is None:
            return reader.end()
        with attention_override(reader.loaded, attention):
            return reader.end()


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
    from esscher.engine.text.documents import Document, language_reference, standard_library
    from esscher.engine.text.packing import passages

    loaded = loaded_model(model)
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
            pieces = list(islice(stream, 2))
            if len(pieces) == 2 and taken < PER_CLASS:
                readers.append(PassageReader(loaded, pieces[1], 0))
                labels.append(label)
                taken += 1
    dense = [_end(reader, None).double().numpy() for reader in readers]
    embeddings = np.array([embedding / np.linalg.norm(embedding) for embedding in dense])
    classifiers = []
    targets = np.eye(len(CLASSES))[labels]
    for half in (1, 0):  # of the texts that it is fitted to
        x, y = embeddings[half::2], targets[half::2]
        centre, mean = x.mean(axis=0), y.mean(axis=0)
        gram = (x - centre).T @ (x - centre) + RIDGE * np.eye(x.shape[1])
        weights = np.linalg.solve(gram, (x - centre).T @ (y - mean))
        classifiers.append((weights, mean - centre @ weights))
    return LabelledTexts(tuple(readers), tuple(labels), embeddings, tuple(classifiers))


def extrapolate(
    losses: Array, sizes: Array, fitted: Array, least: float, seed: int, index: int = 0
) -> tuple[Array, float, Array]:
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

    Returns
    -------
    The exponent with its interval, [bound]; the constant C; and the loss at the last size,
    predicted over measured, [rule, bound]: with the fitted exponent, with 1/2, 1 and 0.
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

    def interval(values: Array) -> Array:
        half = quantile * float(values[1:].std())
        return np.asarray(values[0] + np.array([0.0, -half, half]))

    powers: tuple[Any, ...] = (slope, -0.5, -1.0, 0.0)
    predicted = [interval(level + power * far - logs[:, -1]) for power in powers]
    constant = float(np.exp(level[0] - slope[0] * (weights @ x)))
    return interval(-slope), constant, exponential(np.array(predicted))


def summarise_answers(
    units: Sequence[Unit], cells: Sequence[xr.Dataset], settings: PaperSettings
) -> Losses:
    """Losses and accuracies with intervals over texts, and power laws that are extrapolated."""
    raw, first = Answers(joined(cells, "item")), units[0]["first"]
    sizes, tasks = raw.dataset["size"].values, raw.dataset["task"].values.tolist()
    fitted = (sizes >= first) & (sizes <= sizes[-1] / BEYOND)
    data = Losses.new(task=tasks, size=sizes, rule=RULES)
    losses, accuracies = (array.mean("draw").values for array in (raw.loss, raw.accuracy))
    dense, answers = raw.dense_accuracy.values, raw.answers.values
    laws = []
    for i, task in enumerate(tasks):
        least = 0.5 / (float(answers[i].sum()) * raw.dataset.sizes["draw"])
        laws.append(extrapolate(losses[i], sizes, fitted, least, settings.seed, TASKS.index(task)))
    data.exponent, data.constant, data.predicted = (list(part) for part in zip(*laws, strict=True))
    data.loss = [mean_bounds(part, 0.0, 1.0) for part in losses]
    data.accuracy = [mean_bounds(part, 0.0, 1.0) for part in accuracies]
    # what changes from the last size to the first, text by text
    data.change = [mean_bounds(part[:, 0] - part[:, -1]) for part in losses]
    data.drop = [mean_bounds(dense[i] - part[:, 0]) for i, part in enumerate(accuracies)]
    data.dense_accuracy, data.fitted = dense.mean(axis=1), fitted
    data.texts = dense.shape[1]
    return data


# -- what the other studies say

PATTERNS = ("topk", "window", "bigbird")


def _data_of(
    study: Any, model: str, settings: PaperSettings, unit: Unit, text: Any = None, **options: Any
) -> xr.Dataset:
    """The data of a study with the options of a unit.

    Layers are those in the same places as layers of the models that come with the program.
    """
    loaded, options = loaded_model(model), unit | options
    if "layers" in unit:
        count, of = loaded.record.layers, 30 if loaded.outline.causal else 6
        options["layers"] = tuple(sorted({layer * count // of for layer in unit["layers"]}))
    result = study(loaded, text or settings.text, seed=settings.seed, progress=False, **options)
    data: xr.Dataset = result.data.drop_attrs()
    return data


def measure_sparse(unit: Unit, settings: PaperSettings) -> Patterns:
    """Exponents of sparse patterns beside that of a random choice of as many keys."""
    from esscher.studies.sparse import sparse

    data = _data_of(sparse, settings.decoder, settings, unit, patterns=PATTERNS)
    return Patterns(data[["exponent", "difference"]].sel(metric="map", drop=True))


def measure_depth(unit: Unit, settings: PaperSettings) -> Depth:
    """Errors by layer of a decoder whose layers attend to n keys only."""
    from esscher.studies.deep import deep

    ways = {"keys": "independent", "terciles": "none"}
    data = _data_of(deep, settings.decoder, settings, unit, **ways)
    return Depth(data[["error", "exponent"]].isel(curve=0, drop=True))


def measure_tails(unit: Unit, settings: PaperSettings) -> Heads:
    """The worst direction of every head's keys: its sub-Gaussian parameter and type of tail."""
    from esscher.studies.tails import tails

    keys = _data_of(tails, settings.encoder, settings, unit)[["proxy", "verdict"]]
    data = Heads(keys.sel(subset="text", part="both", drop=True))
    verdicts = data.verdict.values
    data.verdict = np.reshape([kind_of(verdict) for verdict in verdicts.flat], verdicts.shape)
    return data


def measure_domains(unit: Unit, settings: PaperSettings) -> Heads:
    """Tokens that each head needs for 10% error, on two corpora."""
    from esscher.studies.domains import domains

    other = "demo:code" if settings.text != "demo:code" else "demo:docs"
    texts = {"text": settings.text, "other": other}
    data = _data_of(domains, settings.encoder, settings, unit, texts)
    data = data[["share", "verdict", "effect"]].sel(statistic="tokens", drop=True)
    return Heads(data.isel(pair=0, drop=True))


#: The authors' sizes: 64 to 4,096, 20 of them.
AUTHORS = geometric(64, 4_096, 20)
OCTAVE_SIZES = [2**power for power in range(5, 17)]
SCALES: dict[str, dict[str, Unit]] = {
    "causal": by_scale(
        "head heads tokens sizes replicates",
        (range(16), 16, 1_024, OCTAVE_SIZES[:-1], 6),
        (range(24), 24, 2_048, OCTAVE_SIZES[:-1], 12),
        (range(60), 60, 4_096, OCTAVE_SIZES, 48),
    ),
    # sizes below ``first`` are not fitted: the loss is near its ceiling
    "tokens": by_scale(
        "passage passages context queries sizes draws first",
        (range(11), 11, 256, 48, [16, 64, 192, 512, 2_048], 1, 64),
        (range(32), 32, 384, 64, [16, 64, 128, 256, 512, 2_048], 1, 64),
        (range(48), 48, 4_096, 128, AUTHORS, 20, 64),
    ),
    "texts": by_scale(
        "start texts context sizes draws first",
        (range(0, 40, TOGETHER), 40, 128, [8, 32, 96, 256, 1_024], 2, 32),
        (range(0, 100, TOGETHER), 100, 128, [8, 32, 64, 128, 256, 1_024], 4, 32),
        (range(0, 100, TOGETHER), 100, 128, AUTHORS, 20, 64),
    ),
    "sparse": by_scale(
        "context passages layers query_count",
        (512, 6, [2, 12, 22], 24),
        (1_024, 12, [0, 6, 12, 18, 24, 29], 48),
        (3_000, 24, list(range(30)), 64),
    ),
    "depth": {
        "quick": {"context": 192, "passages": 8, "draws": 1},
        "standard": {"context": 384, "passages": 12, "draws": 1},
        "paper": {"context": 2_048, "passages": 32, "draws": 4},
    },
    # verdicts need heads of all layers, over which halves of the text agree
    "tails": {
        "quick": {"tokens": 4_096, "layers": [0, 3], "context": 128},
        "standard": {"tokens": 16_384, "layers": [0, 1, 2, 3, 4, 5], "context": 128},
        "paper": {"tokens": 65_536, "layers": [0, 1, 2, 3, 4, 5], "context": 128},
    },
    "domains": {
        "quick": {"layers": [1, 4], "block_tokens": 500, "blocks": 6},
        "standard": {"layers": [0, 1, 2, 3, 4, 5], "block_tokens": 2_000, "blocks": 8},
        "paper": {"layers": [0, 1, 2, 3, 4, 5], "block_tokens": 4_000, "blocks": 12},
    },
}
MEASUREMENTS = {
    "causal": Measurement(SCALES["causal"], measure_causal, summarise_causal, ("head",)),
    "tokens": Measurement(SCALES["tokens"], measure_tokens, summarise_answers, ("passage",)),
    "texts": Measurement(SCALES["texts"], measure_texts, summarise_answers, ("start",)),
    "sparse": Measurement(SCALES["sparse"], measure_sparse, ""),
    "depth": Measurement(SCALES["depth"], measure_depth, ""),
    "tails": Measurement(SCALES["tails"], measure_tails, ""),
    "domains": Measurement(SCALES["domains"], measure_domains, ""),
}
