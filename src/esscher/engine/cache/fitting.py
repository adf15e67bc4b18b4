"""Least-squares fit of kept weights and values to the prompt's own attention outputs.

A sample of keys has noise, also for queries that were there. So some of the prompt's queries, moved
after it (``scores.py``), attend to the whole prompt: ``Z_i`` is the sum of their exponentials,
``y_i`` their output. With ``b_ij = w_j exp(l_ij) / Z_i`` for what is kept, l the logits and w the
weights of the sample, a query that sees only that gets the numerator ``sum_j b_ij v_j`` and the
denominator ``sum_j b_ij``, which should be ``y_i`` and 1. Both are linear, with one matrix: values
``x_j = (v_j, 1)`` are moved by

    delta = argmin  sum_i |(y_i, 1) - sum_j b_ij (x_j + delta_j)|^2 + lambda sum_j |delta_j|^2,

and ``v_j + delta`` over ``1 + delta`` takes the place of a value, ``w_j (1 + delta)`` that of its
weight. Where no query attends, delta is 0: there the sample stays what it is. (Attention Matching,
arXiv 2602.16284, fits biases and values without a sample behind them.) On SmolLM2 the divergence
from dense falls to about a half at an eighth of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esscher.engine.attention.coded import rounded_keys
from esscher.engine.cache.scores import capped, last_bias, moves
from esscher.engine.cache.storage import Kept
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.weights import Rotation, rotate

#: Queries of all heads of a key head together. With more of them nothing was gained on SmolLM2.
QUERIES = 768
#: Ridge: lambda over the mean of the squared columns of b. Between 0.01 and 1 it matters little.
RIDGE = 0.1
#: A weight is changed by this factor at most.
LARGEST_CHANGE = 10.0


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


def query_targets(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, softcap: float | None
) -> QueryTargets:
    """Attention of queries [w, d_k] over all keys [n, d_k] and values [n, d_v] of a key head."""
    logits = capped(query @ keys.to(torch.float32).T, softcap)
    if bias is not None:
        logits += bias
    log_sum = logits.logsumexp(-1)
    output = (logits - log_sum[:, None]).exp_() @ values.to(torch.float32)
    return QueryTargets(query, log_sum, output, bias, softcap)


def spread_rows(count: int, heads: int, most: int, device: torch.device) -> Tensor:
    """Evenly spread rows of the ``count`` queries of a head: ``most`` of all heads together."""
    each = min(count, -(-most // heads))
    return torch.linspace(0, count - 1, each, device=device).round().long()


@torch.no_grad()
def prompt_targets(
    inputs: LayerInputs, rotation: Rotation | None, batch: int = 0, most: int = QUERIES
) -> list[QueryTargets]:
    """Attention of some queries of a prompt, spread over it and moved after it, over all its keys.

    Parameters
    ----------
    inputs
        The layer of a decoder that reads a prompt at once, without a sliding window.
    rotation
        Its rotary embedding; None if it has none.
    batch
        Number of the text. Padding is neither among the queries nor among the keys.
    most
        Queries of a key head at most.

    Returns
    -------
    list[QueryTargets]
        One per key head; positions of keys are those among the tokens that are no padding.
    """
    text = inputs.own_queries(batch)
    positions = text + inputs.offset
    rows = spread_rows(len(text), inputs.group, most, text.device)
    turn = None
    if rotation is not None:
        turn = moves(rotation, torch.arange(len(text), 0, -1, device=text.device))
        turn = (turn[0][rows], turn[1][rows])
    added = last_bias(inputs, batch, text, positions)
    targets = []
    for g in range(inputs.k.shape[1]):
        heads = slice(g * inputs.group, (g + 1) * inputs.group)
        query = inputs.q[batch, heads, text[rows]].to(torch.float32)
        query = (query if turn is None else rotate(query, *turn)) * inputs.scaling
        bias = None
        if added is not None:
            mine = added[heads] if len(added) > 1 else added
            bias = mine.expand(inputs.group, -1).repeat_interleave(len(rows), dim=0)
        keys, values = (x[batch, g, positions] for x in (inputs.k, inputs.v))
        targets.append(query_targets(query.flatten(0, 1), keys, values, bias, inputs.softcap))
    return targets


@torch.no_grad()
def fit_kept(
    kept: Kept,
    targets: QueryTargets,
    keys: Tensor,
    values: Tensor,
    auxiliary: Tensor | None = None,
    ridge: float = RIDGE,
) -> Kept:
    """Fit weights and values of what is kept of one key head.

    Parameters
    ----------
    kept
        Of the keys; returned as it is if it is all of them, or none.
    targets
        What queries get from all of them.
    keys, values
        All of them, [n, d_k] and [n, d_v].
    auxiliary
        Numbers of keys that are there as well and stay as they are.
    ridge
        Of the fit: 0 would follow the queries as far as possible.
    """
    others = 0 if auxiliary is None else len(auxiliary)
    if not len(kept.index) or len(kept.index) + others >= len(keys):
        return kept

    def seen(index: Tensor, log_weight: Tensor | float, coded: int = 0) -> tuple[Tensor, Tensor]:
        """Values of some keys with a 1 behind, and the shares of queries that they have."""
        key = keys[index].to(torch.float32)
        if coded:  # queries see what rounding has left
            key[-coded:] = rounded_keys(key[-coded:], kept.bits[0])
        logits = capped(targets.query @ key.T, targets.softcap)
        if targets.bias is not None:
            logits += targets.bias[:, index]
        shares = (logits + log_weight - targets.log_sum[:, None]).exp_()
        chosen = values[index].to(torch.float32)
        return torch.cat([chosen, chosen.new_ones(len(chosen), 1)], dim=1), shares

    weight = kept.log_weight.to(keys.device)
    old, shares = seen(kept.index.to(keys.device), weight, kept.coded)
    aim = torch.cat([targets.output, targets.output.new_ones(len(targets.output), 1)], dim=1)
    aim -= shares @ old
    if auxiliary is not None:
        fixed, fixed_shares = seen(auxiliary.to(keys.device), 0.0)
        aim -= fixed_shares @ fixed
    new = old + ridge_solution(shares, aim, ridge)
    change = new[:, -1:].clamp(1 / LARGEST_CHANGE, LARGEST_CHANGE)
    log_weight = weight + change[:, 0].log()
    return replace(kept, log_weight=log_weight.cpu(), values=(new[:, :-1] / change).cpu())


def ridge_solution(matrix: Tensor, aim: Tensor, ridge: float) -> Tensor:
    """Solve ``min |aim - matrix x|^2 + lambda |x|^2``, lambda = ``ridge`` x mean square of columns.

    Of rows and columns the fewer decide what it costs.
    """
    rows, columns = matrix.shape
    size = float(matrix.square().sum()) / columns
    if not 0 < size < float("inf"):
        return matrix.new_zeros(columns, aim.shape[1])
    if columns <= rows:
        square = matrix.T @ matrix
        square.diagonal().add_(ridge * size)
        return torch.cholesky_solve(matrix.T @ aim, torch.linalg.cholesky(square))
    square = matrix @ matrix.T
    square.diagonal().add_(ridge * size)
    return matrix.T @ torch.cholesky_solve(aim, torch.linalg.cholesky(square))
