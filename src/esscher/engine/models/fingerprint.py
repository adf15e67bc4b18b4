"""Check that all weights are finite, and identify them by a hash or a sample."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from esscher.core.errors import InputError

#: Weights that are kept beside the hash of all.
SAMPLED = 64


def check_finite(model: Any, name: str) -> None:
    """Check that all weights are finite.

    Raises
    ------
    InputError
        Naming the first tensor with a weight that is not.
    """
    for key, tensor in model.named_parameters():
        finite = torch.isfinite(tensor.detach())
        if not bool(finite.all()):
            bad = int(finite.numel() - finite.sum())
            raise InputError(
                f"the model {name!r} has weights that are not finite: {bad} of {finite.numel()} "
                f"in {key!r}; its file is damaged, or was converted to a type too small for it"
            )


def weight_hash(model: Any) -> str:
    """SHA-256 over names, types, shapes and bits of all weights; holds one tensor at a time."""
    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(f"{key}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        # Viewed as bytes, since numpy does not know every type of torch.
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()


def weight_sample(model: Any) -> str:
    """Some weights as 32-bit numbers, in hexadecimal digits: which ones depends on names alone.

    By it, the same weights are known again in another type; see ``same_weights.py``.
    """
    tensors = {
        key: tensor
        for key, tensor in sorted(model.state_dict().items())
        if tensor.is_floating_point() and tensor.numel()
    }
    names = list(tensors)
    chosen = []
    for i in range(SAMPLED if names else 0):
        key = names[i * len(names) // SAMPLED]
        flat = tensors[key].detach().reshape(-1)
        at = int.from_bytes(hashlib.sha256(f"{key}:{i}".encode()).digest()[:8], "little")
        chosen.append(flat[at % flat.numel()].to("cpu", torch.float32))
    values = torch.stack(chosen).numpy() if chosen else np.zeros(0, np.float32)
    return values.astype("<f4").tobytes().hex()
