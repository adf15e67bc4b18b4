"""The cost of sparse patterns: their error against dense attention as the budget grows."""

from __future__ import annotations

from esscher.runs.study import function_of
from esscher.studies.sparse.study import SparseLawStudy, SparseStudy

sparse = function_of(SparseStudy)
sparse_law = function_of(SparseLawStudy)
