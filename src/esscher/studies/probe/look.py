"""A look at a layer as the model uses it: attention that delimiters take, hidden moments."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.engine.models import HeadWeights, LayerCapture

#: Queries of a passage that are looked at.
QUERIES = 256


def delimiter_shares(capture: LayerCapture, is_delimiter: NDArray[np.bool_]) -> Array:
    """Share of the attention of text tokens that goes to delimiters, per head."""
    heads = capture.q.shape[1]
    if not is_delimiter.any():
        return np.zeros(heads)
    asking = np.flatnonzero(~is_delimiter)
    if len(asking) > QUERIES:
        asking = asking[np.linspace(0, len(asking) - 1, QUERIES).astype(int)]
    rows, columns = torch.from_numpy(asking), torch.from_numpy(np.flatnonzero(is_delimiter))
    shares = np.empty(heads)
    for h in range(heads):
        weights = torch.softmax(capture.logits(0, h, dtype=torch.float32)[rows], dim=-1)
        shares[h] = float(weights[:, columns].sum(-1).mean())
    return shares


def one_sided_psi(weights: HeadWeights, hidden: Array) -> list[float] | None:
    """``||Sigma||_2 ||Sigma^{1/2} A||_2^2`` of each head, Sigma the covariance of hidden states.

    None where queries and keys are no linear functions of the hidden states (rotary positions).
    """
    if not weights.linear:
        return None
    centred = hidden - hidden.mean(axis=0)
    covariance = centred.T @ centred / len(hidden)
    largest = float(np.linalg.eigvalsh(covariance)[-1])
    psi = []
    for w_q, w_k in zip(weights.W_q, weights.W_k, strict=True):
        # A = W_k' W_q has the rank of a head: its norm is that of a d_k x d_k matrix
        product = (w_k @ covariance @ w_k.T) @ (w_q @ w_q.T) * weights.scaling**2
        psi.append(largest * float(np.abs(np.linalg.eigvals(product)).max()))
    return psi
