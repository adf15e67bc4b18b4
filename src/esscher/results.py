"""Types of results: what studies return, and what :func:`esscher.load` reads."""

from esscher.runs.old_result import Result
from esscher.studies.domains import Domains
from esscher.studies.plan import Plan
from esscher.studies.probe import Probe
from esscher.studies.sweep import Sweep

__all__ = [
    "Domains",
    "Plan",
    "Probe",
    "Result",
    "Sweep",
]
