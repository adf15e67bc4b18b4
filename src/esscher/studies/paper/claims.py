"""The claims: what each says, which measurements it rests on, and the rule that judges it.

A judge reads the summaries of the measurements and returns checks, each with a verdict and its
rule. A claim is contradicted if one of the checks that count is, holds if all of them hold, and is
undecided otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.core.variables import BOUND
from esscher.math.statistics.intervals import class_counts, rank_correlation
from esscher.studies.paper import heads, models, synthetic
from esscher.studies.paper.models import OCTAVES, RULES, TASKS
from esscher.studies.paper.study import Growth, Measurement, PaperData, PaperSettings, Sweeps
from esscher.studies.paper.synthetic import LAW_DIM, METRICS

Verdict: TypeAlias = Literal["holds", "contradicted", "undecided"]
MEASUREMENTS: dict[str, Measurement] = (
    synthetic.MEASUREMENTS | heads.MEASUREMENTS | models.MEASUREMENTS
)
#: Exponents that differ by no more than this are called the same: of patterns and layers; with and
#: without the mask.
MARGIN, SAME = 0.1, 0.05
#: Numbers of tokens, and predicted losses, whose ratio is within this factor of 1 are called equal.
FACTOR, HIT = 1.25, 1.5
#: Ratios with and without the mask within this factor of 1 are called 1.
CLOSE = 1.05
#: Resamples of heads.
RESAMPLES = 1_000
#: Metrics that the bound and the reference speak about.
MOMENTS = ["mean", "cov"]


@dataclass(frozen=True)
class Check:
    """One thing that a claim says, and what was measured.

    Attributes
    ----------
    says, measured
        What is checked; what was measured, with its interval.
    verdict, rule
        Whether it holds; when it does, and when it is contradicted.
    counts
        Whether the claim's verdict depends on it; others are shown beside it.
    """

    says: str
    verdict: Verdict
    measured: str
    rule: str
    counts: bool = True


@dataclass(frozen=True)
class Judgement:
    """A judgement of a claim: what was measured, its weakest point, and what would decide it."""

    measured: str
    checks: Sequence[Check]
    weakest: str
    decide: str = "More replicates."

    @property
    def verdict(self) -> Verdict:
        """The verdict that the checks give."""
        return joint_verdict([check.verdict for check in self.checks if check.counts])


@dataclass(frozen=True)
class Claim:
    """A claim: its heading, what the paper says (or leaves open), what it rests on, its judge."""

    title: str
    says: str
    uses: tuple[str, ...]
    judge: Callable[[PaperData, PaperSettings], Judgement]


def set_ledger(data: PaperData, claims: Sequence[str], settings: PaperSettings) -> None:
    """Judge claims whose measurements are all there, and set the ledger and its checks."""
    judged = {name: CLAIMS[name].judge(data, settings) for name in claims}
    checks = {
        f"{name}-{i + 1}": (name, check)
        for name, judgement in judged.items()
        for i, check in enumerate(judgement.checks)
    }
    data.dataset.update(PaperData.new(claim=claims, check=checks).dataset)
    entries = judged.values()
    data.verdict, data.says = [e.verdict for e in entries], [CLAIMS[name].says for name in claims]
    data.measured, data.weakest = [e.measured for e in entries], [e.weakest for e in entries]
    data.decide = [e.decide if e.verdict == "undecided" else "" for e in entries]
    data.check_claim = [name for name, _ in checks.values()]
    data.check_says, data.check_verdict, data.check_measured, data.check_rule, data.counts = (
        [getattr(check, key) for _, check in checks.values()]
        for key in ("says", "verdict", "measured", "rule", "counts")
    )


# -- verdicts and words


def verdict_of(holds: Any, contradicted: Any) -> Verdict:
    """Return the verdict of a check from two conditions, of which at most one is true."""
    return "holds" if holds else "contradicted" if contradicted else "undecided"


def joint_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Contradicted if one is, holds if all do, undecided otherwise."""
    if "contradicted" in verdicts:
        return "contradicted"
    return "holds" if verdicts and set(verdicts) == {"holds"} else "undecided"


def above(ends: Sequence[float] | Array, limit: float) -> Verdict:
    """Whether a number with its interval lies above a limit; contradicted if it lies below."""
    return verdict_of(ends[1] > limit, ends[2] < limit)


def below(ends: Sequence[float] | Array, limit: float) -> Verdict:
    """Whether a number with its interval lies below a limit; contradicted if it lies above."""
    return verdict_of(ends[2] < limit, ends[1] > limit)


def within(ends: Sequence[float] | Array, low: float, high: float) -> Verdict:
    """Whether an interval lies within two limits; contradicted if it lies beyond one of them."""
    return verdict_of(ends[1] > low and ends[2] < high, ends[1] > high or ends[2] < low)


def half_rate(ends: Sequence[float] | Array) -> Verdict:
    """Whether an exponent is 1/2: the interval lies close to it; contradicted if it excludes it."""
    return verdict_of(
        ends[1] > 0.5 - MARGIN and ends[2] < 0.5 + MARGIN, ends[2] < 0.5 or ends[1] > 0.5
    )


HALF_RULE = f"holds if the interval lies within {MARGIN} of 1/2, contradicted if it excludes it"


def said(ends: Sequence[float] | Array, digits: int = 2) -> str:
    """Write a number with its 95% interval: ``0.49 (0.45 to 0.53)``."""
    value, low, high = ends
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def simultaneous(count: int) -> float:
    """Standard errors within which all of ``count`` normal numbers lie with probability 99.9%.

    A claim that is true is then called contradicted in one run of a thousand, not of twenty.
    """
    return float(ndtri(1 - 0.0005 / max(count, 1)))


def published(psi: Any, factor: Any = 1.0) -> Any:
    """The paper's exponents at Psi: the reference, and the bound with a factor of 32."""
    return 0.5 / (1 + factor * psi)


# -- synthetic tokens


