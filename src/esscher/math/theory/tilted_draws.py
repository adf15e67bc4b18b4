"""Drawing tokens from a tilted law: density proportional to ``exp<t, x>`` times the law's own.

Averages of ``exp(<t, x> - K(t)) f(x)`` over tokens of the law itself are carried by tokens that are
hardly ever drawn. Drawn from the tilted law they are plain averages of f.
"""

from __future__ import annotations

import numpy as np
import scipy

from esscher.core.validation import Array
from esscher.math.laws import Cube, FiniteTokens, Gaussian, Law, Signs, Sphere

#: Rejected cosines are drawn again this often at most; two of three are accepted.
ROUNDS = 200
#: Products of tilts and finite tokens that are held at a time.
BLOCK = 4_000_000


def can_tilt(law: Law) -> bool:
    """Whether the tilted law can be drawn from."""
    return isinstance(law, Gaussian | Sphere | Cube | Signs | FiniteTokens)


def tilted_draws(law: Law, tilts: Array, rng: np.random.Generator) -> Array:
    """Draw one token from the law tilted by each row."""
    if isinstance(law, Gaussian):
        noise = law.sample(len(tilts), rng) - law.mean
        return np.asarray(law.tilted_mean(tilts) + noise)
    if isinstance(law, Signs):
        up = rng.random(tilts.shape) < scipy.special.expit(2 * law.scale * tilts)
        return np.where(up, law.scale, -law.scale)
    if isinstance(law, Cube):
        return _in_cube(law.half_width, tilts, rng)
    if isinstance(law, Sphere):
        return _on_sphere(law.radius, tilts, rng)
    assert isinstance(law, FiniteTokens)
    return _among(law, tilts, rng)


def _in_cube(half_width: float, tilts: Array, rng: np.random.Generator) -> Array:
    """By inversion, coordinate by coordinate."""
    uniform = rng.random(tilts.shape)
    slope = np.abs(tilts) * half_width
    steep = np.maximum(slope, 1e-6)
    # density exp(slope y) on [-1, 1]; below 1e-6 it is flat to rounding of what follows
    bent = 1 + np.log(uniform + (1 - uniform) * np.exp(-2 * steep)) / steep
    y = np.where(slope > 1e-6, np.maximum(bent, -1.0), 2 * uniform - 1)
    return np.asarray(half_width * np.where(tilts < 0, -y, y))


def _on_sphere(radius: float, tilts: Array, rng: np.random.Generator) -> Array:
    """Von Mises-Fisher: Wood's rejection for the cosine with the tilt, the rest uniform."""
    count, d = tilts.shape
    length = np.linalg.norm(tilts, axis=1)
    axis = tilts / np.where(length > 0, length, 1.0)[:, None]
    axis[length == 0, 0] = 1.0
    kappa = radius * length
    if d == 1:
        up = rng.random(count) < scipy.special.expit(2 * kappa)
        return np.asarray(radius * axis * np.where(up, 1.0, -1.0)[:, None])
    b = (d - 1) / (2 * kappa + np.sqrt(4 * kappa**2 + (d - 1) ** 2))
    x = (1 - b) / (1 + b)
    # 1 - x^2 through b, which keeps its digits when the tilt is strong
    peak = kappa * x + (d - 1) * np.log(4 * b / (1 + b) ** 2)
    cosine = np.empty(count)
    left = np.arange(count)
    for _ in range(ROUNDS):
        z = rng.beta((d - 1) / 2, (d - 1) / 2, len(left))
        c = b[left]
        w = (1 - (1 + c) * z) / (1 - (1 - c) * z)
        score = kappa[left] * w + (d - 1) * np.log1p(-x[left] * w) - peak[left]
        taken = score >= np.log(rng.random(len(left)))
        cosine[left[taken]] = w[taken]
        left = left[~taken]
        if not len(left):
            break
    across = rng.standard_normal((count, d))
    across -= np.sum(across * axis, axis=1)[:, None] * axis
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    sine = np.sqrt(np.maximum(1 - cosine**2, 0.0))
    return np.asarray(radius * (cosine[:, None] * axis + sine[:, None] * across))


def _among(law: FiniteTokens, tilts: Array, rng: np.random.Generator) -> Array:
    """Softmax sampling, a block of tilts at a time."""
    out = np.empty((len(tilts), law.dim))
    rows = max(1, BLOCK // len(law.tokens))
    for start in range(0, len(tilts), rows):
        logits = tilts[start : start + rows] @ law.tokens.T + np.log(law.weights)
        cumulative = np.cumsum(np.exp(logits - logits.max(axis=1, keepdims=True)), axis=1)
        level = rng.random(len(logits)) * cumulative[:, -1]
        chosen = np.sum(cumulative < level[:, None], axis=1)
        out[start : start + rows] = law.tokens[chosen]
    return out
