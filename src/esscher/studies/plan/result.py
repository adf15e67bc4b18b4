"""Plans: the record that people edit, and the result of a study with all its numbers.

The record is a JSON file: the model, and what each of its key heads keeps. Everything that runs a
model under a plan needs no more. :class:`PlanResult` has the measurements, from which the record
follows.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from esscher.core.atomic import write_output
from esscher.core.codec import Index, as_json, as_record, as_tree
from esscher.core.dataset_file import SUFFIX
from esscher.core.errors import InputError
from esscher.core.shown import counted, shortened
from esscher.engine.attention.bits import ENTRY_BYTES
from esscher.engine.cache.budgets import Score, TokenBudgets
from esscher.runs.result import NotFinished, Result

if TYPE_CHECKING:
    from esscher.engine.cache.cache import Decode, ReducedCache
    from esscher.engine.models.loaded import LoadedModel
    from esscher.engine.text.documents import TextSource
    from esscher.studies.plan.study import PlanSettings  # noqa: F401 - of the base class

#: Version of the file of a plan.
VERSION = 5
#: Name of the file in the directory of a run.
PLAN = "plan.json"


class UsesPlan:
    """What can be done with a plan: by its record, and by the result that it comes from."""

    __slots__ = ()

    @property
    def plan(self) -> Plan:
        """The record."""
        raise NotImplementedError

    def cache(
        self,
        model: Any,
        *,
        seed: int = 0,
        decode: Decode = "keep",
        length: int | None = None,
        chunk: int | None = None,
        score: Score | None = None,
    ) -> ReducedCache:
        """Make a cache that holds what the plan keeps; hand it to ``generate`` or to the model.

        The prompt is read by the model's own attention, and each key head keeps its budget of it.
        Used with any other cache the model does what it did before.

        Parameters
        ----------
        model
            The decoder the plan was made for (transformers' own, or as :func:`load_model` returns).
        seed
            Seed of the samples.
        decode
            ``"keep"`` holds all tokens after the prompt. ``"budget"`` lets them share the budgets:
            what was kept and what came since is selected again whenever the newest tokens exceed
            their window.
        length
            Budgets are shares of all tokens seen. With a length they are shares of so many at most:
            ``length=plan.prefix`` keeps the plan's own numbers of tokens, however long the text.
        chunk
            Read prompts in pieces of so many tokens, and reduce them as they come: bounds the
            memory of a long prompt. The model then returns hidden states and logits of the last
            piece alone.
        score
            By which queries tokens are scored: ``"all"`` queries of the prompt, moved after it;
            its ``"last"`` 64, which is faster and forgets more of what is asked for later; or also
            those with which the model would ``"repeat"`` the prompt, which it then reads a second
            time. For that it needs its tokenizer and positions for both readings, and all layers
            hold the prompt whole until it was repeated: ``chunk`` and ``decode="budget"`` are
            refused. By default as the plan was made.

        Raises
        ------
        InputError
            If it is another model, or an encoder, or has no tokenizer to be told to repeat.
        """
        from esscher.engine.cache.cache import planned_cache  # brings torch

        return planned_cache(
            self._loaded(model),
            self.plan.token_budgets,
            seed=seed,
            decode=decode,
            length=length,
            chunk=chunk,
            score=score,
        )

    def evaluate(self, model: Any, text: TextSource, **options: Any) -> PlanResult:
        """Check the plan on another text, and on tasks; nothing is predicted.

        Parameters
        ----------
        model
            The model the plan was made for.
        text
            Text that the plan has not seen.
        options
            Of a check, as :func:`esscher.plan` takes them: ``against``, ``tasks``, ``task_items``,
            ``check_passages``, ``seed``, ``out`` and the like.

        Raises
        ------
        InputError
            If it is another model, or the text is too short.
        """
        from esscher.studies.plan import plan

        loaded, options = self._loaded(model), {"score": self.plan.score} | options
        return cast(PlanResult, plan(loaded, check=text, plan=self.plan, **options))

    def _loaded(self, model: Any) -> LoadedModel:
        """Return the model, which must be the plan's."""
        from esscher.engine.models.loaded import LoadedModel, wrap_model  # brings torch

        loaded = model if isinstance(model, LoadedModel) else wrap_model(model)
        self.plan.check_model(loaded)
        return loaded


class Plan(TokenBudgets, UsesPlan, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token budgets of every key head; a plan is refused for another model than its own.

    Attributes
    ----------
    model, prefix, keeping, budgets, powers, bits, selection, score
        See :class:`~esscher.engine.cache.budgets.TokenBudgets`.
    sliding
        Layers with a sliding window, which are left alone.
    """

    sliding: tuple[Index, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return self

    @property
    def token_budgets(self) -> TokenBudgets:
        """What it takes to run the model under the plan."""
        names = TokenBudgets.__struct_fields__
        return TokenBudgets(**{name: getattr(self, name) for name in names})

    @property
    def reduced(self) -> list[int]:
        """Layers that are reduced."""
        return [i for i in range(self.model.layers) if i not in self.sliding]

    @property
    def ratio(self) -> float:
        """Tokens of the layers that are reduced, as a share of all."""
        return float(self.tokens[self.reduced].mean() / self.prefix)

    @property
    def share(self) -> float:
        """Bytes of the layers that are reduced, as a share of those of a dense cache."""
        entry = ENTRY_BYTES[self.model.dtype]
        dense = 2 * self.prefix * self.model.head_dim * entry
        return float(self.nbytes[self.reduced].mean() / dense)

    def save(self, path: str | Path) -> None:
        """Write the plan as a JSON file, which people may edit and :func:`esscher.load` reads."""
        header = {"kind": "plan", "version": VERSION}
        write_output(Path(path), as_json(header | as_tree(self)))

    def __repr__(self) -> str:
        low, high = self.tokens.min(), self.tokens.max()
        return (
            f"plan for {self.model.name}: {self.share:.1%} of the bytes and {self.ratio:.1%} of "
            f"{counted(self.prefix, 'token')}, {low:,} to {high:,} by key head"
        )


def read_plan(tree: Any, place: str) -> Plan:
    """Return the plan of a JSON file.

    Raises
    ------
    InputError
        If it is of another version, has a field that is not known, or is no plan of its model.
    """
    fields = {name: value for name, value in tree.items() if name not in ("kind", "version")}
    version = tree.get("version")
    if version != VERSION:
        raise InputError(
            f"{place} is damaged: it has version {shortened(version)}; this version of Esscher "
            f"reads {VERSION}: make the plan again"
        )
    unknown = sorted(fields.keys() - set(Plan.__struct_fields__))
    if unknown:
        raise InputError(f"{place} is damaged: it has {shortened(unknown[0])}, which is not known")
    return as_record(fields, Plan, place)


class PlanResult(UsesPlan, Result["PlanSettings"]):
    """A plan with what it is predicted to cost, and what it cost on held-out text."""

    @cached_property
    def plan(self) -> Plan:
        """The record: what people edit, and what a model is run with.

        Raises
        ------
        NotFinished
            If the run has not come to a plan yet.
        """
        if not self.cells:
            raise NotFinished("there is no plan yet; run the command that began it again to resume")
        settings, data = self.setup.settings, self.data
        both = zip(_rows(data["key_bits"]), _rows(data["value_bits"]), strict=True)
        bits = tuple(tuple(zip(*rows, strict=True)) for rows in both)
        exact = (data["key_bits"] == 16) & (data["value_bits"] == 16)
        return Plan(
            model=self.setup.model,
            prefix=settings.prefix,
            keeping=settings.keeping,
            budgets=_rows(data["tokens"]),
            powers=_rows(data["power"]),
            bits=None if exact.all() else bits,
            selection=settings.selection,
            score=settings.score,
            sliding=tuple(data["layer"].values[data["sliding"].values].tolist()),
        )

    @property
    def checked(self) -> bool:
        """Whether the plan was compared with others on held-out text."""
        return bool(self.data["configuration"].size)

    @property
    def verdict(self) -> str | None:
        """What the check found the plan to be against uniform budgets; None without a check.

        "better" or "worse" if the paired interval over passages excludes that they are alike, else
        "undecided".
        """
        return str(self.data["verdict"].item()) if self.checked else None

    @property
    def best(self) -> tuple[str, ...]:
        """What the check found closest to dense; several if they cannot be told apart."""
        data = self.data.isel(configuration=self.data["closest"].values)
        order = data["over_best"].sel(bound="value").values.argsort(kind="stable")
        return tuple(data["configuration"].values[order].tolist())

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, or all numbers if the name ends in ``.safetensors``.

        :func:`esscher.load` reads both.
        """
        if Path(path).suffix == SUFFIX:
            super().save(path)
        else:
            self.plan.save(path)


def _rows(array: Any) -> tuple[tuple[Any, ...], ...]:
    """Rows of a grid by layer and key head."""
    return tuple(map(tuple, array.transpose("layer", "key_head").values.tolist()))