def judge_limit(data: PaperData, settings: PaperSettings) -> Judgement:
    """Judge by the error at the largest n, the constant and the exponent, law by law."""
    limit = data.limit
    exponents, ratios = limit.exponent.sel(bound="value").values, limit.ratio.values
    errors, count = limit.ratio_error.values, limit.dataset.sizes["law"]
    sure, z = simultaneous(count), float(np.abs(limit.z.values).max())
    ratio_z = float(np.abs((ratios - 1) / errors).max())
    resolved, refused = errors.max() < 0.15, bool(limit.refused)
    checks = [
        Check(
            says="averages over n tokens tend to grad K, for seven laws with a closed form",
            verdict=verdict_of(z < sure, z >= sure),
            measured=f"largest distance {z:.1f} standard errors of {count}",
            rule=f"contradicted beyond {sure:.2f} standard errors (99.9% for all laws at once)",
        ),
        Check(
            says="the squared error times n is E w^2 |X - G|^2 / (E w)^2, from the same K",
            verdict=verdict_of(ratio_z < sure and resolved, ratio_z >= sure),
            measured=f"ratios {ratios.min():.2f} to {ratios.max():.2f} (largest standard error "
            f"{errors.max():.2f})",
            rule="contradicted beyond the same number of standard errors; undecided if a "
            "standard error exceeds 0.15",
        ),
        Check(
            says="Student tokens have no limit",
            verdict=verdict_of(refused, not refused),
            measured="refused" if refused else "a limit was returned",
            rule="exact",
        ),
    ]
    return Judgement(
        f"At n = {int(limit.dataset['size'][-1]):,} the outputs of seven laws are within {z:.1f} "
        f"standard errors of grad K; errors fall with exponents {exponents.min():.2f} to "
        f"{exponents.max():.2f}, and their constants are {ratios.min():.2f} to "
        f"{ratios.max():.2f} of the predicted ones. Student tokens have no limit.",
        checks,
        f"One tilt of length 0.6 in {LAW_DIM} dimensions; larger tilts need far more tokens.",
    )


def growth_law(growth: Growth) -> Array:
    """Whether a power of R or an exponential describes a constant better, beyond chance."""
    share = growth.share.values
    return np.where(share >= 0.975, "power", np.where(share <= 0.025, "exponential", "undecided"))


def judge_ball(data: PaperData, settings: PaperSettings) -> Judgement:
    """Judge by the bound at every point, and by the exponent at every radius."""
    ball = data.ball
    error, bound, exponents = ball.error.values, ball.expected.values, ball.exponent.values
    sure, count = simultaneous(error.size), error.size
    noise = sure * ball.standard_error.values
    over, under = error - noise > bound, error + noise < bound
    low, high = exponents[:, 1], exponents[:, 2]
    room = (bound / error).min(axis=1)
    radii = ball.dataset["radius"].values
    rate = float(np.polyfit(radii, np.log(bound[:, -1]), 1)[0])
    law = str(growth_law(ball.growth))
    grows = {
        "undecided": "a power or an exponential of R (undecided)",
        "power": f"R^{said(ball.growth.power.values)}",
        "exponential": f"e^({float(ball.growth.rate):.2f} R)",
    }[law]
    comment = {
        "power": ": the exponential is not needed here",
        "exponential": ", exponentially too",
    }
    checks = [
        Check(
            says="the error stays below C(R)/sqrt(n)",
            verdict=verdict_of(under.all(), over.any()),
            measured=f"below it at {under.sum()} of {count} points, by a factor of "
            f"{room.min():.1f} to {room.max():.2g}",
            rule="contradicted if a mean lies above the bound by more than "
            f"{sure:.1f} standard errors",
        ),
        Check(
            says="it falls like 1/sqrt(n) at every radius",
            verdict=verdict_of(not (((high - low) / 2 > 0.1) | (high < 0.5)).any(), False),
            measured="exponents " + ", ".join(said(ends) for ends in exponents),
            rule="holds if no interval lies below 1/2 and all are narrower than 0.2; a slope on "
            "a finite range cannot contradict it",
        ),
        Check(
            says="the constant grows exponentially with R",
            verdict=verdict_of(law == "exponential", law == "power"),
            measured=f"{grows}; the bound: e^({rate:.2f} R)",
            rule="which of the two laws leaves smaller residuals in 97.5% of resamples",
            counts=False,
        ),
    ]
    return Judgement(
        f"The supremum over |t| <= R falls with exponents {exponents[:, 0].min():.2f} to "
        f"{exponents[:, 0].max():.2f} and lies below C(R)/sqrt(n) at {under.sum()} of {count} "
        f"points. The measured constant grows like {grows}, the bound's like e^({rate:.2f} R)"
        f"{comment.get(law, '')}.",
        checks,
        "The supremum is found by a search, so it is measured from below; one law, three "
        "dimensions.",
        "More replicates and larger n.",
    )


def judge_moments(data: PaperData, settings: PaperSettings) -> Judgement:
    """Judge by whether a power of R describes the constants better than an exponential."""
    support = data.moments
    laws, growth = growth_law(support), support.power.values  # [law, metric, ...]
    names = support.dataset["law"].values.tolist()
    n = MEASUREMENTS["moments"].units(settings)[0]["sizes"][-1]
    counted, powers = growth[:, :2, 0], laws[:, :2] == "power"
    checks = [
        Check(
            says="the constants of mean and covariance grow like a power of R",
            verdict=verdict_of(powers.all(), (laws[:, :2] == "exponential").any()),
            measured="; ".join(
                f"{law}: mean R^{said(mean)}, cov R^{said(cov)}"
                for law, (mean, cov, _) in zip(names, growth, strict=True)
            ),
            rule="power if it leaves smaller residuals than an exponential in 97.5% of resampled "
            "sets of replicates; contradicted if the exponential does",
        ),
        Check(
            says="so does that of the map",
            verdict=verdict_of((laws[:, 2] == "power").all(), False),
            measured=", ".join(
                f"{law} R^{said(ends)}" for law, ends in zip(names, growth[:, 2], strict=True)
            ),
            rule="as above; the paper bounds the map's constant by an exponential",
            counts=False,
        ),
    ]
    return Judgement(
        f"From R = 0.5 to 8 the constants of mean and covariance grow like R^{counted.min():.1f} "
        f"to R^{counted.max():.1f}; a power describes {powers.sum()} of {powers.size} better than "
        "an exponential.",
        checks,
        "R spans a factor of 16 in three dimensions; a constant is sqrt(n) times the error at one "
        f"size, n = {n:,}.",
        "More replicates, or a wider range of R.",
    )


