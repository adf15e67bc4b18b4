"""Accuracy of whole models whose attention sees n keys.

Every layer of a model attends to n keys, drawn with replacement (the paper's
protocol: no finite-population factor bends the curve) and new in every layer; the first token,
delimiters and a decoder's last tokens, which ask, are kept for certain. The loss is the share of
answers that differ from the dense model's: a decoder's next token, the nearest neighbour of an
encoder's embedding among other texts, and the class that a linear classifier gives it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
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
    exponential,
    joint_verdict,
    judged,
    student_interval,
    verdict_of,
    with_interval,
)

if TYPE_CHECKING:
    import pandas as pd
    from altair.typing import ChartType
    from torch import Tensor

    from esscher.engine.reading import PassageReader

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
    from esscher.engine.text.packing import first_passages

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
            answers = _end(reader, drawn).argmax(dim=-1)
            differs, right = ((answers != dense), (answers == truth))
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

        from esscher.studies.deep.sampling import sampled_attention

        seed, purpose, text, draw = self._key
        stream = random_stream(seed, purpose, text, draw, inputs.layer)
        drawn = self._others[stream.integers(len(self._others), size=self._n)]
        times = torch.from_numpy(np.bincount(drawn, minlength=len(self._certain)))
        return sampled_attention(inputs, torch.from_numpy(self._certain), times)


def _end(reader: PassageReader, attention: SampledKeys | None) -> Tensor:
    """What the model says at its end, with sampled attention or its own."""
    import torch

    from esscher.engine.models.capture import attention_override

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
    from esscher.engine.text.documents import Document, language_reference, standard_library
    from esscher.engine.text.packing import passages

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
            pieces = list(islice(stream, 2))
            if len(pieces) == 2 and taken < PER_CLASS:
                readers.append(PassageReader(loaded, pieces[1], 0))
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
            name: exponential(interval(level + power * far - logs[:, -1]))
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
        rows = table[table["task"] == task]
        sizes = np.sort(rows["n"].unique())
        grids = {
            name: rows.groupby(["text", "n"])[name].mean().unstack().to_numpy()
            for name in ("loss", "accuracy", "dense_accuracy")
        }
        first = plan.token_first if task == TOKEN else plan.text_first
        fitted = (sizes >= first) & (sizes <= sizes[-1] / BEYOND)
        least = 0.5 / (float(rows["answers"].sum()) / len(sizes))
        law = extrapolate(grids["loss"], sizes, fitted, least, setting.seed, index)
        # what changes from the last size to the first, text by text
        change = student_interval(grids["loss"][:, 0] - grids["loss"][:, -1])
        drop = student_interval(grids["dense_accuracy"][:, 0] - grids["accuracy"][:, 0])
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
            loss, low, high = student_interval(grids["loss"][:, j])
            right, right_low, right_high = student_interval(grids["accuracy"][:, j])
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
            measured="share of answers that differ from the dense model's, smallest n minus "
            "largest: " + ", ".join(words["change"]),
            rule="holds if all intervals (over texts) lie above 0, contradicted if one lies below",
        ),
        Check(
            says="Accuracy falls with them",
            verdict=joint_verdict(drops),
            measured="dense accuracy minus that at the smallest n: " + ", ".join(words["drop"]),
            rule="holds if all intervals (over texts) lie above 0, contradicted if one lies below",
        ),
        Check(
            says="The loss is a power of n that extrapolates by a factor of four",
            verdict=joint_verdict(hits),
            measured="; ".join(words["hit"])
            + ". Predicted over measured of other rules, in this order: "
            + "; ".join(others),
            rule="holds if every exponent's interval lies above 0 and that of predicted over "
            f"measured within a factor of {HIT:g} of 1; contradicted if one lies beyond",
        ),
        Check(
            says="The loss falls more slowly than n^-1/2",
            verdict=joint_verdict(slower),
            measured="exponents: " + ", ".join(words["slower"]),
            rule="holds if all intervals lie below 1/2, contradicted if one lies above",
            counts=False,
        ),
    ]
    short = ", ".join(
        f"{row['exponent']:.2f} ({row['low']:.2f} to {row['high']:.2f}) for {_OF[str(row['task'])]}"
        for row in fits
    )
    return judged(
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
        "more texts and draws",
        {
            "curves": pd.DataFrame(curves),
            "fits": pd.DataFrame(fits),
            "alternatives": pd.DataFrame(alternatives),
        },
    )


_OF = {TOKEN: "next tokens", NEIGHBOUR: "nearest texts", CLASS: "classes"}


def draw_downstream(entry: Entry) -> ChartType:
    """Draw losses with their power laws, and accuracies beside the dense ones."""
    from esscher.show.chart import Axis, Series, figure, guides, lines, panel, points
    from esscher.show.theme import BLUE, GREEN, VERMILION, limits

    curves = entry.rows("curves")
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
    "downstream": Measurement(downstream_units, measure_downstream)
}
CLAIMS: dict[str, Claim] = {
    "downstream": Claim(
        title="The slowdown shows in downstream accuracy",
        says="The slow convergence of attention over n tokens is reflected in the accuracy of "
        "downstream tasks (third version of the paper).",
        uses=("downstream",),
        judge=judge_downstream,
        draw=draw_downstream,
    ),
}
