"""What sparse patterns cost: their error against dense attention as the budget grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esscher.sparsity.result import Sparsity
    from esscher.sparsity.run import load_sparse, sparse

__all__ = ["Sparsity", "load_sparse", "sparse"]


def __getattr__(name: str) -> Any:
    """Import what brings torch and transformers with it only when it is asked for."""
    if name in ("load_sparse", "sparse"):
        from esscher.sparsity import run

        return getattr(run, name)
    if name == "Sparsity":
        from esscher.sparsity.result import Sparsity

        return Sparsity
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