def judge_hardmax(data: PaperData, settings: PaperSettings) -> Judgement:
    """Judge simulated against exact values, and the leading term against both."""
    curve = data.hardmax
    exact, power = curve.exact.values, curve.power.values
    z = np.abs(curve.simulated.values - exact) / curve.standard_error.values
    gap, sure = 100 * (curve.leading.values / exact - 1), simultaneous(z.size)
    argmax = judge_argmax(data)
    checks = [
        Check(
            says="on the line E|mean| tends to ln(4)/(2 sqrt(2 ln n))",
            verdict=verdict_of(
                (z < sure).all() and (np.diff(np.abs(gap)) < 0).all(), (z >= sure).any()
            ),
            measured=f"simulations within {z.max():.1f} standard errors of the exact values up to "
            f"n = 10^12, the leading term {gap[0]:+.1f}% off at 10^3 and {gap[-1]:+.1f}% at 10^12",
            rule=f"contradicted if a simulation is {sure:.1f} standard errors off the exact "
            "value; holds if the leading term also comes closer at every size",
        ),
        Check(
            says="the decay is logarithmic: a power of ln n, not of n",
            verdict=verdict_of(power[1] > 0.3 and power[2] < 0.7, power[1] > 1.0),
            measured=f"power of 1/ln n {said(power)}, exact on these sizes "
            f"{float(curve.exact_power):.2f}",
            rule="holds if the interval lies within 0.3 to 0.7, contradicted above 1",
        ),
        argmax,
    ]
    return Judgement(
        f"On the line simulations agree with the exact expectation to {z.max():.1f} standard "
        f"errors up to n = 10^12, where the leading term is still {gap[-1]:+.1f}% off. "
        f"{argmax.measured.rstrip('.')}.",
        checks,
        "The leading term comes close only logarithmically; real heads have finitely many tokens.",
    )


# -- sweeps of Gaussian tokens


def judge_reference(data: PaperData, settings: PaperSettings) -> Judgement:
    """Judge by the simultaneous band of the authors' setting, in both units of H."""
    fits = data.gaussian.dataset
    fits = fits.isel(setting=fits["tokens"].values == "authors").sel(metric=MOMENTS)
    exponents, (_, low, high) = (
        fits["exponent"].sel(bound="value"),
        fits["joint"].transpose(BOUND, ...),
    )
    psi, narrow = fits["horizon"] ** 2, bool((high - low < 0.2).all())
    checks, distance = [], []
    for reference, units in (
        (published(psi), "H with 1/sqrt(d)"),
        (published(psi, fits["dimension"]), "H of the authors' scripts"),
    ):
        inside = (low <= reference) & (reference <= high)
        distance.append(float(np.abs(exponents - reference).mean()))
        checks.append(
            Check(
                says=f"beta = 1/(2(1+H^2)), {units}",
                verdict=verdict_of(inside.all() and narrow, not inside.all()),
                measured=f"inside the band at {int(inside.sum())} of {inside.size} exponents of "
                f"mean and covariance; mean distance {distance[-1]:.3f}",
                rule="contradicted if a band over all scales excludes it, holds if none does and "
                "all are narrower than 0.2",
                counts=False,
            )
        )
    half = float(np.abs(exponents - 0.5).mean())
    predicted = float(np.abs(exponents - fits["predicted"]).mean())
    verdicts = [check.verdict for check in checks]
    overall = Check(
        says="one of the two conventions describes the authors' own setting",
        verdict=verdict_of("holds" in verdicts, set(verdicts) == {"contradicted"}),
        measured=f"mean distance of the exponents from the reference {min(distance):.3f}, from 1/2 "
        f"{half:.3f}, from the slope predicted on these sizes {predicted:.3f}",
        rule="contradicted if both are, holds if one does",
    )
    largest, at = fits["exponent"].sel(metric="mean")[-1].values, float(fits["horizon"][-1])
    return Judgement(
        f"In the authors' setting (d = 50) the exponents of mean and covariance differ from "
        f"1/(2(1+H^2)) by {distance[0]:.2f} on average ({distance[1]:.2f} in their units), "
        f"from 1/2 by {half:.2f}, from the slope predicted on these sizes by {predicted:.2f}. At "
        f"H = {at:.2f} the mean has {said(largest)}, the reference is {published(at**2):.2f}.",
        [overall, *checks],
        "Slopes on a finite range; the reference is a statement about large n.",
    )


def bound_points(data: PaperData) -> dict[str, Array]:
    """Exponents of mean and covariance by source, [metric, point, number].

    The numbers: Psi, exponent, low, high, standard error, exponent on the last sizes, its error.
    """

    def swept(sweeps: Sweeps) -> Array:
        fits = sweeps.dataset.sel(metric=MOMENTS).transpose("metric", "setting", ...)
        psi = np.broadcast_to(fits["horizon"].values ** 2, fits["late"].shape)
        columns = [fits[name].values for name in ("standard_error", "late", "late_error")]
        return np.stack([psi, *np.moveaxis(fits["exponent"].values, -1, 0), *columns], axis=-1)

    fits = data.heads.fits.exponent.sel(metric=MOMENTS).transpose("metric", ...).values
    value, low, high = np.moveaxis(fits.reshape(len(MOMENTS), -1, 3), -1, 0)
    psi, error = np.broadcast_to(data.heads.psi.values.ravel(), value.shape), (high - low) / 3.92
    gaussian = np.concatenate([swept(data.gaussian), swept(data.ablation)], axis=1)
    real = np.stack([psi, value, low, high, error, value, error], axis=-1)
    return {"Gaussian tokens": gaussian, "real heads": real}


