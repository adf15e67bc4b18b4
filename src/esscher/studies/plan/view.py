"""A plan as people see it: the tables and the sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

import xarray as xr

from esscher.core.shown import between, byte_count, counted, two_digits
from esscher.core.variables import by_row, var
from esscher.engine.attention.bits import EXACT
from esscher.show.table_view import TableView
from esscher.studies.plan.result import PlanResult
from esscher.studies.plan.study import ALL, FACTOR, PlanData

TITLE = "Token budgets"
#: What the configurations of a check are called in sentences and charts.
NAMES = {
    "dense": "dense",
    "planned": "planned",
    "uniform": "uniform",
    "streaming": "StreamingLLM",
    "snapkv": "SnapKV",
    "adakv": "AdaKV",
    "kvzip": "KVzip",
}
#: How distances from dense are compared.
STATISTIC = "geometric mean over passages"
#: A number with its interval; None for one passage.
Number: TypeAlias = tuple[float, tuple[float, float] | None]
#: Variables that only tables show.
RATIO = var("", "of the prefix", "p1", name="ratio", terminal="share")
BITS = var("", "bits of keys/values", name="bits", kind="U", terminal="bits")
ANSWERS = var(
    "",
    name="answers",
    kind="U",
    terminal="right",
    help="exact matches; in brackets the log-probability of the right answer, in nats per token; "
    "all: without tasks that the dense model itself fails",
)


def number(array: xr.DataArray) -> Number:
    """Return an estimate as a number with its interval."""
    value, low, high = array.values.tolist()
    return value, None if low != low else (low, high)


def key_heads(result: PlanResult) -> xr.Dataset:
    """Return the tokens of every key head, and the errors of its worst query head.

    Samples alone have powers of their own in every head.
    """
    data, plan = PlanData(result.data), result.plan
    out = data.dataset[["tokens", "nbytes", "budget_effect"]].assign(
        ratio=data.tokens / plan.prefix,
        bits=data.key_bits.astype(str) + "/" + data.value_bits.astype(str),
    )
    if plan.selection == "sample":
        out["power"] = data.power
    out["predicted_error"] = _worst(data.predicted_error)
    out["budget_error"] = data.budget_error.max("query")
    if result.checked:
        out["realised_error"] = _worst(data.realised_error)
    return out


def _worst(errors: xr.DataArray) -> xr.DataArray:
    """The query head with the largest error, with its interval."""
    largest = errors.sel(bound="value", drop=True).fillna(0.0).argmax("query")
    return errors.isel(query=largest).drop_vars("query")


def _answers(result: PlanResult) -> xr.Dataset:
    """Right answers and log-probabilities, in words; none without questions."""
    data = PlanData(result.data)
    if not data.items.size:
        return data.dataset
    words = by_row(
        lambda score, log: "" if score[0] != score[0] else f"{score[0]:.0%} ({log[0]:.2f})",
        "bound",
        data.score,
        data.log_probability,
    )
    known = data.dense_can | (words["configuration"] != "dense")
    return data.dataset.assign(answers=words.where(known, "dense cannot").astype(str))


def _questions(result: PlanResult) -> xr.Dataset:
    """All numbers; none without questions about articles, and then there is no table."""
    data = result.data
    return data if data.sizes["question"] else data[[]]


TABLES = (
    TableView(
        "heads",
        "All key heads",
        ("layer", "key_head"),
        (
            *(PlanData.tokens, RATIO, BITS, PlanData.nbytes, PlanData.power),
            *(PlanData.predicted_error, PlanData.realised_error),
        ),
        key_heads,
        sort="tokens",
        most=12,
        caption="The plan itself is plan.json in the run's directory. Brackets are 95% intervals "
        "over passages.",
    ),
    TableView(
        "check",
        "The same number of bytes, on held-out text",
        ("configuration",),
        (
            *(PlanData.kl, PlanData.top1, PlanData.perplexity_ratio, PlanData.error),
            *(PlanData.over_planned, PlanData.over_best, PlanData.closest, PlanData.kept),
            *(PlanData.bits, PlanData.bytes_share),
        ),
        lambda result: result.data,
        keep=lambda frame: frame["configuration"] != "dense",
        least=("outputs", "top-1"),
    ),
    TableView(
        "tasks",
        "Questions about texts",
        ("task", "configuration"),
        (
            *(PlanData.score, PlanData.log_probability, PlanData.over_dense),
            *(PlanData.items, PlanData.dense_can),
        ),
        lambda result: result.data,
    ),
    TableView(
        "answers",
        "Right answers to questions about texts",
        ("configuration",),
        (ANSWERS,),
        _answers,
        page=False,
    ),
    TableView(
        "questions",
        "Your questions",
        ("configuration",),
        (
            *(PlanData.exact_match, PlanData.f1, PlanData.answer_probability),
            *(PlanData.f1_over, PlanData.exact_match_over, PlanData.answer_probability_over),
        ),
        _questions,
        caption="Every article was read, and its cache reduced, before a question was known. "
        "Brackets are 95% intervals over articles, or over questions if there is one article.",
    ),
    TableView(
        "replies",
        "Replies to your questions",
        ("question", "configuration"),
        (
            *(PlanData.article, PlanData.asked, PlanData.answer, PlanData.reply),
            PlanData.reply_f1,
        ),
        _questions,
        most=0,
    ),
)
#: What each key head would cost by the tokens that it keeps.
CURVES = TableView(
    "curves",
    "Predicted cost by tokens kept",
    ("layer", "key_head", "budget"),
    (PlanData.budget_effect, PlanData.budget_error),
    key_heads,
)


def subject(result: PlanResult) -> str:
    """Return what was measured, in a line."""
    records = result.setup.records
    names = {"calibrated": records["text"], "checked": records["check"]}
    texts = [f", {what} on {text.source}" for what, text in names.items() if text is not None]
    return f"{result.setup.model.name}{''.join(texts)}"


def headline(result: PlanResult) -> str:
    """Return what is kept, what it costs, whether the plan is worth it, and what is best."""
    data, plan = PlanData(result.data), result.plan
    sentence = (
        f"The plan keeps {100 * plan.share:.3g}% of the bytes: {kept_per_head(result)} of "
        f"{plan.prefix:,} tokens per key head{_in_bits(result)}. "
    )
    if not result.checked:
        return sentence + (
            f"Predicted KL in nats per token: {between(*number(data.predicted_kl))}, with uniform "
            f"budgets {two_digits(float(data.predicted_uniform_kl))}. Not checked: give held-out "
            "text with --check."
        )
    planned, uniform = (number(data.kl.sel(configuration=name)) for name in ("planned", "uniform"))
    return sentence + (
        f"On {_passages(result)} mean KL to dense is {between(*planned)} with the plan and "
        f"{between(*uniform)} with uniform budgets. {verdict_sentence(result)} "
        f"{advice(result)}{task_sentence(result)}{question_sentence(result)}"
    )


def kept_per_head(result: PlanResult) -> str:
    """Return the range of budgets, or the one that all have."""
    tokens = result.plan.tokens
    low, high = tokens.min(), tokens.max()
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _in_bits(result: PlanResult) -> str:
    """How many key heads have how many bits, if not all have those of the model."""
    plan = result.plan
    kinds = Counter(plan.bits_of(i, g) for i in plan.reduced for g in range(plan.model.key_heads))
    if set(kinds) == {EXACT}:
        return ""
    shares = (f"{keys}/{values} bits in {n}" for (keys, values), n in sorted(kinds.items())[::-1])
    return f", with {', '.join(shares)} of {kinds.total()} key heads"


def _passages(result: PlanResult) -> str:
    return counted(result.setup.settings.check_passages, "held-out passage") + " of this text"


def verdict_sentence(result: PlanResult) -> str:
    """Return the verdict on the plan against uniform budgets.

    Its interval is over passages, so that it speaks about the text of the check alone.
    """
    data, count = PlanData(result.data), result.setup.settings.check_passages
    ratio = number(data.over_planned.sel(configuration="uniform"))
    if result.verdict == "better":
        return (
            f"The plan beats uniform budgets on this text: it is {_times(ratio)} closer to dense, "
            f"by the {STATISTIC}."
        )
    if result.verdict == "worse":
        return (
            "The plan does NOT beat uniform budgets on this text: it is "
            f"{_times(inverse(ratio))} farther from dense, by the {STATISTIC}."
        )
    sentence = (
        f"Undecided with {counted(count, 'passage')} whether the plan is better than uniform "
        f"budgets on this text: it is {_times(ratio)} closer to dense by the {STATISTIC}"
    )
    needed = float(data.passages_needed)
    if needed == needed:
        return (
            f"{sentence}. {needed - count:,.0f} more passages ({needed:,.0f} in all) would "
            "probably decide (in 4 of 5 cases, if ratio and spread stay as they are)."
        )
    if ratio[1] is None:
        return f"{sentence}, but one passage has no interval. Check on more passages."
    return f"{sentence}; no reasonable number of passages would decide."


def advice(result: PlanResult) -> str:
    """Return what is closest to dense of all that was measured, as a sentence."""
    data, best = PlanData(result.data), result.best
    called = {"planned": "the plan", "uniform": "uniform budgets"}
    names = [called.get(name) or NAMES[name] for name in best]
    others = [name for name in data.kl["configuration"].values.tolist() if name != "dense"]
    if len(best) > 1:
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        sentence = (
            f"{listed[0].upper()}{listed[1:]} cannot be told apart with "
            f"{counted(result.setup.settings.check_passages, 'passage')}"
        )
        if len(best) == len(others):
            return f"{sentence}."
        return f"{sentence}; all others are farther from dense than {names[0]}."
    if best[0] != "planned":
        ratio = number(data.over_best.sel(configuration="planned"))
        return (
            f"Use {names[0]}: closer to dense than everything else that was measured, "
            f"{_times(ratio)} closer than the plan."
        )
    if len(others) == 2:  # uniform budgets, of which the verdict speaks
        return "Use the plan."
    over = data.over_planned.sel(configuration=others)
    nearest = others[int(over.sel(bound="value").argmin("configuration"))]
    return (
        "Use the plan: it is closer to dense than everything else that was measured, "
        f"{_times(number(over.sel(configuration=nearest)))} closer than "
        f"{called.get(nearest) or NAMES[nearest]}, the best of all others."
    )


def totals(result: PlanResult) -> Mapping[str, float]:
    """Return the share of right answers in all by configuration; nothing without totals."""
    data = PlanData(result.data)
    if not data.dense_can.any():
        return {}
    right = data.score.sel(task=ALL, bound="value")
    return dict(zip(right["configuration"].values.tolist(), right.values.tolist(), strict=True))


def task_sentence(result: PlanResult) -> str:
    """Return what became of questions about texts; nothing if there were none."""
    data = PlanData(result.data)
    if not data.items.size:
        return ""
    score = dict(totals(result))
    if not score:
        return " Questions about texts say nothing: the dense model itself fails them."
    failed = data.items["task"].values[~data.dense_can.values].tolist()
    left_out = f" (left out, the dense model itself fails: {', '.join(failed)})" if failed else ""
    dense, planned = score.pop("dense"), score.pop("planned")
    best = max(score, key=score.__getitem__)
    called = "uniform budgets" if best == "uniform" else NAMES[best]
    return (
        f" Questions about texts: {planned:.0%} right with the plan, {dense:.0%} dense, of "
        f"{int(data.items.sel(task=ALL))}{left_out}; {called} {score[best]:.0%}."
    )


def question_sentence(result: PlanResult) -> str:
    """Return what became of questions about articles; nothing if there were none."""
    record, data = result.setup.records["questions"], PlanData(result.data)
    if record is None:
        return ""
    dense, planned = (data.f1.sel(configuration=name) for name in ("dense", "planned"))
    over = data.f1_over.sel(configuration="planned", reference="dense")
    about = counted(len(record.titles), "article")
    return (
        f" {counted(sum(record.counts), 'question')} of {record.source} about {about}: mean F1 is "
        f"{between(*number(planned), 'p0')} with the plan, {between(*number(dense), 'p0')} "
        f"dense; the difference is {between(*number(over), 'p0')}."
    )


def inverse(ratio: Number) -> Number:
    """Return the ratio the other way round."""
    value, ends = ratio
    return 1 / value, None if ends is None else (1 / ends[1], 1 / ends[0])


def _times(ratio: Number) -> str:
    """A ratio in two digits; in three where two would hide on which side of 1 an end lies."""
    value, ends = ratio
    low, high = ends or (value, value)
    close = any(float(f"{end:.2g}") == 1 != end for end in (low, high))
    middle, first, last = (
        # in plain digits: 120, not 1.2e+02
        f"{x:.3g}" if close and x < 100 else f"{float(f'{x:.2g}'):,.12g}"
        for x in (value, low, high)
    )
    return f"{middle} times" if ends is None else f"{middle} ({first} to {last}) times"


def notes(result: PlanResult) -> list[str]:
    """Return the sentences below the tables of a terminal."""
    data, lines = PlanData(result.data), list[str]()
    if not result.checked:
        return lines
    share = float(data.bytes_share.sel(configuration="planned"))
    dense = float(data.dense_bytes)
    lines.append(
        f"The cache takes {byte_count(share * dense)} instead of {byte_count(dense)} "
        f"({share:.2%}), weights and scales included."
    )
    within, median = float(data.within_factor), float(data.median_ratio)
    if within == within:
        lines.append(
            f"Predicted head errors: {within:.0%} came true within a factor of {FACTOR:g}; the "
            f"median realised error is {median:.2f} times the predicted one."
        )
    return lines
