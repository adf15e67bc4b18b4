"""Probing real models: the numbers for every layer and head."""

from __future__ import annotations

from esscher.runs.old_study import function_of
from esscher.studies.probe.result import Probe
from esscher.studies.probe.study import ProbeStudy

probe = function_of(ProbeStudy)

__all__ = ["Probe", "ProbeStudy", "probe"]