def judge_bound(data: PaperData, settings: PaperSettings) -> Judgement:
    """Judge by where the exponents lie: of Gaussian tokens, and of real heads."""
    sources = bound_points(data)
    points = np.concatenate(list(sources.values()), axis=1).reshape(-1, 7)
    psi, exponent, low, _, error, late, late_error = points.T
    count, sure, bound = len(points), simultaneous(len(points)), published(psi, 32)
    # a curve that is still bending upwards speaks for the bound: its constant is open
    violated = (exponent + sure * error < bound) & (late + sure * late_error < bound)
    holds = ~violated & (low > bound)
    undecided = count - int(violated.sum()) - int(holds.sum())
    loose = np.quantile((exponent / bound)[exponent > 0], [0.25, 0.5, 0.75])
    by_source = {
        source: f"{(part[..., 2] > published(part[..., 0], 32)).sum()} of {part[..., 0].size}"
        for source, part in sources.items()
    }
    check = Check(
        says="beta >= 1/(2(1+32 Psi)) for mean and covariance",
        verdict=verdict_of(holds.mean() >= 0.9 and not violated.any(), violated.any()),
        measured=", ".join(f"{source}: holds at {part}" for source, part in by_source.items())
        + f"; undecided at {undecided}, violated at {violated.sum()}",
        rule="a point holds if its interval lies above the bound; the claim is contradicted "
        f"if a point lies below it by {sure:.1f} standard errors (99.9% for all at once), on "
        "all sizes and on the last three; it holds if none does and nine points in ten hold",
    )
    return Judgement(
        f"The bound holds at {holds.sum()} of {count} exponents "
        f"({', '.join(f'{source} {part}' for source, part in by_source.items())}), is undecided "
        f"at {undecided} and violated at {violated.sum()}. It is loose: the median exponent is "
        f"{loose[1]:.1f} times the bound (quartiles {loose[0]:.1f} to {loose[2]:.1f}).",
        [check],
        "A bound with an open constant speaks about large n; these are slopes on a finite range.",
        "More replicates where intervals are wide.",
    )


def judge_ablation(data: PaperData, settings: PaperSettings) -> Judgement:
    """Judge by whether exponents fall with alpha: of Gaussian tokens, and of real heads."""
    # the ends of the simultaneous band, which holds both exponents at once
    first, last = (data.ablation.joint.isel(setting=at).values for at in (0, -1))
    drops = first - last[:, [0, 2, 1]]  # [metric, bound]
    steps = ", ".join(
        f"{title} by {said(drop)}" for title, drop in zip(METRICS.values(), drops, strict=True)
    )
    real = judge_alpha(data)
    gaussian = Check(
        says="exponents of Gaussian tokens fall as alpha grows",
        verdict=verdict_of((drops[:, 1] > 0).all(), (drops[:, 2] < 0).any()),
        measured=f"from alpha = 0.01 to 10: {steps}",
        rule="holds if the simultaneous bands at both ends are apart in all metrics, "
        "contradicted if one rises",
    )
    return Judgement(
        f"From alpha = 0.01 to 10 exponents of Gaussian tokens fall: {steps}. On real "
        f"heads: {real.measured.rstrip('.')}.",
        [gaussian, real],
        "At alpha = 10 the slopes are those of a finite range, far from their limit.",
        "More replicates, or more heads.",
    )


# -- heads of an encoder


def over_heads(
    layer: NDArray[Any],
    statistic: Callable[[NDArray[np.int64]], float],
    purpose: str,
    most: float = np.inf,
) -> tuple[float, float, float]:
    """Return a statistic of heads and its 95% interval, by resampling layers and their heads.

    Heads of a layer share their tokens, so that layers are drawn first, then heads in each of them.
    Resampling a few of anything gives intervals that are too short: they are widened as Student's t
    does it for that many layers, or heads of one layer.

    Parameters
    ----------
    layer
        The layer of every head.
    statistic
        Takes numbers of heads.
    purpose
        Names the random stream.
    most
        Largest absolute value that the statistic can have.
    """
    rng = random_stream(0, purpose)
    groups = [np.flatnonzero(layer == number) for number in np.unique(layer)]
    resampled = []
    for _ in range(RESAMPLES):
        drawn = [groups[i] for i in rng.integers(len(groups), size=len(groups))]
        resampled.append(
            statistic(np.concatenate([rng.choice(rows, size=len(rows)) for rows in drawn]))
        )
    value = statistic(np.arange(len(layer)))
    count = len(groups) if len(groups) > 1 else len(layer)
    widened = float("inf")
    if count > 1:
        widened = float(stdtrit(count - 1, 0.975) / 1.96 * np.sqrt(count / (count - 1)))
    low, high = value + widened * (np.nanquantile(resampled, [0.025, 0.975]) - value)
    return value, max(float(low), -most), min(float(high), most)


def median_head(
    layer: NDArray[Any], values: Array, name: str, most: float = np.inf
) -> tuple[float, float, float]:
    """Return the median over heads, and its 95% interval."""
    return over_heads(layer, lambda rows: float(np.median(values[rows])), f"median {name}", most)


def layer_of(array: Any) -> NDArray[Any]:
    """Return the layer of every head of an array with axes [layer, head, ...], flattened."""
    return np.repeat(array["layer"].values, array.sizes["head"])


