"""Probing real models: the numbers for every layer and head."""

from __future__ import annotations

from esscher.runs.study import function_of
from esscher.studies.probe.study import ProbeStudy

probe = function_of(ProbeStudy)
