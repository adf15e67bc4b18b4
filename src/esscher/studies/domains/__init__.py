"""The same heads on several corpora: what changes between them beyond chance."""

from __future__ import annotations

from esscher.runs.study import function_of
from esscher.studies.domains.study import DomainsStudy

domains = function_of(DomainsStudy)