def judge_heads(data: PaperData, settings: PaperSettings) -> Judgement:
    """Judge Psi and exponents head by head: the bound, 1/2, and the order of the heads."""
    fits, layer = data.heads.fits, layer_of(data.heads.psi)
    psi, one_sided = data.heads.psi.values.ravel(), data.heads.psi_one_sided.values.ravel()
    bound, count = published(psi, 32), len(psi)
    moments = {"mean": "mean", "cov": "covariance"}
    ends = {m: fits.exponent.sel(metric=m).values.reshape(-1, 3).T for m in moments}
    joint = {m: fits.joint.sel(metric=m).values.reshape(-1, 3).T for m in moments}
    beta = ends["mean"][0]

    over = {m: int((ends[m][1] > bound).sum()) for m in moments}
    over_one_sided = {m: int((ends[m][1] > published(one_sided, 32)).sum()) for m in moments}
    violated = any((joint[m][2] < bound).any() for m in moments)
    loose = float(np.nanmedian(beta / bound))
    checks = [
        Check(
            says="The bound holds at every head: beta is at least 1/(2(1 + 32 Psi)).",
            verdict=verdict_of(all(over[m] == count for m in moments), violated),
            measured=f"Above it at {over['mean']} of {count} heads (mean) and {over['cov']} "
            f"(covariance); with the one-sided Psi at {over_one_sided['mean']} and "
            f"{over_one_sided['cov']}. The median head's exponent of the mean is {loose:.0f} times "
            "the bound.",
            rule="Holds if the 95% interval of mean and covariance is above the bound at every "
            "head; contradicted if at some head it is below, at 95% for all heads together.",
        )
    ]
    parts: dict[str, str] = {}
    for m, name in moments.items():
        slow, fast = int((ends[m][2] < 0.5).sum()), int((ends[m][1] >= 0.5).sum())
        surely = int((joint[m][1] >= 0.5).sum())
        equal = class_counts(zip(ends[m][1], ends[m][2], strict=True))["at 1/2"]
        parts[m] = f"{slow} below, {count - slow - fast} not told from 1/2, {fast} above"
        checks.append(
            Check(
                says=f"The {name} converges at a rate strictly below 1/2.",
                verdict=verdict_of(slow == count, surely > 0),
                measured=f"Of {count} heads, {parts[m]} (above at 95% for all heads together: "
                f"{surely}). The trivial alternative, 1/2 within 0.05, is shown at {equal}.",
                rule="By 95% intervals. Holds if the interval is below 1/2 at every head; "
                "contradicted if at some head it is at or above 1/2, at 95% for all heads "
                "together. A head whose interval holds 1/2 decides nothing.",
            )
        )

    known = ~np.isnan(beta)
    beta, psi, one_sided, layer = (array[known] for array in (beta, psi, one_sided, layer))

    def within_layers(rows: NDArray[np.int64]) -> float:
        each = [rows[layer[rows] == number] for number in np.unique(layer[rows])]
        return float(np.mean([rank_correlation(psi[at], beta[at]) for at in each]))

    slower = over_heads(
        layer, lambda rows: rank_correlation(psi[rows], beta[rows]), "beta against Psi", 1.0
    )
    inner = over_heads(layer, within_layers, "beta against Psi within layers", 1.0)
    off, off_one_sided, trivial = (
        np.abs(line - beta) for line in (published(psi), published(one_sided), 0.5)
    )
    worse = off - trivial
    gap = over_heads(layer, lambda rows: float(worse[rows].mean()), "reference against 1/2")
    checks += [
        Check(
            says="Heads with a larger Psi converge more slowly.",
            verdict=below(slower, 0),
            measured="Rank correlation of the exponent of the mean with Psi: "
            f"{said(slower)}; within layers {said(inner)} on average.",
            rule="Spearman's correlation over heads; 95% interval by resampling layers and the "
            "heads in them. Holds if it is below 0, contradicted if it is above 0. The noise of "
            "exponents pulls it towards 0.",
        ),
        Check(
            says="The line 1/(2(1 + Psi)) predicts exponents better than always saying 1/2.",
            verdict=below(gap, 0),
            measured=f"Mean absolute error {off.mean():.3f} (one-sided Psi "
            f"{np.nanmean(off_one_sided):.3f}), of 1/2 {trivial.mean():.3f}; difference "
            f"{said(gap, 3)}.",
            rule="Exponents of the mean, difference of absolute errors head by head; 95% interval "
            "by resampling layers and the heads in them. Holds if it is below 0, contradicted if "
            "above.",
            counts=False,
        ),
    ]
    width = float(np.nanmedian(ends["mean"][2] - ends["mean"][1]) / 2)
    return Judgement(
        f"The bound holds at {over['mean']} of {count} heads, {loose:.0f} times below what the "
        f"median head does. Exponents of the mean: {parts['mean']}; of the covariance: "
        f"{parts['cov']}. Rank correlation of the exponent of the mean with Psi: {said(slower)}.",
        checks,
        f"Exponents are slopes up to n = {int(data.heads.largest.max()):,}, on one text. That of "
        "the covariance has a bias of order 1/n in it, which makes it steeper on such sizes.",
        f"More replicates: the interval of a typical head is ± {width:.2f}; exponents closer to "
        "1/2 than that are not told from it. More heads, for the correlation.",
    )


def judge_alpha(data: PaperData) -> Check:
    """Judge whether exponents of the mean fall when the tilts of real heads are scaled up."""
    fits = data.alpha.exponent.sel(metric="mean")
    alphas, values = fits["alpha"].values, fits.sel(bound="value").values.reshape(len(fits), -1)
    known = ~np.isnan(values).any(axis=0)
    layer, values = layer_of(fits)[known], values[:, known]
    ranks = np.array([rank_correlation(alphas, head) for head in values.T])
    value, low, high = median_head(layer, values[-1] - values[0], "change")
    # heads share their samples, so that resampling them misses the noise they have in common: at
    # worst that is all noise of a head's exponents
    half = (fits.sel(bound="high") - fits.sel(bound="low")).values / 2
    noise = float(np.hypot(np.nanmedian(half[0]), np.nanmedian(half[-1])))
    change = (value, value - np.hypot(value - low, noise), value + np.hypot(high - value, noise))
    return Check(
        says="Heads converge more slowly as their tilts are scaled up.",
        verdict=below(change, 0),
        measured=f"from alpha = {alphas[0]:g} to {alphas[-1]:g} the exponent of the mean changes "
        f"by {said(change)} at the median of {len(layer)} heads, from "
        f"{np.median(values[0]):.2f} to {np.median(values[-1]):.2f}; rank correlation with alpha "
        f"{said(median_head(layer, ranks, 'rank', 1.0))}.",
        rule="Median over heads of the change from the smallest alpha to the largest, with the "
        "same samples; 95% interval by resampling heads, widened by the noise of a head's "
        "exponents. Holds if it is below 0, contradicted if it is above.",
    )


