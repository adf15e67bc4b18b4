"""What to do with a plan: use it, check it, or what to change if it did not earn its place."""

from __future__ import annotations

from esscher.core.next_steps import RUN, Step, Value, held_out, once_more
from esscher.engine.cache.budgets import keeping_for
from esscher.studies.plan.records import Check
from esscher.studies.plan.result import Plan
from esscher.studies.plan.words import said_of

#: Distance from dense (KL in nats, or 1 - cosine) below which uniform budgets lose nothing that a
#: plan could win back, and beyond which both are lost: by whether the model is a decoder.
NOTHING_LOST = {True: 0.01, False: 0.001}
ALL_LOST = {True: 1.0, False: 0.3}
#: Largest over smallest budget below which a plan is uniform but for details.
ALIKE = 1.25
#: Share of the tokens from which hardly anything is dropped.
NEARLY_ALL = 0.9
#: Share of heads that are to be within the factor of their predicted error.
PREDICTED = 0.5
#: Most held-out passages that are suggested.
MOST_PASSAGES = 200
#: Largest tolerance that is suggested.
LARGEST_TOLERANCE = 0.8


def next_steps(found: Plan) -> list[Step]:
    """Return what to do next, the most useful first."""
    check = found.check
    if check is None:
        other = held_out(found.study.text_record.source)
        return [once_more("plan", "Does the plan hold on held-out text?", check=other)]
    return _use(found, check) if check.earned else _change(found, check)


def _use(found: Plan, check: Check) -> list[Step]:
    """What to do with a plan that is better than uniform budgets."""
    smaller = _budget(found, 0.5)
    steps = []
    if "planned" not in check.best:
        best = said_of(check.best[0])
        why = f"{best} was closer to dense: calibrate on more text, or use {best}."
        steps.append(_calibrate(found, why))
    if found.model.causal:
        why = "Generate with the plan and without: see speed, memory and where the texts part."
        source = found.study.text_record.source
        # a text that comes with Esscher runs as it stands; with texts of their own, users have one
        prompt = held_out(source) if source.startswith("demo:") else "prompt.txt"
        options: dict[str, Value] = {"--plan": RUN, "--prompt": prompt, "--compare": True}
        steps.append(Step("generate", why, options))
    if smaller is not None:
        steps.append(once_more("plan", "Does it hold with half the tokens?", **smaller))
    return steps


def _change(found: Plan, check: Check) -> list[Step]:
    """What to change, by why the plan did not earn its place."""
    causal, more = found.model.causal, _calibrate(found)
    distance = check.uniform.distance.mean
    smaller, larger = _budget(found, 0.5), _budget(found, 2.0)
    steps = []
    if found.study.tolerance is not None and found.total.ratio > NEARLY_ALL and smaller:
        why = (
            f"The tolerance lets heads drop only {1 - found.total.ratio:.0%} of the tokens, so a "
            "plan has little to choose: allow a larger one."
        )
        steps.append(once_more("plan", why, **smaller))
    if distance < NOTHING_LOST[causal] and smaller:
        why = "Uniform budgets lose almost nothing here: keep fewer tokens."
        steps.append(once_more("plan", why, **smaller))
    if distance > ALL_LOST[causal] and larger:
        why = "Both are far from dense with so few tokens: keep more."
        steps.append(once_more("plan", why, **larger))
    needed = check.passages_needed
    if check.verdict == "undecided" and needed is not None and needed <= MOST_PASSAGES:
        why = f"Undecided: {needed} held-out passages would probably decide."
        steps.append(once_more("plan", why, check_passages=needed))
    tokens = [count for row in found.budgets for count in row]
    if max(tokens) < ALIKE * min(tokens) and smaller:
        why = (
            "All heads need about the same share, so a plan has little to choose: keep fewer "
            "tokens, or try a model whose heads differ more."
        )
        steps.append(once_more("plan", why, **smaller))
    share = check.heads.within_factor
    if share is not None and share < PREDICTED:
        why = (
            f"Only {share:.0%} of the predicted head errors came true: calibrate on more text, and "
            "on text like that of the check."
        )
        steps.append(_calibrate(found, why))
    if not steps and check.verdict == "undecided" and smaller:
        why = (
            "The difference is too small to tell: with fewer tokens it matters more which are kept."
        )
        steps.append(once_more("plan", why, **smaller))
    return [*steps, *_selections(found), more]


def _selections(found: Plan) -> list[Step]:
    """The way of keeping tokens that is usually closest to dense, if it is another one."""
    best = "fitted" if found.model.causal else "sample"
    if found.selection == best:
        return []
    why = f"Tokens are kept by {found.selection}: {best} usually comes closer to dense."
    return [once_more("plan", why, selection=best)]


def _calibrate(found: Plan, why: str = "") -> Step:
    said = why or "Calibrate on more text: the plan may follow these few passages too closely."
    return once_more("plan", said, passages=4 * found.study.passages)


def _budget(found: Plan, factor: float) -> dict[str, Value] | None:
    """The option that keeps so many times the tokens; None if that is not possible."""
    study = found.study
    if study.tolerance is not None:
        tolerance = min(study.tolerance / factor, LARGEST_TOLERANCE)
        return {"tolerance": round(tolerance, 4)} if tolerance != study.tolerance else None
    assert study.budget is not None
    budget = round(min(factor * study.budget, 1.0), 4)
    kept = keeping_for(found.prefix, found.model.causal, budget).count + 1
    return {"budget": budget} if kept / found.prefix <= budget < 1 else None
