"""Watch or replace the attention of a model: within a ``with`` block, or while it reads tokens."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from esscher.core.validation import as_indices
from esscher.engine.models.families import HookFamily
from esscher.engine.models.hooks import through_hooks
from esscher.engine.models.inputs import LayerCapture, LayerInputs, Replacement
from esscher.engine.models.interface import through_interface
from esscher.engine.models.loaded import LoadedModel


@contextlib.contextmanager
def attention_override(
    loaded: LoadedModel, replacement: Replacement, *, layers: Sequence[int] | None = None
) -> Iterator[None]:
    """Replace the attention of some layers by a function, within a block.

    The rest of the model is untouched, and so is everything after the block, also when it ends
    with an exception. Blocks can be nested: the inner replacement's ``inputs.own()`` is then what
    the outer one computes. Works with ``generate``; not with several threads that use the same
    model.

    Parameters
    ----------
    loaded
        The model.
    replacement
        Takes :class:`LayerInputs`, returns the attention output [batch, heads, n_q, d_v] before
        the output projection, or None for the model's own. ``inputs.own()`` computes the model's
        own, ``inputs.attend()`` the same by the definition.
    layers
        Numbers of the layers; all of them if left out.
    """
    family, model = loaded.family, loaded.model
    # graphs of torch.compile hold no replacement: it may pass arrays on by their addresses
    replacement = torch.compiler.disable(replacement)  # type: ignore[no-untyped-call]
    with family.prepared(model):
        blocks = family.blocks(model)
        chosen = {i: blocks[i] for i in as_indices(layers, len(blocks), "layers")}
        if isinstance(family, HookFamily):
            with through_hooks(family, chosen, replacement, causal=loaded.causal):
                yield
        else:
            modules = {i: family.attention(block) for i, block in chosen.items()}
            with through_interface(family, model, modules, replacement):
                yield


@contextlib.contextmanager
def capturing(
    loaded: LoadedModel,
    sink: Callable[[LayerCapture], object],
    *,
    layers: Sequence[int] | None = None,
) -> Iterator[None]:
    """Hand the queries, keys, values and output of some layers to ``sink``, within a block.

    Used like this::

        with capturing(loaded, lambda seen: print(seen.layer, seen.q.shape)):
            loaded.model(**batch)

    The sink is called once per layer and call of the model, while the model runs. Nothing is kept
    but what the sink keeps. The output is bit for bit that of the model.

    Parameters
    ----------
    loaded
        The model.
    sink
        Takes :class:`LayerCapture`; what it returns is ignored.
    layers
        Numbers of the layers; all of them if left out.
    """

    def watch(inputs: LayerInputs) -> Tensor | None:
        fields = {f.name: getattr(inputs, f.name) for f in dataclasses.fields(LayerInputs)}
        sink(LayerCapture(**fields, output=inputs.own().detach()))
        return None

    with attention_override(loaded, watch, layers=layers):
        yield


class _Enough(Exception):
    """Raised behind the last layer that is wanted, so that the rest need not be computed."""


def run_captured(
    loaded: LoadedModel,
    input_ids: Tensor,
    sink: Callable[[LayerCapture], object],
    *,
    layers: Sequence[int] | None = None,
) -> None:
    """Run the model up to the last chosen layer and hand every chosen layer to ``sink``.

    Parameters
    ----------
    loaded
        The model.
    input_ids
        Token ids [batch, n], without padding.
    sink
        Takes :class:`LayerCapture`, layer after layer; nothing else keeps what it is handed.
    layers
        Numbers of the layers; all of them if left out.
    """
    chosen = as_indices(layers, loaded.shape.layers, "layers")

    def watch(capture: LayerCapture) -> None:
        sink(capture)
        if capture.layer == chosen[-1]:
            raise _Enough

    ids = input_ids.to(loaded.device)
    options = {"use_cache": False} if loaded.family.decoder else {}
    with torch.no_grad(), capturing(loaded, watch, layers=chosen), contextlib.suppress(_Enough):
        loaded.backbone(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