def judge_argmax(data: PaperData) -> Check:
    """Judge whether the argmax of real heads converges like a power of the logarithm."""
    sizes, fits = data.argmax.dataset["size"].values, data.argmax.fits
    names, counts = np.unique(fits.law.sel(metric="mean").values, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    listed = ", ".join(f"{names[i]} {counts[i]}" for i in order)
    gap = fits.over_log.sel(metric="mean").values.ravel()
    exponents = fits.exponent.sel(metric="mean", bound="value").values.ravel()
    known = ~np.isnan(gap)
    layer, gap, exponents = (x[known] for x in (layer_of(fits.over_log), gap, exponents))
    slope = median_head(layer, exponents, "mean")
    over = over_heads(layer, lambda rows: float(gap[rows].mean()), "laws of argmax")
    return Check(
        says="With the argmax in place of the softmax, the error of the mean of real heads decays "
        "like a power of the logarithm.",
        verdict=below(over, 0),
        measured=f"From n = {sizes[0]:,} to {sizes[-1]:,} powers of n describe the error better "
        f"than powers of ln n by {said(over, 1)} per head (difference of the criteria of the "
        f"fits). The median exponent is {said(slope)}. Laws that single curves decide, at "
        f"{counts.sum()} heads: {listed}.",
        rule="Mean over heads of that difference; 95% interval by resampling layers and the heads "
        "in them. Holds if it is below 0, contradicted if it is above. The paper's statement is "
        "about Gaussian tokens on the line; here the limit is the largest of the "
        f"{int(data.argmax.tokens):,} tokens that were read.",
        counts=False,
    )


# -- whole models


def judge_downstream(data: PaperData, settings: PaperSettings) -> Judgement:
    """Judge whether answers change as n falls, and whether their loss is a power of n."""
    tasks = {
        task: part.dataset.sel(task=task)
        for part in (data.tokens, data.texts)
        for task in part.dataset["task"].values.tolist()
    }

    def listed(name: str) -> str:
        return ", ".join(f"{task} {said(part[name].values)}" for task, part in tasks.items())

    def overall(name: str) -> Verdict:
        return joint_verdict([above(part[name].values, 0) for part in tasks.values()])

    hits = {task: part["predicted"].sel(rule="fitted").values for task, part in tasks.items()}
    exponents = [part["exponent"].values for part in tasks.values()]
    near = [within(ends, 1 / HIT, HIT) for ends in hits.values()]
    rule = "holds if all intervals (over texts) lie above 0, contradicted if one lies below"
    last = {task: int(part["size"].values[-1]) for task, part in tasks.items()}
    others = "; ".join(
        f"exponent {name}: "
        + ", ".join(f"{float(part['predicted'].sel(rule=name)[0]):.2f}" for part in tasks.values())
        for name in RULES[1:]
    )
    checks = [
        Check(
            says="Answers of a model whose attention sees n keys change as n falls",
            verdict=overall("change"),
            measured="share of answers that differ from the dense model's, smallest n minus "
            f"largest: {listed('change')}",
            rule=rule,
        ),
        Check(
            says="Accuracy falls with them",
            verdict=overall("drop"),
            measured=f"dense accuracy minus that at the smallest n: {listed('drop')}",
            rule=rule,
        ),
        Check(
            says="The loss is a power of n that extrapolates by a factor of four",
            verdict=joint_verdict([*near, overall("exponent")]),
            measured="; ".join(
                f"{task}: exponent {said(part['exponent'].values)}, predicted over measured at "
                f"n = {last[task]:,} {said(hits[task])}"
                for task, part in tasks.items()
            )
            + f". Predicted over measured of other rules, in this order: {others}",
            rule="holds if every exponent's interval lies above 0 and that of predicted over "
            f"measured within a factor of {HIT:g} of 1; contradicted if one lies beyond",
        ),
        Check(
            says="The loss falls more slowly than n^-1/2",
            verdict=joint_verdict([below(ends, 0.5) for ends in exponents]),
            measured=f"exponents: {listed('exponent')}",
            rule="holds if all intervals lie below 1/2, contradicted if one lies above",
            counts=False,
        ),
    ]
    plural = dict(zip(TASKS, ("next tokens", "nearest texts", "classes"), strict=True))
    short = ", ".join(
        f"{said(ends)} for {plural[task]}" for task, ends in zip(tasks, exponents, strict=True)
    )
    ratios = ", ".join(f"{ends[0]:.2f}" for ends in hits.values())
    return Judgement(
        f"With attention over n keys in every layer, the share of changed answers falls with the "
        f"exponent {short}; fitted up to n_max/4, these laws predict {ratios} times what was "
        "measured at n_max.",
        checks,
        f"{int(data.tokens.texts)} passages and {int(data.texts.texts)} short texts that come with "
        "Python, two small models; keys are drawn independently in every layer, the tokens that "
        "ask are never left out.",
        "More texts and draws.",
    )


def judge_sparse(data: PaperData, settings: PaperSettings) -> Judgement:
    """Judge by whether patterns have the exponent of random keys."""
    patterns = data.sparse.dataset
    base = patterns["exponent"].sel(pattern="random").values
    others = patterns["difference"].drop_sel(pattern="random")
    names = others["pattern"].values.tolist()
    _, low, high = others.transpose(BOUND, ...).values
    differ = bool(((low > 0) | (high < 0)).any())
    listed = ", ".join(
        f"{name} {said(ends)}" for name, ends in zip(names, others.values, strict=True)
    )
    checks = [
        Check(
            says="sparse patterns converge to dense attention at the rate of random keys",
            verdict=verdict_of(((low > -MARGIN) & (high < MARGIN)).all(), differ),
            measured=f"difference of the exponent from random keys: {listed}",
            rule="contradicted if the interval of one difference excludes 0, holds if all lie "
            f"within {MARGIN}",
        ),
        Check(
            says="random keys give 1/sqrt(n)",
            verdict=half_rate(base),
            measured=f"exponent {said(base)}",
            rule=HALF_RULE,
            counts=False,
        ),
    ]
    return Judgement(
        f"Patterns do not share one rate: their exponents differ from that of random keys "
        f"({base[0]:.2f}) by {listed}."
        if differ
        else "The exponents of sparse patterns are not told apart from that of random keys: "
        f"{listed}.",
        checks,
        "A few layers of one decoder at one length; intervals are over passages of one text.",
        "More passages.",
    )


def judge_depth(data: PaperData, settings: PaperSettings) -> Judgement:
    """Judge by the exponent behind the last layer, and by how errors grow."""
    exponents, error = data.depth.exponent.values, data.depth.error.values[:, -1, 0]
    last, count = exponents[-1], len(exponents)
    factor = (error[-1] / error[0]) ** (1 / max(count - 1, 1))
    check = Check(
        says="the rate 1/sqrt(n) of one layer survives to the end of the model",
        verdict=half_rate(last),
        measured=f"exponent behind the last layer {said(last)}",
        rule=HALF_RULE,
    )
    return Judgement(
        f"Behind the last of {count} layers, each attending to n random keys, the error falls "
        f"with exponent {said(last)}; it lies below 1/2 in {(exponents[:, 2] < 0.5).sum()} layers, "
        f"and the error grows by {factor:.2f} a layer.",
        [check],
        "One decoder; keys are drawn without replacement from short passages, with a correction "
        "for the finite population.",
        "More passages.",
    )


def judge_tails(data: PaperData, settings: PaperSettings) -> Judgement:
    """Judge by what both halves of the text say about every head."""
    verdicts = data.tails.verdict.values
    light, heavy = (int((verdicts == name).sum()) for name in ("sub-Gaussian", "heavier"))
    total = verdicts.size
    check = Check(
        says="keys are sub-Gaussian in every direction",
        verdict=verdict_of(light == total, heavy > 0.05 * total + 1),
        measured=f"{light} of {total} heads are, {heavy} are heavier, "
        f"{total - light - heavy} undecided",
        rule="a head counts if both halves of the text say so (found on one half, judged on "
        "the other) and the halves agree beyond chance over all heads; contradicted if more "
        "heads are heavier than one and one in twenty",
    )
    return Judgement(
        f"In their worst direction the keys of {light} of {total} heads are sub-Gaussian, those of "
        f"{heavy} are heavier, {total - light - heavy} are undecided. The median sub-Gaussian "
        f"parameter is {float(data.tails.proxy.sel(bound='value').median()):.2f} times the "
        "variance (1: Gaussian).",
        [check],
        "A finite sample shows tails only as far as it reaches.",
        "More tokens.",
    )


def judge_together(data: PaperData, settings: PaperSettings) -> Judgement:
    """Judge by whether squared errors of a layer's heads add up."""
    ends = data.heads.amplification.values
    middle, low, high = ends.T
    share = data.heads.effective_heads.sel(bound="value") / data.heads.psi.sizes["head"]
    # intervals widened so that they hold the numbers of all layers at once
    half = simultaneous(len(ends)) / 1.96 * (high - low) / 2
    apart = ((middle - half > 1) | (middle + half < 1)).any()
    layers = data.heads.psi["layer"].values
    words = ", ".join(f"layer {at}: {said(e)}" for at, e in zip(layers, ends, strict=True))
    check = Check(
        says="heads of one layer err independently: their squared errors add up",
        verdict=verdict_of(((middle - half > 0.9) & (middle + half < 1.1)).all(), apart),
        measured=f"squared error of the sum over the sum of squared errors, {words}",
        rule="contradicted if an interval excludes 1, holds if all lie within 0.9 to 1.1",
    )
    span = f"{middle.min():.2f} to {middle.max():.2f} of the sum over its heads"
    return Judgement(
        "Heads that see the same tokens do not err independently: the squared error of a layer "
        f"is {span}; {float(share.min()):.0%} to {float(share.max()):.0%} of the heads are "
        "effective."
        if apart
        else f"The squared error of a layer is {span}.",
        [check],
        "Mean outputs of pooled tokens at one size, one encoder.",
    )


def domain_verdicts(data: PaperData) -> Array:
    """Whether a head needs other numbers of tokens on other text, the same, or it is undecided."""
    verdicts, (_, low, high) = (
        data.domains.verdict.values,
        np.moveaxis(data.domains.effect.values, -1, 0),
    )
    same = (low > 1 / FACTOR) & (high < FACTOR) & (verdicts != "differs")
    return np.where(same, "the same", verdicts)


def judge_domains(data: PaperData, settings: PaperSettings) -> Judgement:
    """Judge by permutations of the blocks, at a false discovery rate of 5%."""
    verdicts = domain_verdicts(data)
    differ, same = (int((verdicts == name).sum()) for name in ("differs", "the same"))
    total = verdicts.size
    check = Check(
        says="a head needs as many tokens on another kind of text",
        verdict=verdict_of(same == total, differ > 0),
        measured=f"{differ} of {total} heads differ, {same} are the same, "
        f"{total - differ - same} undecided",
        rule="contradicted if a head differs (blocks exchanged between texts, p-values "
        "adjusted over the heads, false discovery rate 5%); holds if in every head the 95% "
        f"interval of the ratio lies within a factor of {FACTOR}",
    )
    return Judgement(
        f"Between the text and another kind of text {differ} of {total} heads need another number "
        f"of tokens for 10% error; the corpus explains {float(data.domains.share.median()):.0%} "
        "of a typical head's variance between blocks.",
        [check],
        "Two corpora, and blocks of one corpus are not quite independent.",
        "More blocks.",
    )


def judge_causal(data: PaperData, settings: PaperSettings) -> Judgement:
    """Compare rates and constants with and without the mask; heads are the units of intervals."""
    causal = data.causal
    sizes = causal.dataset["size"].values
    rate, whole = causal.late_difference.values, causal.difference.values
    constant, position = causal.ratio.values[-1], causal.position_ratio.values
    against, first = causal.against_first.values, float(causal.first_ratio[-1])
    span = f"n = {sizes[sizes >= sizes[-1] / 2**OCTAVES][0]:,} to {sizes[-1]:,}"
    checks = [
        Check(
            says="The mean output converges at the same rate with the mask as without",
            verdict=within(rate, -SAME, SAME),
            measured=f"exponent with the mask minus without {said(rate)} on {span}; "
            f"{said(whole)} from n = {sizes[0]} on",
            rule=f"holds if the interval lies within {SAME:g} of 0, contradicted if it lies beyond",
        ),
        Check(
            says="The constant is larger",
            verdict=above(constant, 1),
            measured=f"error with the mask over that without at n = {sizes[-1]:,}: "
            f"{said(constant)}; no effect would be 1, half the tokens 1.41",
            rule="holds if the interval lies above 1, contradicted if it lies below",
        ),
        Check(
            says="A query at position i errs as without a mask among i keys",
            verdict=within(position, 1 / CLOSE, CLOSE),
            measured="error with the mask at positions n/2 to n over that without it among as "
            f"many keys: {said(position, 3)}",
            rule="holds if the interval lies within 5% of 1, contradicted if it lies beyond; the "
            "answer is known to be 1",
        ),
        Check(
            says="First-order theory gives the constant",
            verdict=within(against, 1 / CLOSE, CLOSE),
            measured=f"measured ratio over that of first order ({first:.2f} in the geometric "
            f"mean): {said(against)}",
            rule="holds if the interval lies within 5% of 1, contradicted if it lies beyond",
            counts=False,
        ),
    ]
    return Judgement(
        f"With the mask the mean output errs {said(constant)} times as much at "
        f"n = {sizes[-1]:,} ({first:.2f} to first order), and its exponent differs by "
        f"{said(rate)} on {span}. At n = {sizes[0]} the ratio is "
        f"{causal.ratio.values[0, 0]:.2f}: until it has risen, the mean with the mask falls more "
        "slowly.",
        checks,
        f"Tokens are drawn independently from {int(causal.tokens):,} of "
        f"{settings.text}, which real passages are not; what a head would do beyond that many "
        f"different tokens is not seen. {int(causal.heads)} heads stand for the model.",
        "More heads and larger clouds.",
    )


CLAIMS: dict[str, Claim] = {
    "limit": Claim(
        "The infinite-token limit",
        "Attention over n tokens tends to V grad K(Ax), with a closed form for Gaussian tokens.",
        ("limit",),
        judge_limit,
    ),
    "ball": Claim(
        "Uniform convergence on a ball",
        "On a ball of radius R the error is at most C(R)/sqrt(n), with C(R) exponential in R.",
        ("ball",),
        judge_ball,
    ),
    "moments": Claim(
        "Moments: constants polynomial in the support",
        "Mean and covariance converge like n^-beta with beta < 1/2, with constants polynomial in "
        "the size R of the support.",
        ("moments",),
        judge_moments,
    ),
    "bound": Claim(
        "The bound on the exponent",
        "beta is at least 1/(2(1+32 Psi)), Psi the squared horizon.",
        ("gaussian", "ablation", "heads"),
        judge_bound,
    ),
    "reference": Claim(
        "The reference line",
        "On synthetic Gaussian tokens beta follows 1/(2(1+Psi)).",
        ("gaussian",),
        judge_reference,
    ),
    "ablation": Claim(
        "The horizon ablation",
        "Scaling the tilts by alpha, from 0.01 to 10, slows convergence: beta falls with alpha^2.",
        ("ablation", "alpha"),
        judge_ablation,
    ),
    "hardmax": Claim(
        "Hardmax converges logarithmically",
        "With infinite tilts the mean of n Gaussian tokens is of size ln(4)/(2 sqrt(2 ln n)).",
        ("hardmax", "argmax"),
        judge_hardmax,
    ),
    "heads": Claim(
        "Heads of an encoder",
        "Heads of a real model converge at rates strictly below 1/2, more slowly the larger "
        "Psi is, and never more slowly than the bound.",
        ("heads",),
        judge_heads,
    ),
    "downstream": Claim(
        "The slowdown shows in downstream accuracy",
        "The slow convergence of attention over n tokens is reflected in the accuracy of "
        "downstream tasks (third version of the paper).",
        ("tokens", "texts"),
        judge_downstream,
    ),
    "sparse": Claim(
        "Sparse attention",
        "Left open: do sparse patterns converge to dense attention at the same rate?",
        ("sparse",),
        judge_sparse,
    ),
    "depth": Claim(
        "Depth",
        "Left open: does the rate of one layer survive a stack of layers?",
        ("depth",),
        judge_depth,
    ),
    "tails": Claim(
        "Sub-Gaussian tokens",
        "The theory assumes sub-Gaussian tokens.",
        ("tails",),
        judge_tails,
    ),
    "together": Claim(
        "Several heads",
        "Left open: do the heads of one layer err independently?",
        ("heads",),
        judge_together,
    ),
    "domains": Claim(
        "Other domains",
        "Left open: are a head's numbers the same on another kind of text?",
        ("domains",),
        judge_domains,
    ),
    "causal": Claim(
        "With a causal mask: the same rate, a larger constant",
        "Since the paper: causal attention has a limit, too (arXiv 2605.09213). Averaged over "
        "positions it converges at the same rate, with a larger constant.",
        ("causal",),
        judge_causal,
    ),
}
