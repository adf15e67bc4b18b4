"""The check: planned and uniform budgets and published rules on held-out text, against dense.

All of them keep the same number of bytes. ``planned`` and ``uniform`` choose tokens inside a head
in the same way and differ in the budgets alone; published rules have scores and budgets of their
own, and forget what they do not keep. They know nothing of bits: each is tried with 8 and with 4
(the same bytes in 16 bits hold half as many tokens, and are no closer to dense), and has what is
closer. Layers with a sliding window are left alone by all.

The dense prefix of a passage is read once; only the tokens after it are read again, with a cache
that holds what a configuration keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.core.variables import joined
from esscher.engine.attention.bits import ALL_BITS, ENTRY_BYTES, EXACT, Bits, list_bytes
from esscher.engine.cache.cache import ObservedPrompt
from esscher.engine.cache.published import RULES, Rule
from esscher.engine.cache.selection import reduced_attention, select_keys
from esscher.engine.cache.storage import Kept
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.reading import PassageReader, compare_laws, surprise
from esscher.engine.text.items import TaskItem, article_items, ask
from esscher.engine.text.questions import Article, QuestionsRecord, squad_scores
from esscher.math.statistics.intervals import mean_bounds, replicates_needed, wilson
from esscher.studies.plan.predict import Budgets
from esscher.studies.plan.study import (
    FACTOR,
    ArticleCell,
    ItemCell,
    PassageCell,
    PlanData,
    PlanSettings,
)

#: What is kept of a prompt, by layer and key head.
KeptLayers: TypeAlias = dict[int, list[Kept]]
#: Name of a text, and its number: the samples of another one are others.
Named: TypeAlias = tuple[str, int]
#: Name of the passages of a check.
PURPOSE = "plan check"
#: Bits that are tried for published rules.
RULE_BITS = ((8, 8), (4, 4))
#: Divergences below this are rounding, and count as equal.
ROUNDING = 1e-9
#: A task on which the dense model scores less than this is one that it cannot do.
PASSES = 0.5


def kept_by_budgets(
    budgets: Budgets, prompt: ObservedPrompt, named: Named, seed: int
) -> KeptLayers:
    """Return what budgets keep of a prompt, by layer and key head."""
    out: KeptLayers = {}
    for layer, scores in prompt.scores.items():
        out[layer] = [
            select_keys(
                budgets.selection,
                head,
                prompt.certain,
                int(budgets.tokens[layer, g]),
                float(budgets.powers[layer, g]),
                sample_start(named, seed, layer, g),
            ).in_codes(bits_of(budgets.bits[layer, g]), prompt.certain)
            for g, head in enumerate(scores)
        ]
        if budgets.selection == "fitted":
            out[layer] = prompt.fit(layer, out[layer])
    return out


def sample_start(named: Named, seed: int, layer: int, g: int) -> float:
    """The randomness of the sample of a key head, in [0, 1)."""
    return float(random_stream(seed, *named, layer, g).random())


def kept_layers(
    prompt: ObservedPrompt,
    budgets: Mapping[str, Budgets],
    rules: Sequence[Rule],
    named: Named,
    seed: int,
) -> dict[str, KeptLayers]:
    """Return what every configuration keeps of a prompt.

    Parameters
    ----------
    prompt
        The prompt, which the rules have scored.
    budgets
        Those of the plan, ``planned``, and equal ones, ``uniform``.
    rules
        Published rules.
    named
        Name and number of the prompt.
    seed
        Seed of the samples.
    """
    out = {name: kept_by_budgets(each, prompt, named, seed) for name, each in budgets.items()}
    exact = bool((budgets["planned"].bits == EXACT).all())
    nbytes = float(budgets["planned"].nbytes[list(prompt.scores)].mean())
    for rule in rules:
        for bits in (EXACT,) if exact else RULE_BITS:
            name = rule.name if exact else f"{rule.name} {bits[0]}"
            entry = ENTRY_BYTES[prompt.loaded.weights]
            out[name] = kept_by_rule(rule, prompt, prompt.certain, nbytes, bits, entry)
    return out


def kept_by_rule(
    rule: Rule,
    prompt: ObservedPrompt,
    certain: NDArray[np.bool_],
    nbytes: float,
    bits: Bits,
    entry: int,
) -> KeptLayers:
    """Return what a published rule keeps of a prompt in so many bytes per key head.

    Tokens that others keep for certain stay as they are if the rule keeps them, an entry of so many
    bytes. It needs no weights, which are not counted.
    """
    scores, count = prompt.rule_scores[rule.name], len(certain)
    tokens, width = np.arange(count + 1), prompt.loaded.shape.head_dim
    sizes = list_bytes(tokens, int(certain.sum()), count, width, entry, bits, weighted=False)
    kept = rule.keep(list(scores.values()), int(tokens[sizes <= nbytes].max()))
    return {
        layer: [Kept(i, torch.zeros(len(i))).in_codes(bits, certain) for i in heads]
        for layer, heads in zip(scores, kept, strict=True)
    }


def bits_of(pair: NDArray[np.int64]) -> Bits:
    """Bits of keys and values as whole numbers."""
    return int(pair[0]), int(pair[1])


def count_kept(kept: KeptLayers) -> int:
    """Tokens that are kept in all layers and key heads together."""
    return sum(len(head.index) for layer in kept.values() for head in layer)


def _counts(prompt: ObservedPrompt, kept: Mapping[str, KeptLayers]) -> list[int]:
    """Tokens that dense and every configuration keep."""
    dense = sum(scores.numel() for scores in prompt.scores.values())
    return [dense, *map(count_kept, kept.values())]


def passage_cell(
    prompt: ObservedPrompt,
    reader: PassageReader,
    budgets: Mapping[str, Budgets],
    rules: Sequence[Rule],
    seed: int,
) -> xr.Dataset:
    """Measure all configurations on one passage; parameters are those of :func:`kept_layers`."""
    number, shape = reader.passage.number, prompt.loaded.shape
    kept = kept_layers(prompt, budgets, rules, (PURPOSE, number), seed)
    dense = reader.read(lambda inputs: None)
    data = PassageCell.new(
        passage=[number],
        configuration=["dense", *kept],
        layer=range(shape.layers),
        key_head=range(shape.key_heads),
        query=range(shape.heads // shape.key_heads),
    )
    ends = [{"kl": 0.0, "top1": 1.0, "nll": surprise(dense.end, reader.next_tokens)}]
    errors, sizes = [[0.0] * shape.layers], [prompt.dense_nbytes]
    for name, layers in kept.items():
        cache = prompt.reduced(layers)
        sizes.append(cache.nbytes)
        if name not in budgets:  # weights that are all 1 are stored nevertheless
            heads = [head for layer in layers.values() for head in layer]
            sizes[-1] -= sum(4 * len(head.index) - 2 * head.coded for head in heads)
        reduced = reader.read(lambda inputs: None, cache)
        ends.append(compare_laws(dense.end, reduced.end, reader.next_tokens))
        errors.append([])
        for exact, output in zip(dense.attention, reduced.attention, strict=True):
            exact, output = exact[:, reader.query_rows], output[:, reader.query_rows]
            difference = torch.linalg.vector_norm((output - exact).double())
            errors[-1].append(float(difference / torch.linalg.vector_norm(exact.double())))
    for measure in ("kl", "top1", "nll"):
        setattr(data, measure, [[float(end[measure]) for end in ends]])
    data.error, data.kept, data.nbytes = [errors], [_counts(prompt, kept)], [sizes]
    realised = head_errors(prompt, reader, kept["planned"])
    data.realised_error = realised.reshape(1, shape.layers, shape.key_heads, -1)
    return data.dataset


def head_errors(prompt: ObservedPrompt, reader: PassageReader, kept: KeptLayers) -> Array:
    """Relative error of each head's output when only it is reduced, [layers, heads].

    It is 0 where nothing is reduced: in layers with a sliding window, and where all keys are kept.
    """
    errors: list[Array] = []
    keys = len(prompt.certain)

    def measure(inputs: LayerInputs) -> None:
        if inputs.window is not None:
            errors.append(np.zeros(inputs.q.shape[1]))
            return
        exact = inputs.original()[0].to(torch.float32)
        difference = reduced_attention(inputs, kept[inputs.layer], keys) - exact
        # with all keys the difference is rounding, not an error
        whole = torch.tensor([len(x.index) == keys and not x.coded for x in kept[inputs.layer]])
        difference[whole.repeat_interleave(inputs.group)] = 0.0
        square = difference.square().sum(-1).mean(-1)
        norm = exact.square().sum(-1).mean(-1)
        errors.append((square / norm).sqrt().double().cpu().numpy())

    reader.read(measure)
    return np.stack(errors)


def item_cell(
    loaded: LoadedModel, item: TaskItem, budgets: Mapping[str, Budgets], settings: PlanSettings
) -> xr.Dataset:
    """Ask the question of an item with a dense cache, and with those of all configurations."""
    rules = [RULES[name] for name in settings.against]
    prompt = ObservedPrompt(loaded, item.context, settings.keeping, settings.score, rules)
    named = f"task {item.task} {item.haystack}", item.number
    kept = kept_layers(prompt, budgets, rules, named, settings.seed)
    reduced = ask(loaded, prompt.reduced(*kept.values()), item, len(kept))
    replies = [*ask(loaded, prompt.cache, item), *reduced]
    data = ItemCell.new(item=[item.number], configuration=["dense", *kept])
    texts, scores, chances = zip(*replies, strict=True)
    data.reply, data.score, data.log_probability = [texts], [scores], [chances]
    data.kept = [_counts(prompt, kept)]
    data.haystack, data.answer = [item.haystack], [item.answer]
    return data.dataset


def article_cell(
    loaded: LoadedModel,
    article: Article,
    budgets: Mapping[str, Budgets],
    chosen: Mapping[str, str],
    settings: PlanSettings,
) -> xr.Dataset:
    """Read an article, reduce its cache, and only then ask all questions about it.

    Parameters
    ----------
    loaded, article, settings
        A decoder, the article with its questions, and the settings of the plan.
    budgets
        Of a prefix; they are scaled to the article.
    chosen
        Names of configurations, and those with the bits in which they do best: :func:`best_bits`.
    """
    rules, items = [RULES[name] for name in settings.against], article_items(loaded, article)
    prompt = ObservedPrompt(loaded, items[0].context, settings.keeping, settings.score, rules)
    scaled = scaled_budgets(budgets, settings.prefix, prompt)
    every = kept_layers(prompt, scaled, rules, (f"questions {article.title}", 0), settings.seed)
    kept = {variant: every[variant] for name, variant in chosen.items() if name != "dense"}
    cache = prompt.reduced(*kept.values())
    data = ArticleCell.new(question=range(len(items)), configuration=chosen)
    replies = []
    for item in items:
        asked = [*ask(loaded, prompt.cache, item), *ask(loaded, cache, item, len(kept))]
        replies.append(
            [(text, chance, *squad_scores(text, item.answers)) for text, _, chance in asked]
        )
    texts, *numbers = np.moveaxis(np.array(replies, dtype=object), -1, 0)
    data.reply, (data.answer_probability, data.exact_match, data.f1) = texts, numbers
    data.asked = [question for question, _ in article.questions]
    data.answer = [item.answer for item in items]
    return data.dataset


def scaled_budgets(
    budgets: Mapping[str, Budgets], prefix: int, prompt: ObservedPrompt
) -> dict[str, Budgets]:
    """Budgets of a prompt of any length: ``planned`` as shares of it, as in the cache of a plan.

    Each key head of ``uniform`` has as many bytes as these have on average.
    """
    certain, count, loaded = int(prompt.certain.sum()), len(prompt.certain), prompt.loaded
    planned, uniform = budgets["planned"], budgets["uniform"]
    every, width, entry = np.arange(count + 1), loaded.shape.head_dim, ENTRY_BYTES[loaded.weights]
    tokens = np.ceil(planned.tokens * (count / prefix) - 1e-9).astype(np.int64)
    tokens = tokens.clip(min(certain + 1, count), count)
    nbytes, equal = np.zeros_like(tokens), tokens.copy()
    sizes = {bits: list_bytes(every, certain, count, width, entry, bits) for bits in ALL_BITS}
    for place in np.ndindex(tokens.shape):
        nbytes[place] = sizes[bits_of(planned.bits[place])][tokens[place]]
    each = int(nbytes[list(prompt.scores)].mean())
    for place in np.ndindex(tokens.shape):
        fits = sizes[bits_of(uniform.bits[place])] <= each
        equal[place] = np.flatnonzero(fits).max(initial=certain)
    return {
        "planned": planned._replace(tokens=tokens, nbytes=nbytes),
        "uniform": uniform._replace(tokens=equal, nbytes=np.full_like(nbytes, each)),
    }


# From cells to numbers with intervals, and the verdict.
#
# Passages are the independent units: means have Student's interval over them, and configurations
# are compared by the paired logarithm of their ratio, passage by passage: an interval that lies on
# one side of 0 decides.


def set_check(
    data: PlanData, cells: Sequence[xr.Dataset], tasks: Mapping[str, Sequence[xr.Dataset]]
) -> None:
    """Set the variables of a check.

    Parameters
    ----------
    data
        The result: a plan with predicted errors, whose axes have the labels of the check.
    cells
        One per passage.
    tasks
        Items by task.
    """
    measured = joined(cells, "passage")
    chosen = best_bits(measured)
    passages = PassageCell(_with_bits(measured, chosen))
    mixed = "by head" if np.any(data.key_bits < 16) or np.any(data.value_bits < 16) else "16"
    data.bits = [
        "16" if name == "dense" else variant.partition(" ")[2] or mixed
        for name, variant in chosen.items()
    ]
    data.passage_kl = passages.kl
    data.kept = passages.kept.isel(passage=0, drop=True)
    kl, top1, nll = (
        np.ascontiguousarray(x.values.T) for x in (passages.kl, passages.top1, passages.nll)
    )
    errors = np.ascontiguousarray(passages.error.values.swapaxes(0, 1))
    data.kl = [mean_bounds(x, 0.0) for x in kl]
    data.top1 = [mean_bounds(x, 0.0, 1.0) for x in top1]
    data.perplexity = [np.exp(mean_bounds(x)) for x in nll]
    data.perplexity_ratio = [np.exp(mean_bounds(x - nll[0])) for x in nll]
    data.error = [mean_bounds(x.mean(axis=1), 0.0) for x in errors]
    data.layer_error = [mean_bounds(x, 0.0) for x in errors]
    _set_verdict(data, np.maximum(kl, ROUNDING))
    nbytes = passages.nbytes.values.mean(axis=0)
    data.dense_bytes, data.bytes_share = nbytes[0], nbytes / nbytes[0]
    data.realised_error = root_mean_square(passages.realised_error)
    predicted, realised = (
        x.sel(bound="value").values for x in (data.predicted_error, data.realised_error)
    )
    known = (predicted > 0) & (realised > 0)
    if known.any():
        ratio = realised[known] / predicted[known]
        data.within_factor = np.mean((ratio < FACTOR) & (ratio > 1 / FACTOR))
        data.median_ratio = np.median(ratio)
    if tasks:
        items = {task: _with_bits(joined(rows, "item"), chosen) for task, rows in tasks.items()}
        _set_tasks(data, {task: ItemCell(rows) for task, rows in items.items()})


def best_bits(passages: xr.Dataset) -> dict[str, str]:
    """Names of configurations, and what was measured for each: published rules have several bits.

    Of these that is taken which is closest to dense, by the geometric mean over passages.
    """
    logs = dict(
        zip(
            passages["configuration"].values.tolist(),
            np.log(np.maximum(passages["kl"].values, ROUNDING)).mean(axis=0).tolist(),
            strict=True,
        )
    )
    out: dict[str, str] = {}
    for variant in logs:
        name = variant.partition(" ")[0]
        if name not in out or logs[variant] < logs[out[name]]:
            out[name] = variant
    return out


def _with_bits(data: xr.Dataset, chosen: Mapping[str, str]) -> xr.Dataset:
    """What was measured with the bits that were chosen."""
    data = data.sel(configuration=list(chosen.values()))
    return data.assign_coords(configuration=list(chosen))


def _set_verdict(data: PlanData, kl: Array) -> None:
    """Compare distances from dense, [configurations, passages], dense being the first."""
    names = data.kept["configuration"].values.tolist()
    distances = dict(list(zip(names, kl, strict=True))[1:])
    planned, best = distances["planned"], closest(distances)
    missing = np.full(3, np.nan)
    ratios = {name: paired_ratio(x, planned) for name, x in distances.items()}
    over = {name: paired_ratio(x, distances[best[0]]) for name, x in distances.items()}
    ratios["planned"], over[best[0]] = missing, np.array([1.0, np.nan, np.nan])
    data.over_planned = [ratios.get(name, missing) for name in names]
    data.over_best = [over.get(name, missing) for name in names]
    data.closest = [name in best for name in names]
    verdict = verdict_of(ratios["uniform"])
    data.verdict = verdict
    if verdict == "undecided":
        data.passages_needed = passages_needed(distances["uniform"], planned)


def _set_tasks(data: PlanData, items: Mapping[str, ItemCell]) -> None:
    """Set scores of all tasks, and totals over those that the dense model can do."""
    can = [
        task
        for task, cell in items.items()
        if cell.score.sel(configuration="dense").values.mean() >= PASSES
    ]
    groups = [[cell] for cell in items.values()] + [[items[task] for task in can]]
    count = data.dataset.sizes["configuration"]
    scores = np.full((len(groups), count, 3, 3), np.nan)
    for row, group in enumerate(groups):
        if not group:  # no totals
            continue
        right, logs = (
            np.ascontiguousarray(np.concatenate(parts).T)
            for parts in (
                [cell.score.values for cell in group],
                [cell.log_probability.values for cell in group],
            )
        )
        for i, (score, log) in enumerate(zip(right, logs, strict=True)):
            scores[row, i, 0] = score.mean(), *wilson(float(score.sum()), len(score))
            scores[row, i, 1] = mean_bounds(log, highest=0.0)
            scores[row, i, 2] = mean_bounds(log - logs[0]) if i else np.nan
    data.score, data.log_probability, data.over_dense = np.moveaxis(scores, 2, 0)
    data.items = [sum(cell.score.sizes["item"] for cell in group) for group in groups]
    data.dense_can = [*(task in can for task in items), bool(can)]


def set_questions(data: PlanData, cells: Sequence[xr.Dataset], questions: QuestionsRecord) -> None:
    """Set what became of questions about articles, one cell per article."""
    answered, about = ArticleCell(joined(cells, "question")), np.array(questions.about)
    data.article = [questions.titles[i] for i in about]
    data.asked, data.answer = answered.asked.values, answered.answer.values
    data.reply, data.reply_f1 = answered.reply.values, answered.f1.values
    for name in ("exact_match", "f1", "answer_probability"):
        values = answered.dataset[name].values
        over = values[:, :, None] - values[:, None, :2]
        over[:, [0, 1], [0, 1]] = np.nan
        mean = mean_bounds(over_articles(values, about))
        if name != "answer_probability":  # not surer than if questions were independent
            ends = np.array([wilson(x.sum(), len(x)) for x in values.T])
            mean[:, 1] = np.fmin(mean[:, 1], ends[:, 0]).clip(0.0)
            mean[:, 2] = np.fmax(mean[:, 2], ends[:, 1]).clip(max=1.0)
        difference = mean_bounds(over_articles(over, about))
        # where no reply differs, nothing is known of the spread
        difference[difference[..., 1] == difference[..., 2], 1:] = np.nan
        setattr(data, name, mean)
        setattr(data, f"{name}_over", difference)


def over_articles(values: Array, about: NDArray[np.int64]) -> Array:
    """Independent numbers with the mean of [questions, ...]: one per article, if there are several.

    Articles have different numbers of questions: theirs are the terms of the error of a ratio.
    """
    counts = np.bincount(about)
    if len(counts) == 1:
        return values
    mean = values.mean(axis=0)
    sums = [(values[about == article] - mean).sum(axis=0) for article in range(len(counts))]
    terms: Array = mean + np.stack(sums) / counts.mean()
    return terms


def root_mean_square(errors: xr.DataArray) -> Array:
    """Relative errors of heads over passages, [layers, key heads, query heads, bound]."""
    root: Array = np.sqrt(mean_bounds(errors.values**2, 0.0))
    return root


def paired_ratio(over: Array, under: Array) -> Array:
    """How many times larger distances are than others on the same passages, with interval."""
    ratio: Array = np.exp(mean_bounds(np.log(over / under)))
    return ratio


def verdict_of(ratio: Array) -> str:
    """Judge the plan by the ratio of the distance of another configuration to its own."""
    _, low, high = ratio
    if low > 1:
        return "better"
    return "worse" if high < 1 else "undecided"


def passages_needed(over: Array, under: Array) -> int | None:
    """Passages in all with which a check would decide in 4 of 5 cases.

    See :func:`replicates_needed`: m is the mean and s the spread of the paired logarithms of the
    ratio. None if there is no spread yet, or if m is so small that no reasonable number decides.
    """
    logs = np.log(over / under)
    if len(logs) < 2:
        return None
    return replicates_needed(float(logs.mean()), float(logs.std(ddof=1)))


def closest(distances: Mapping[str, Array]) -> list[str]:
    """Names of the configurations closest to dense, the closest first.

    More than one if the passages cannot tell them from the closest.
    """
    order = sorted(distances, key=lambda name: float(np.log(distances[name]).mean()))
    first = distances[order[0]]
    return [
        name
        for name in order
        if name == order[0] or verdict_of(paired_ratio(distances[name], first)) != "better"
    ]
