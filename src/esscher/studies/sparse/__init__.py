"""What sparse patterns cost: their error against dense attention as the budget grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esscher.studies.sparse.entry import sparse
    from esscher.studies.sparse.result import Sparsity
    from esscher.studies.sparse.run import load_sparse

__all__ = ["Sparsity", "load_sparse", "sparse"]


def __getattr__(name: str) -> Any:
    """Import what brings torch and transformers with it only when it is asked for."""
    if name == "sparse":
        from esscher.studies.sparse.entry import sparse

        return sparse
    if name == "load_sparse":
        from esscher.studies.sparse.run import load_sparse

        return load_sparse
    if name == "Sparsity":
        from esscher.studies.sparse.result import Sparsity

        return Sparsity
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
