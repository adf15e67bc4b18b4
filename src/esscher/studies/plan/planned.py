"""A plan: how many tokens every key head keeps, what that is predicted to cost, what it did cost.

A plan is a JSON file that names its model by the hash of its weights, and is refused for others.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from esscher.core.atomic import write_atomically
from esscher.core.codec import as_json
from esscher.core.errors import InputError
from esscher.core.untrusted import limits, read_json, shortened
from esscher.core.validation import Array, as_path
from esscher.engine.models import LoadedModel, attention_override, wrap_model
from esscher.engine.models.same_weights import compare_weights, said_of_types
from esscher.runs import RunResult, run_kind
from esscher.runs.schema import check
from esscher.studies.plan.apply import PlannedAttention
from esscher.studies.plan.arguments import KIND
from esscher.studies.plan.selection import POWERS
from esscher.studies.plan.verdict import Verdict, verdict_of

#: Version of the file; another one is refused.
VERSION = 1
#: Name of the file in the directory of a run.
PLAN = "plan.json"


@dataclass(frozen=True, eq=False, repr=False)
class Plan(RunResult):
    """Token budgets of every key head; :attr:`results` is what its file holds."""

    @property
    def budgets(self) -> NDArray[np.int64]:
        """Tokens kept of a prefix of the plan's length, [layers, key heads]."""
        return np.asarray(self.results["budgets"], dtype=np.int64)

    @property
    def ratios(self) -> Array:
        """The same as shares of the prefix."""
        return np.asarray(self.budgets / self.results["prefix"])

    @property
    def powers(self) -> Array:
        """Powers of the scores in the samples, [layers, key heads]."""
        return np.asarray(self.results["powers"], dtype=np.float64)

    @property
    def earned(self) -> bool | None:
        """Whether the check found the plan better than uniform budgets; None without a check."""
        verdict = self.verdict
        return None if verdict is None else verdict == "better"

    @property
    def verdict(self) -> Verdict | None:
        """What the check found the plan to be against uniform budgets; None without a check.

        "better" or "worse" if the paired interval over passages excludes that they are alike, else
        "undecided".
        """
        check = self.results["check"]
        return None if check is None else verdict_of(check["ratios"]["uniform"])

    @property
    def best(self) -> list[str]:
        """What the check found closest to dense; several if they cannot be told apart."""
        check = self.results["check"] or {}
        return list(check.get("best") or [])

    @contextmanager
    def apply(self, model: Any, seed: int = 0) -> Iterator[None]:
        """Run a transformers model under the plan within a block; works with ``generate``.

        Parameters
        ----------
        model
            The model the plan was made for (transformers' own, or as :func:`load_model` returns).
        seed
            Seed of the samples.

        Raises
        ------
        InputError
            If it is another model.
        """
        loaded = model if isinstance(model, LoadedModel) else wrap_model(model)
        self.check_model(loaded)
        keeping = self.results["keeping"]
        attention = PlannedAttention(
            self.ratios, self.powers, keeping["sinks"], keeping["recent"], seed
        )
        with attention_override(loaded, attention):
            yield

    def check_model(self, loaded: LoadedModel) -> None:
        """Refuse a model that the plan was not made for; warn if only the type of weights differs.

        Raises
        ------
        InputError
            If it has other weights.
        """
        own = self.results["model"]
        shape = (loaded.shape.layers, loaded.shape.key_heads)
        stored = {"model": own, **own}
        weights = compare_weights(stored, loaded.record)
        if shape == self.budgets.shape and weights == "other type":
            warnings.warn(
                f"{loaded.name!r} has {said_of_types(stored, loaded.record)}: the plan is used, "
                f"but what it says of errors was measured in {own['dtype']}",
                stacklevel=4,
            )
        elif shape != self.budgets.shape or weights != "same":
            raise InputError(
                f"the plan is for {own['name']!r} with weights {own['weight_hash'][:12]}, not for "
                f"{loaded.name!r} with weights {loaded.weight_hash[:12]}; make a plan for it"
            )

    def save(self, path: str | Path) -> None:
        """Write the plan to a file."""
        write_atomically(Path(path), as_json(self.results))

    def to_frame(self) -> pd.DataFrame:
        """Return a data frame, one row per key head."""
        layers, key_heads = self.budgets.shape
        errors = np.asarray(self.results["predicted"]["head_error"])
        worst = errors.reshape(layers, key_heads, -1).max(axis=-1)
        return pd.DataFrame(
            {
                "layer": np.repeat(np.arange(layers), key_heads),
                "key_head": np.tile(np.arange(key_heads), layers),
                "tokens": self.budgets.ravel(),
                "ratio": self.ratios.ravel(),
                "power": self.powers.ravel(),
                "predicted_error": worst.ravel(),
            }
        )


def load_plan(path: str | Path) -> Plan:
    """Read a plan from its file, or from the directory of the run that made it.

    Raises
    ------
    InputError
        If the file is no plan, of another version, or damaged.
    """
    place = as_path(path, "path")
    inside = place.is_dir()
    if inside:
        if run_kind(place) == KIND and not (place / PLAN).exists():
            raise InputError(
                f"the plan in {place} is not finished; run the command that began it again, it "
                "resumes"
            )
        place = place / PLAN
    try:
        found = read_json(place, limits.RESULTS, follow=not inside)
    except OSError as error:
        raise InputError(f"{place} is not there; give the file of a plan") from error
    except InputError as error:
        raise InputError(f"{error}; a plan is a JSON file that esscher plan writes") from error
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise InputError(f"{place} is not a plan")
    if found.get("version") != VERSION:
        raise InputError(
            f"{place} has version {shortened(found.get('version'))}; this version of Esscher reads "
            f"{VERSION}"
        )
    _check_fields(found, place)
    return Plan(found)


def _check_fields(found: dict[str, Any], place: Path) -> None:
    """Refuse a file whose numbers cannot be budgets."""
    check(found, KIND, "file", str(place))
    try:
        budgets = np.array(found["budgets"], dtype=np.float64)
        powers = np.array(found["powers"], dtype=np.float64)
        prefix, keeping = int(found["prefix"]), found["keeping"]
        least = int(keeping["sinks"]) + int(keeping["recent"])
        sound = (
            budgets.ndim == 2
            and budgets.shape == powers.shape
            and np.all(budgets == np.round(budgets))
            and np.all((budgets > least) & (budgets <= prefix))
            and set(powers.ravel()) <= set(POWERS)
            and isinstance(found["model"]["weight_hash"], str)
        )
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise InputError(f"{place} is damaged: {error}") from error
    if not sound:
        raise InputError(f"{place} is damaged: its budgets are no budgets for its prefix")
