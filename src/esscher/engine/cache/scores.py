"""Attention weights of many queries, summed by key a block at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from esscher.engine.attention.arrays import Workers
from esscher.engine.attention.compiled.kernel import kernel_for
from esscher.engine.attention.compiled.ragged import weigh_compiled
from esscher.engine.cache.budgets import Score
from esscher.engine.models import LayerInputs
from esscher.engine.models.weights import Rotation, rotate

#: Weights held at a time: a megabyte, which the cache of a core holds.
BLOCK = 2**18


class Weighed(NamedTuple):
    """Sums over queries of their squared weights and of their weights, and the largest, [n]."""

    square: Tensor
    received: Tensor
    largest: Tensor


@torch.no_grad()
def weighed(
    query: Tensor,
    keys: Tensor,
    *,
    softcap: float | None = None,
    bias: Tensor | None = None,
    ends: Tensor | None = None,
    columns: int | None = None,
    block: int = BLOCK,
) -> Weighed:
    """Sum the attention weights of the queries of one head.

    Parameters
    ----------
    query
        [w, d_k] in float32, scaled.
    keys
        [n, d_k] in float32.
    softcap
        Bound of the logits, if there is one.
    bias
        Added to all logits of a key, [n]: a log-weight, or ``-inf`` for a key that nobody sees.
    ends
        How many of the keys each query sees, [w], not decreasing; all by default.
    columns
        Sums are for the first keys only; for all by default.
    block
        Weights held at a time where PyTorch does the work; the compiled kernel has its own.
    """
    count, there = len(query), len(keys)
    columns = there if columns is None else columns
    kernel = kernel_for(keys.device, keys.dtype)
    if kernel is not None and count:
        return Weighed(*weigh_compiled(kernel, query, keys, softcap, bias, ends, columns))
    square, received, largest = keys.new_zeros(3, columns)
    # every weight is touched a few times: those of a block stay in the core's cache meanwhile
    rows = max(1, min(count, block // max(1, there)))
    room, ones, across = keys.new_empty(rows, there), keys.new_ones(rows), keys.T
    for start in range(0, count, rows):
        own = query[start : start + rows]
        weights, one = room[: len(own)], ones[: len(own)]
        torch.mm(own, across, out=weights)
        if softcap is not None:
            weights.div_(softcap).tanh_().mul_(softcap)
        if bias is not None:
            weights += bias
        if ends is not None:
            _hide(weights, ends[start : start + rows])
        torch.softmax(weights, dim=-1, out=weights)
        part = weights[:, :columns]
        received.addmv_(part.T, one)
        torch.maximum(largest, part.amax(0), out=largest)
        square.addmv_(part.square_().T, one)
    return Weighed(square, received, largest)


def _hide(logits: Tensor, ends: Tensor) -> None:
    """Hide the keys from the end of each query on."""
    first = int(ends[0])
    places = torch.arange(first, logits.shape[1], device=logits.device)
    logits[:, first:].masked_fill_(places >= ends[:, None], -torch.inf)


# What queries say about the keys of a prompt.
#
# Queries to come resemble those that were. From the weights ``p_wj`` of W queries a key gets the
# score
#
#     s_j^2 = sum_h  mean_w p_hwj^2  |v_j - y_h|^2,
#
# summed over the query heads h that share the key, ``y_h`` the mean output of the queries: the
# key's share of the variance of a sampled head (see ``effects.py``). Weighing the differences by
# the model's gradients gained nothing once budgets are planned, and would have to be stored.
#
# Which queries? The last ones of a prompt (:func:`observe`) are the nearest to those to come, but
# few, and know nothing of what will be asked about its beginning. All of them (:func:`observe_all`)
# stand at the wrong places: a query sees only what lies before it, and at other distances. So each
# is moved to a place behind the prompt, by turning it as the model's rotary embedding would, and
# sees all keys. On SmolLM2 the divergence from dense was about half of that with the last queries
# on most passages, and what is asked for later is found; no second reading is needed. (A head that
# continues repeated text looks for the token after an earlier copy of its own: moved, the queries
# of a prompt do so without the prompt being repeated.) What one query needs is lost in a mean over
# thousands; so all queries also score a key by the largest of its weights in the place of the mean,
# and both scores are :func:`combined`.

#: Last queries that are observed. On SmolLM2 64 predict the effect of keys better than 16 to 256.
WINDOW = 64
#: Places behind the prompt over which all queries are spread.
AHEAD = 128
#: The inverse of the golden ratio: its multiples, modulo 1, are evenly spread.
GOLDEN = 0.6180339887498949
#: Smallest mean of squared scores that is divided by.
TINY = 1e-30


@dataclass(frozen=True, eq=False)
class Observation:
    """Observed attention of one layer.

    Attributes
    ----------
    square
        Mean over the observed queries of their squared weights, [heads, n_k].
    received
        Mean of their weights, [heads, n_k].
    output
        Mean attention output of the observed queries, [heads, d_v].
    largest
        Largest weight among the queries, [heads, n_k], if scores take it into account.
    """

    square: Tensor
    received: Tensor
    output: Tensor
    largest: Tensor | None = None

    def score(
        self, values: Tensor, log_weight: Tensor | None = None, count: Tensor | None = None
    ) -> Tensor:
        """Scores of the keys, [key heads, n_k].

        Parameters
        ----------
        values
            Of the keys, [key heads, n_k, d_v].
        log_weight
            Of keys that stand for several, [n_k]; scores are then of one of these.
        count
            How often each counts when two kinds of scores are :func:`combined`, [n_k].
        """
        values = values.to(device=self.square.device, dtype=torch.float32)
        output = self.output.view(len(values), -1, values.shape[-1])
        # |v - y|^2, [key heads, group, n_k]
        apart = values.square().sum(-1)[:, None] - 2 * output @ values.mT
        apart = (apart + output.square().sum(-1, keepdim=True)).clamp_(min=0.0)

        def root(squares: Tensor) -> Tensor:
            own = squares.view(len(values), -1, squares.shape[-1])[..., : values.shape[1]]
            score = (apart * own).sum(1).sqrt_()
            return score if log_weight is None else score * torch.exp(-log_weight.to(score.device))

        score = root(self.square)
        if self.largest is None:
            return score
        return combined(score, root(self.largest.square()), count)


def observe(inputs: LayerInputs, window: int = WINDOW, batch: int = 0) -> Observation:
    """Look at the last queries of one text (an encoder's: queries spread over the text).

    Queries at padding are none of the text's.
    """
    own = inputs.own_queries(batch)
    if inputs.causal:
        rows = own[-window:]
    else:
        rows = own[torch.linspace(0, len(own) - 1, min(window, len(own))).round().long()]
    key_heads, group = inputs.k.shape[1], inputs.group
    query = inputs.q[batch, :, rows].to(torch.float32)
    keys, values = (x[batch].to(torch.float32) for x in (inputs.k, inputs.v))
    logits = capped(
        query.reshape(key_heads, group * len(rows), -1) @ keys.mT * inputs.scaling, inputs.softcap
    ).view(key_heads * group, len(rows), -1)
    bias = inputs.text_bias(batch)
    if bias is not None:
        logits += bias[:, rows]
    # in a causal text without padding all rows see what lies before the first of them
    plain = inputs.causal and inputs.visible_mask is None and inputs.window is None
    near = int(rows[0]) + inputs.offset if plain else 0
    seen = inputs.visible(slice(int(rows[0]), int(rows[-1]) + 1))
    seen = seen[min(batch, len(seen) - 1)][:, rows - rows[0], near:]
    logits[..., near:].masked_fill_(~seen, -torch.inf)
    weights = torch.softmax(logits, dim=-1)
    mean = weights.mean(1)
    # the mean of the outputs is the output of the mean weights
    output = mean.view(key_heads, group, -1) @ values
    return Observation(
        square=weights.square_().mean(1).cpu(),
        received=mean.cpu(),
        output=output.view(key_heads * group, -1).cpu(),
    )


@torch.no_grad()
def observe_all(inputs: LayerInputs, rotation: Rotation | None, batch: int = 0) -> Observation:
    """Look at all queries of a prompt, as they would ask from places behind it.

    Parameters
    ----------
    inputs
        The layer of a decoder that reads a prompt at once, without a sliding window.
    rotation
        Its rotary embedding; None if the layer has none, and queries stay as they are.
    batch
        Number of the text. Padding neither asks nor is asked.
    """
    own = inputs.own_queries(batch)
    count, keys_there = len(own), inputs.k.shape[2]
    there = own + inputs.offset
    bias = last_bias(inputs, batch, own, there)
    away = torch.arange(count, 0, -1, device=own.device)
    turn = None if rotation is None else moves(rotation, away)
    keys, values = (x[batch, :, there].to(torch.float32) for x in (inputs.k, inputs.v))

    @torch.no_grad()
    def ask(h: int) -> Weighed:
        query = inputs.q[batch, h, own].to(torch.float32)
        query = (query if turn is None else rotate(query, *turn)) * inputs.scaling
        added = None if bias is None else bias[min(h, len(bias) - 1)]
        return weighed(query, keys[h // inputs.group], softcap=inputs.softcap, bias=added)

    heads = inputs.q.shape[1]
    square, received, largest = torch.zeros(3, heads, keys_there)
    output = torch.zeros(heads, inputs.v.shape[-1])
    with Workers(keys) as workers:
        for h, found in enumerate(workers.map(ask, range(heads))):
            square[h, there.cpu()] = (found.square / count).cpu()
            received[h, there.cpu()] = (found.received / count).cpu()
            largest[h, there.cpu()] = found.largest.cpu()
            output[h] = (found.received / count @ values[h // inputs.group]).cpu()
    return Observation(square, received, output, largest)


def prompt_scores(
    inputs: LayerInputs, score: Score, rotation: Rotation | None, batch: int = 0
) -> Tensor:
    """Scores of the keys of one text, [key heads, n_k], by the queries that read it.

    Parameters
    ----------
    inputs
        The layer; an encoder's queries are asked where they stand.
    score
        Which queries: the ``"last"`` ones, or all of them, moved behind the text.
    rotation
        The layer's rotary embedding; None if it has none.
    batch
        Number of the text.
    """
    if score == "last" or not inputs.causal:
        seen = observe(inputs, batch=batch)
    else:
        seen = observe_all(inputs, rotation, batch)
    # padding has no part in the scale of scores
    count = torch.zeros(inputs.k.shape[2])
    count[inputs.own_queries(batch).cpu() + inputs.offset] = 1.0
    return seen.score(inputs.v[batch], count=count)


@torch.no_grad()
def observe_held(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor,
    softcap: float | None,
) -> Observation:
    """Look at queries of one key head that ask from behind the keys that a cache holds.

    Parameters
    ----------
    query
        Of the heads that share the keys, moved and scaled, [group, w, d_k].
    keys, values
        [n, d_k], [n, d_v].
    bias
        Log-weights, ``-inf`` at padding, [n].
    softcap
        Of the logits.
    """
    keys, values = keys.to(torch.float32), values.to(torch.float32)
    found = [weighed(own, keys, softcap=softcap, bias=bias) for own in query]
    square, received, largest = (torch.stack(x) for x in zip(*found, strict=True))
    received, count = received / query.shape[1], query.shape[1]
    output = received @ values
    return Observation(square.cpu() / count, received.cpu(), output.cpu(), largest.cpu())


def moves(rotation: Rotation, away: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines that turn queries to places spread behind the text.

    Parameters
    ----------
    rotation
        The rotary embedding.
    away
        Tokens from each query to the first place behind the text, [w].
    """
    index = torch.arange(len(away), device=away.device)
    ahead = ((index * GOLDEN) % 1.0 * AHEAD).long()
    cos, sin = rotation(away + ahead)
    # embeddings that also scale have done so already
    scale = (cos.square() + sin.square()).rsqrt()
    return cos * scale, sin * scale


def last_bias(inputs: LayerInputs, batch: int, own: Tensor, there: Tensor) -> Tensor | None:
    """What is added to the logits of the last query, [heads or 1, keys]."""
    bias = inputs.text_bias(batch)
    return None if bias is None else bias[:, own[-1], there].to(torch.float32)


def combined(first: Tensor, second: Tensor, count: Tensor | None = None) -> Tensor:
    """Scores [key heads, n_k] from two kinds of queries: root of the sum of their shares.

    Both are divided by their mean square; there each key counts ``count`` [n_k] times, once by
    default.
    """

    def share(score: Tensor) -> Tensor:
        square = score.square()
        if count is None:
            return square / square.mean(-1, keepdim=True).clamp(min=TINY)
        mean = (square * count).sum(-1, keepdim=True) / count.sum().clamp(min=1.0)
        return square / mean.clamp(min=TINY)

    return (share(first) + share(second)).sqrt()


def scores_again(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    log_weight: Tensor,
    visible: Tensor,
    scaling: float,
    softcap: float | None,
) -> Tensor:
    """Scores of keys that have weights already, by the queries of one key head.

    The same as :meth:`Observation.score`, a key that stands for several counting as often: what is
    judged again is the sample, not the tokens it was drawn from.

    Parameters
    ----------
    query
        Observed queries of the heads that share the keys, [group, w, d_k].
    keys, values, log_weight
        [n, d_k], [n, d_v], [n].
    visible
        Which keys each query sees, [w, n].
    scaling, softcap
        Of the logits.
    """
    query, keys, values = (x.to(torch.float32) for x in (query, keys, values))
    logits = capped(query @ keys.T * scaling, softcap) + log_weight
    logits = logits.masked_fill_(~visible, -torch.inf)
    weights = torch.nan_to_num(torch.softmax(logits, dim=-1), nan=0.0)
    total = torch.zeros(len(keys), device=keys.device)
    for own in weights:
        apart = values - (own @ values).mean(0)
        total += own.square().mean(0) * apart.square().sum(-1)
    return total.sqrt()


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """Logits within a soft bound, if there is one."""
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap


# What the queries with which a model repeats a text say about its keys.
#
# The queries of the second copy of a text look for its first copy: what they attend to is what it
# takes to give the text back, whatever will be asked (as in KVzip, arXiv 2505.23416, which takes
# the largest weight of a token; here it is the mean of squared weights, as for all other queries).


class Repetition:
    """Attention of one key head to tokens, summed over the queries that repeat them.

    Parameters
    ----------
    group
        Query heads that share the keys.
    tokens
        How many; the first keys.
    """

    def __init__(self, group: int, tokens: int) -> None:
        self._square, self._received = torch.zeros(2, group, tokens)
        self._count = 0

    def add(
        self,
        query: Tensor,
        keys: Tensor,
        ends: Tensor,
        softcap: float | None = None,
        bias: Tensor | None = None,
    ) -> None:
        """Add queries [group, w, d_k] in float32, scaled; the others as for ``weighed``."""
        tokens = self._square.shape[1]
        for h, own in enumerate(query):
            found = weighed(own, keys, softcap=softcap, bias=bias, ends=ends, columns=tokens)
            self._square[h] += found.square.cpu()
            self._received[h] += found.received.cpu()
        self._count += query.shape[1]

    def score(self, values: Tensor, log_weight: Tensor | None = None) -> Tensor:
        """Scores of the tokens, [n], given their values [n, d_v]; see :class:`Observation`."""
        count = max(1, self._count)
        received = self._received / count
        output = received @ values.to(device="cpu", dtype=torch.float32)
        found = Observation(self._square / count, received, output)
        return found.score(values[None], log_weight)[0]
