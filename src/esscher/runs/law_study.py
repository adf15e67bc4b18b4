"""Studies of synthetic tokens: a law, and the head that its tokens meet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Self

from msgspec import Meta

from esscher.core.errors import InputError
from esscher.core.options import BY_MODEL, option
from esscher.math.heads import WeightHead, law_head
from esscher.math.laws import STANDARD_LAWS, standard_law
from esscher.runs.study import R_co, Study

#: Largest dimension: a head has matrices of its square.
LARGEST_DIM = 65_536


@dataclass(frozen=True, kw_only=True)
class LawStudy(Study[R_co]):
    """Base of the studies of a head over a law in its standard form.

    A study derives from it, adds its own options, and fills them in on top of these::

        def filled(self) -> Self:
            study = super().filled()
            return replace(study, sizes=...)

    ``head`` is then the head, built anew each time that it is asked for.
    """

    first: ClassVar[tuple[str, ...]] = ("law", "horizon", "dim", "spectrum", "tau", "df")

    law: Annotated[
        str, option(f"Law of the tokens: {', '.join(STANDARD_LAWS)}.", metavar="LAW", max_length=64)
    ] = field(kw_only=False)
    horizon: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        option("Attention horizon H, with all singular values equal."),
    ] = None
    dim: Annotated[
        int,
        option(
            "Dimension of the tokens (default: length of the spectrum, or 1).",
            ge=1,
            le=LARGEST_DIM,
        ),
    ] = BY_MODEL
    spectrum: Annotated[
        tuple[float, ...] | None,
        option("Singular values of M instead of a horizon, such as 1.5,0.7,0.2.", metavar="LIST"),
    ] = None
    tau: Annotated[
        tuple[float, ...] | None,
        option("Mean tilt; a single number is along the first axis.", metavar="LIST"),
    ] = None
    df: Annotated[float, option("Degrees of freedom of the law student.", gt=0)] = 5.0

    def filled(self) -> Self:
        """Fill in the dimension; refuse what is no head."""
        if (self.horizon is None) == (self.spectrum is None):
            raise InputError("give either a horizon or a spectrum for the law, such as horizon 1.5")
        dim = self.dim or (1 if self.spectrum is None else len(self.spectrum))
        if self.spectrum is not None and len(self.spectrum) != dim:
            raise InputError(f"dim is {dim}, but spectrum has {len(self.spectrum)} values")
        study = replace(self, dim=dim)
        _ = study.head  # says what is wrong with the law before any work is done
        return study

    @property
    def head(self) -> WeightHead:
        """The head that the tokens meet."""
        return law_head(
            standard_law(self.law, self.dim, df=self.df),
            horizon=self.horizon,
            spectrum=self.spectrum,
            tau=self.tau,
        )

    @property
    def subject(self) -> str:
        """Name of the law."""
        return self.law
