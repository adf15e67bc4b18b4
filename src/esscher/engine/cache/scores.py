"""Scores of a prompt's keys, from the attention weights of its queries.

Queries to come resemble those that were. From the weights ``p_wj`` of W queries a key gets the
score

    s_j^2 = sum_h  mean_w p_hwj^2  |v_j - y_h|^2,

summed over the query heads h that share the key, ``y_h`` the mean output of the queries: the
key's share of the variance of a sampled head (see ``effects.py``). Weighting the differences by
the model's gradients gained nothing once budgets are planned, and would have to be stored.

Which queries? The last ones of a prompt are the nearest to those to come, but few, and know nothing
of what will be asked about its beginning. All of them stand at the wrong places: a query sees only
what lies before it, and at other distances. So each is moved to a place after the prompt, by
rotating it as the model's rotary embedding would, and sees all keys. On SmolLM2 the divergence from
dense was about half of that with the last queries on most passages, and what is asked for later is
retrieved; no second reading is needed. (A head that continues repeated text looks for the token
after an earlier copy of its own: moved, the queries of a prompt do so without the prompt being
repeated.) What one query needs is lost in a mean over thousands; so all queries also score a key by
the largest of its weights in place of the mean, and both scores are :func:`combined`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esscher.engine.attention.arrays import Workers
from esscher.engine.attention.compiled.kernel import kernel_for
from esscher.engine.attention.ragged import weigh_compiled
from esscher.engine.cache.budgets import Score
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.weights import Rotation, rotate

#: Weights held at a time: a megabyte, which the cache of a core holds.
BLOCK = 2**18
#: Last queries that score keys. On SmolLM2 64 predict the effect of keys better than 16 to 256.
WINDOW = 64
#: Places after the prompt over which all queries are spread.
AHEAD = 128
#: The inverse of the golden ratio: its multiples, modulo 1, are evenly spread.
GOLDEN = 0.6180339887498949
#: Queries of all heads of a key head together to which what is kept is fitted.
QUERIES = 3072
#: Smallest mean of squared scores that is divided by.
TINY = 1e-30


@torch.no_grad()
def column_sums(
    query: Tensor,
    keys: Tensor,
    *,
    softcap: float | None = None,
    bias: Tensor | None = None,
    ends: Tensor | None = None,
    columns: int | None = None,
    block: int = BLOCK,
) -> Tensor:
    """Sum the attention weights of the queries of one head by key, a block at a time.

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
        How many of the keys each query sees, [w], not decreasing, none where it is negative; all by
        default.
    columns
        Sums are for the first keys only; for all by default.
    block
        Weights held at a time where PyTorch does the work; the compiled kernel has its own.

    Returns
    -------
    Tensor
        Sums over queries of their squared weights and of their weights, and the largest, [3, n].
    """
    count, n = len(query), len(keys)
    columns = n if columns is None else columns
    kernel = kernel_for(keys.device, keys.dtype)
    if kernel is not None and count:
        return weigh_compiled(kernel, query, keys, softcap, bias, ends, columns)[0]
    if ends is not None:
        blind = int((ends <= 0).sum())
        query, ends, count = query[blind:], ends[blind:], count - blind
    square, received, largest = sums = keys.new_zeros(3, columns)
    # every weight is touched a few times: those of a block stay in the core's cache meanwhile
    rows = max(1, min(count, block // max(1, n)))
    room, ones, across = keys.new_empty(rows, n), keys.new_ones(rows), keys.T
    for start in range(0, count, rows):
        queries = query[start : start + rows]
        weights, one = room[: len(queries)], ones[: len(queries)]
        torch.mm(queries, across, out=weights)
        if softcap is not None:
            weights.div_(softcap).tanh_().mul_(softcap)
        if bias is not None:
            weights += bias
        if ends is not None:
            last = ends[start : start + rows, None]
            first = int(last[0])
            places = torch.arange(first, n, device=weights.device)
            weights[:, first:].masked_fill_(places >= last, -torch.inf)
        torch.softmax(weights, dim=-1, out=weights)
        part = weights[:, :columns]
        received.addmv_(part.T, one)
        torch.maximum(largest, part.amax(0), out=largest)
        square.addmv_(part.square_().T, one)
    return sums


@torch.no_grad()
def weigh(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    answered: int,
    softcap: float | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of weights as :func:`column_sums`, and what the first queries get, from one pass.

    Parameters
    ----------
    query, keys, softcap, bias
        As there.
    values
        Of the keys, [n, d_v] in float32.
    answered
        How many queries are answered.

    Returns
    -------
    tuple[Tensor, Tensor, Tensor]
        The sums, [3, n]; of the first queries the logarithms of the sums of their exponentials,
        [answered], and their outputs, [answered, d_v].
    """
    kernel = kernel_for(keys.device, keys.dtype)
    if kernel is not None and len(query):
        return weigh_compiled(kernel, query, keys, softcap, bias, None, len(keys), values, answered)
    sums = column_sums(query, keys, softcap=softcap, bias=bias)
    log_sum, output = keys.new_empty(answered), keys.new_empty(answered, values.shape[1])
    rows = max(1, BLOCK // max(1, len(keys)))
    for start in range(0, answered, rows):
        block = slice(start, min(start + rows, answered))
        logits = capped(query[block] @ keys.T, softcap)
        if bias is not None:
            logits += bias
        log_sum[block] = logits.logsumexp(-1)
        output[block] = torch.softmax(logits, dim=-1) @ values
    return sums, log_sum, output


@dataclass(frozen=True, eq=False)
class QueryTargets:
    """What queries get from all keys of a key head.

    Attributes
    ----------
    query
        Scaled queries of all heads that share the keys, [w, d_k].
    log_sum
        Logarithm of the sum of their exponentials, [w].
    output
        Their output, [w, d_v].
    bias
        What is added to the logits of a key, [w or 1, n_k], if something is.
    softcap
        Bound of the logits, if there is one.
    """

    query: Tensor
    log_sum: Tensor
    output: Tensor
    bias: Tensor | None
    softcap: float | None


def answered_first(count: int, heads: int, most: int) -> tuple[Tensor, int]:
    """An order of the queries of a head whose first ones are evenly spread, and how many these are.

    Of all ``heads`` together they are ``most``.
    """
    each = min(count, -(-most // heads))
    chosen = torch.linspace(0, count - 1, each).round().long()
    others = torch.ones(count, dtype=torch.bool)
    others[chosen] = False
    return torch.cat([chosen, torch.nonzero(others)[:, 0]]), each


def key_scores(
    square: Tensor,
    output: Tensor,
    values: Tensor,
    largest: Tensor | None = None,
    *,
    log_weight: Tensor | None = None,
    count: Tensor | None = None,
) -> Tensor:
    """Scores of the keys, [key heads, n_k], from the weights of queries.

    Parameters
    ----------
    square
        Mean over the queries of their squared weights, [heads, n_k].
    output
        Mean attention output of the queries, [heads, d_v].
    values
        Of the keys, [key heads, n_k, d_v].
    largest
        Largest weight among the queries, [heads, n_k], if it is to score keys as well.
    log_weight
        Of keys that stand for several, [n_k]; scores are then of one of these.
    count
        How often each counts when the two kinds of scores are :func:`combined`, [n_k].
    """
    values = values.to(device=square.device, dtype=torch.float32)
    output = output.view(len(values), -1, values.shape[-1])
    # |v - y|^2, [key heads, group, n_k]
    distance = values.square().sum(-1)[:, None] - 2 * output @ values.mT
    distance = (distance + output.square().sum(-1, keepdim=True)).clamp_(min=0.0)

    def root(squares: Tensor) -> Tensor:
        squares = squares.view(len(values), -1, squares.shape[-1])[..., : values.shape[1]]
        score = (distance * squares).sum(1).sqrt_()
        return score if log_weight is None else score * torch.exp(-log_weight.to(score.device))

    if largest is None:
        return root(square)
    return combined(root(square), root(largest.square()), count)


def prompt_scores(
    inputs: LayerInputs, score: Score, rotation: Rotation | None, batch: int = 0
) -> Tensor:
    """Scores of the keys of one text, [key heads, n_k]; see :func:`observe_prompt`."""
    return observe_prompt(inputs, score, rotation, batch, most=0)[0]


@torch.no_grad()
def observe_prompt(
    inputs: LayerInputs,
    score: Score,
    rotation: Rotation | None,
    batch: int = 0,
    most: int = QUERIES,
) -> tuple[Tensor, list[QueryTargets]]:
    """Scores of the keys of one text by the queries that read it, and what some of these get.

    Parameters
    ----------
    inputs
        The layer of a decoder that reads a prompt at once; without a sliding window unless the last
        queries score. Padding neither scores nor is scored.
    score
        Which queries: the ``"last"`` ones where they stand, or all of them, moved after the text.
    rotation
        The layer's rotary embedding; None if it has none, and queries stay as they are.
    batch
        Number of the text.
    most
        Queries of a key head, spread over the text and moved after it, whose outputs are wanted;
        without any there are no targets.

    Returns
    -------
    tuple[Tensor, list[QueryTargets]]
        Scores, [key heads, n_k]; and targets by key head, whose keys are those without padding.
    """
    if score == "last" and not most:
        return _last_scores(inputs, batch), []
    rows, group = inputs.text_queries(batch), inputs.group
    count, positions = len(rows), rows + inputs.offset
    order, each = answered_first(count, group, most)
    if score == "last":
        order = order[:each]
    order = order.to(rows.device)
    bias = last_bias(inputs, batch, rows, positions)
    queries = inputs.q[batch][:, rows[order]].to(torch.float32)
    if rotation is not None:
        turn = moves(rotation, torch.arange(count, 0, -1, device=rows.device))
        queries = rotate(queries, *(x[order] for x in turn))
    queries = queries * inputs.scaling
    keys, values = (x[batch, :, positions].to(torch.float32) for x in (inputs.k, inputs.v))

    def head_sums(h: int) -> tuple[Tensor, Tensor, Tensor]:
        added = None if bias is None else bias[min(h, len(bias) - 1)]
        g = h // group
        return weigh(queries[h], keys[g], values[g], each, inputs.softcap, added)

    heads = len(queries)
    with Workers(keys) as workers:
        sums, log_sums, outputs = zip(*workers.map(head_sums, range(heads)), strict=True)
    targets = []
    for g in range(len(keys) if most else 0):
        mine = slice(g * group, (g + 1) * group)
        added = None
        if bias is not None:
            of_heads = bias[mine] if len(bias) > 1 else bias
            added = of_heads.expand(group, -1).repeat_interleave(each, dim=0)
        query = queries[mine, :each].flatten(0, 1)
        both = torch.cat(log_sums[mine]), torch.cat(outputs[mine])
        targets.append(QueryTargets(query, *both, added, inputs.softcap))
    if score == "last":
        return _last_scores(inputs, batch), targets
    index = positions.cpu()
    square, received, largest = (
        torch.stack(sums, dim=1).cpu() / torch.tensor([count, count, 1.0])[:, None, None]
    )
    output = (received.view(len(keys), group, -1) @ values.cpu()).flatten(0, 1)
    # padding has no part in the scale of scores
    spread = torch.zeros(2, heads, inputs.k.shape[2])
    spread[:, :, index] = torch.stack([square, largest])
    present = torch.zeros(inputs.k.shape[2])
    present[index] = 1.0
    return key_scores(spread[0], output, inputs.v[batch], spread[1], count=present), targets


def _last_scores(inputs: LayerInputs, batch: int) -> Tensor:
    """Scores of the keys of one text by its last queries."""
    rows = inputs.text_queries(batch)[-WINDOW:]
    key_heads, group = inputs.k.shape[1], inputs.group
    query = inputs.q[batch, :, rows].to(torch.float32)
    keys, values = (x[batch].to(torch.float32) for x in (inputs.k, inputs.v))
    logits = query.reshape(key_heads, group * len(rows), -1) @ keys.mT * inputs.scaling
    logits = capped(logits, inputs.softcap).view(key_heads * group, len(rows), -1)
    bias = inputs.text_bias(batch)
    if bias is not None:
        logits += bias[:, rows]
    # in a text without padding all rows see what lies before the first of them
    plain = inputs.causal and inputs.visible_mask is None and inputs.window is None
    near = int(rows[0]) + inputs.offset if plain else 0
    seen = inputs.visible(slice(int(rows[0]), int(rows[-1]) + 1))
    seen = seen[min(batch, len(seen) - 1)][:, rows - rows[0], near:]
    logits[..., near:].masked_fill_(~seen, -torch.inf)
    weights = torch.softmax(logits, dim=-1)
    # the mean of the outputs is the output of the mean weights
    output = weights.mean(1).view(key_heads, group, -1) @ values
    square = weights.square_().mean(1).cpu()
    return key_scores(square, output.view(key_heads * group, -1).cpu(), inputs.v[batch])


def moves(rotation: Rotation, distance: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines that rotate queries to places spread after the text.

    Parameters
    ----------
    rotation
        The rotary embedding.
    distance
        Tokens from each query to the first place after the text, [w].
    """
    index = torch.arange(len(distance), device=distance.device)
    ahead = ((index * GOLDEN) % 1.0 * AHEAD).long()
    cos, sin = rotation(distance + ahead)
    # embeddings that also scale have done so already
    scale = (cos.square() + sin.square()).rsqrt()
    return cos * scale, sin * scale


def last_bias(inputs: LayerInputs, batch: int, rows: Tensor, positions: Tensor) -> Tensor | None:
    """What is added to the logits of the last query of a text, [heads or 1, keys]."""
    bias = inputs.text_bias(batch)
    return None if bias is None else bias[:, rows[-1], positions].to(torch.float32)


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


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """Logits within a soft bound, if there is one."""
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap


class Repetition:
    """Attention of one key head to tokens, summed over the queries that repeat them.

    The queries of the second copy of a text look for its first copy: what they attend to is what it
    takes to give the text back, whatever will be asked (as in KVzip, arXiv 2505.23416, which takes
    the largest weight of a token; here it is the mean of squared weights, as for all other
    queries).

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
        """Add queries [group, w, d_k] in float32, scaled; the others as for ``column_sums``."""
        tokens = self._square.shape[1]
        for h, queries in enumerate(query):
            square, received, _ = column_sums(
                queries, keys, softcap=softcap, bias=bias, ends=ends, columns=tokens
            )
            self._square[h] += square.cpu()
            self._received[h] += received.cpu()
        self._count += query.shape[1]

    def score(self, values: Tensor, log_weight: Tensor | None = None) -> Tensor:
        """Scores of the tokens, [n], given their values [n, d_v]; see :func:`key_scores`."""
        count = max(1, self._count)
        output = self._received / count @ values.to(device="cpu", dtype=torch.float32)
        return key_scores(self._square / count, output, values[None], log_weight=log_weight)[0]
