"""What sparse patterns cost: their error against dense attention as the budget grows."""

from __future__ import annotations

from esscher.runs.old_study import function_of
from esscher.studies.sparse.result import Sparse
from esscher.studies.sparse.study import SparseLawStudy, SparseStudy

sparse = function_of(SparseStudy)
sparse_law = function_of(SparseLawStudy)

__all__ = ["Sparse", "SparseLawStudy", "SparseStudy", "sparse", "sparse_law"]
