"""Variables of a labelled dataset, each declared once: what is checked, and how people see it.

A subclass of :class:`Data` declares what a cell or a result holds::

    class HeadNorms(Data):
        norm = var("layer head bound", "mean norm", terminal="norm")
        largest = var("layer head", "largest norm")

A declaration is the schema of a file, the heading of a table in a terminal, on a page and in a data
frame, and an attribute that mypy knows: ``data.norm`` is an ``xarray.DataArray``, and
``data.norm = numbers`` takes the names of the axes from the declaration.

The axis ``bound`` has the labels value, low and high: an estimate with the ends of its interval.
NaN, or an empty string, stands for what is not there. Infinite numbers are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

from esscher.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from numpy.typing import ArrayLike, NDArray


Kind = Literal["f", "i", "b", "U"]
#: Axis of estimates, and its labels.
BOUND = "bound"
BOUNDS = ("value", "low", "high")
#: Every axis there is: kind of its labels (whole numbers, numbers, words) and its heading.
AXES: dict[str, tuple[Kind, str]] = {
    BOUND: ("U", "bound"),
    "layer": ("i", "layer"),
    "head": ("i", "head"),
    "key_head": ("i", "key head"),
    "passage": ("i", "passage"),
    "context": ("i", "tokens of context"),
    "corpus": ("U", "corpus"),
    "block": ("i", "block"),
    "statistic": ("U", "statistic"),
    "pair": ("U", "corpora"),
    "group": ("U", ""),
    "subset": ("U", "tokens"),
    "part": ("U", "part of the text"),
    "half": ("U", "half"),
    "called": ("U", "called"),
    "threshold": ("i", "threshold"),
    "rank": ("i", "rank"),
    "query": ("i", "query head of the group"),
    "selection": ("U", "selection"),
    "bits": ("U", "bits"),
    "configuration": ("U", ""),
    "task": ("U", "task"),
    "item": ("i", "item"),
    "question": ("i", "question"),
    "reference": ("U", "from"),
    "metric": ("U", "error of"),
    "errors": ("U", "errors of"),
    "within": ("f", "output error"),
    "other": ("i", "other head"),
    "flag": ("U", "flag"),
    "pattern": ("U", "pattern"),
    "budget": ("i", "keys r"),
    "alpha": ("f", "α"),
    "size": ("i", "n"),
    "tokens": ("i", "n"),
    "row": ("i", "row"),
    "column": ("i", "column"),
    "replicate": ("i", "replicate"),
    "curve": ("U", "curve"),
    "sampled": ("U", "sampled"),
    "draw": ("i", "draw"),
    "entry": ("i", "entry"),
    "claim": ("U", "claim"),
    "check": ("U", "check"),
    "law": ("U", "law"),
    "radius": ("f", "R"),
    "setting": ("U", "tokens"),
    "rule": ("U", "rule"),
}
KINDS = {"f": "numbers", "i": "whole numbers", "b": "true or false", "U": "words"}


@dataclass(frozen=True, eq=False)
class Variable:
    """One quantity: see :func:`var`."""

    axes: tuple[str, ...]
    label: str = ""
    format: str = "d2"
    help: str = ""
    kind: Kind = "f"
    page: bool = True
    terminal: str = ""
    interval: Literal["brackets", "digits", "range", "short"] = "brackets"
    missing: str = "–"
    last: bool = False
    optional: bool = False
    name: str = field(default="", init=False)

    def __post_init__(self) -> None:
        for axis in self.axes:
            if short_name(axis) not in AXES and axis != "...":
                raise TypeError(f"there is no axis {axis!r}; declare it in core/variables.py")
        if self.kind not in "fi":
            object.__setattr__(self, "format", "text")

    def __set_name__(self, owner: type, name: str) -> None:
        object.__setattr__(self, "name", name)

    @overload
    def __get__(self, data: None, owner: type) -> Variable: ...
    @overload
    def __get__(self, data: Data, owner: type) -> xr.DataArray: ...
    def __get__(self, data: Data | None, owner: type) -> Variable | xr.DataArray:
        return self if data is None else data.dataset[data.prefix + self.name]

    def __set__(self, data: Data, values: ArrayLike | xr.DataArray | None) -> None:
        whole = self.placed(data.lead, data.prefix)
        dims = getattr(values, "dims", None)
        if dims is not None:  # labelled: its axes may come in another order
            values = values.transpose(*whole.axes).values  # type: ignore[union-attr]
        data.dataset[whole.name] = whole.axes, as_kind(values, self.kind, whole.name)

    def placed(self, lead: Sequence[str], prefix: str) -> Variable:
        """Return it with the axes that ``...`` stands for, and its whole name."""
        at = self.axes.index("...") if "..." in self.axes else None
        axes = self.axes if at is None else (*self.axes[:at], *lead, *self.axes[at + 1 :])
        return self.renamed(prefix + self.name, axes=axes)

    def within(self, prefix: str) -> Variable:
        """Return it as a section has it: the prefix goes before its axes, too."""
        axes = tuple(a if a == BOUND else prefix + a for a in self.axes)
        return self.renamed(prefix + self.name, axes=axes)

    def renamed(self, name: str, **changes: Any) -> Variable:
        """Return it under another name."""
        other = replace(self, **changes)
        object.__setattr__(other, "name", name)
        return other

    @property
    def heading(self) -> str:
        """The heading on a page."""
        return self.label or self.name.replace("_", " ")

    def titled(self, along: str) -> str:
        """Return its heading with what a column of it is along, such as ``exponent (map)``."""
        return f"{self.heading} ({along})" if along else self.heading


def var(
    axes: str = "",
    label: str = "",
    format: str = "d2",
    *,
    name: str = "",
    **options: Any,
) -> Variable:
    """Declare a variable.

    Parameters
    ----------
    axes
        Names of its axes, with spaces between; ``...`` stands for those of the group it is in.
    label
        Its heading on pages; by default its name.
    format
        How numbers are shown: see :func:`esscher.core.shown.shown`.
    name
        Its name, for a variable that is not declared in a class: one that only a table shows.
    help
        What it means, in a sentence without a full stop.
    kind
        ``f`` for numbers, ``i`` for whole numbers, ``b`` for true or false, ``U`` for words.
    page
        Whether the tables of a report show it; CSV files and data frames have it in any case.
    terminal
        Its heading in a terminal, which leaves it out without one.
    interval
        How a terminal shows an estimate: ``1.2 (1.1 to 1.3)``, ``1.20(10)``, ``1.1-1.3``, or
        ``1.2(1)`` with as many digits as the interval leaves (``short``).
    missing
        What stands for a number that is not there.
    last
        Whether such a number is larger than all others ("never") when a table is sorted.
    optional
        Whether a dataset may be without it.
    """
    variable = Variable(tuple(axes.split()), label, format, **options)
    object.__setattr__(variable, "name", name)
    return variable


class Data:
    """A dataset whose variables are attributes; subclasses declare them with :func:`var`.

    Parameters
    ----------
    dataset
        The dataset.
    lead, prefix
        Of a group: the axes that ``...`` stands for, and what the names of its variables begin
        with.
    """

    def __init__(self, dataset: xr.Dataset, lead: Sequence[str] = (), prefix: str = "") -> None:
        self.dataset, self.lead, self.prefix = dataset, tuple(lead), prefix

    @classmethod
    def new(cls, *lead: str, **labels: Iterable[Any]) -> Self:
        """Return a dataset without variables, whose axes have these labels; ``bound`` has its own.

        Variables are then set: ``data.norm = numbers``. ``lead`` are the axes that ``...`` stands
        for.
        """
        import xarray as xr

        coordinates = {
            axis: as_kind(list(values), AXES[axis][0], axis)
            for axis, values in (labels | {BOUND: BOUNDS}).items()
        }
        return cls(xr.Dataset(coords=coordinates), lead)

    @classmethod
    def like(cls, other: Data, *axes: str) -> Self:
        """Return a dataset without variables, whose axes have the labels of another one."""
        return cls.new(**{axis: other.dataset[axis].values for axis in axes})

    @classmethod
    def variables(cls, lead: Sequence[str] = (), prefix: str = "") -> tuple[Variable, ...]:
        """Return all variables that are declared, those of groups included."""
        declared: dict[str, Variable] = {}
        for kind in reversed(cls.__mro__):
            for entry in vars(kind).values():
                if isinstance(entry, Variable):
                    declared[entry.name] = entry.placed(lead, prefix)
                elif isinstance(entry, Group):
                    for variable in entry.kind.variables(entry.lead, entry.prefix):
                        if entry.optional:
                            variable = variable.renamed(variable.name, optional=True)
                        declared[variable.name] = variable
                elif isinstance(entry, Section):
                    for variable in entry.kind.variables(entry.lead):
                        whole = variable.within(entry.prefix)
                        declared[whole.name] = whole
        return tuple(declared.values())

    def fill(self, *names: str) -> None:
        """Set what is not set yet to what stands for nothing: NaN, no words, 0, false.

        All variables, or those that are named.
        """
        import numpy as np

        nothing: dict[Kind, Any] = {"f": np.nan, "U": "", "i": 0, "b": False}
        for variable in self.declared():
            if variable.name not in self.dataset and variable.name in (names or [variable.name]):
                shape = [self.dataset.sizes[axis] for axis in variable.axes]
                values = as_kind(np.full(shape, nothing[variable.kind]), variable.kind, "")
                self.dataset[variable.name] = variable.axes, values

    def alone(self) -> xr.Dataset:
        """Return the variables of a group under their own names, without the prefix."""
        names = {v.name: v.name.removeprefix(self.prefix) for v in self.declared()}
        return self.dataset[[n for n in names if n in self.dataset]].rename(
            {name: short for name, short in names.items() if name in self.dataset}
        )

    def declared(self) -> tuple[Variable, ...]:
        """Return the variables of this dataset or group."""
        return self.variables(self.lead, self.prefix)


D = TypeVar("D", bound=Data)


@dataclass(frozen=True)
class Group(Generic[D]):
    """Variables of another class under a prefix: see :func:`group`."""

    kind: type[D]
    lead: tuple[str, ...]
    prefix: str
    optional: bool = False

    @overload
    def __get__(self, data: None, owner: type) -> type[D]: ...
    @overload
    def __get__(self, data: Data, owner: type) -> D: ...
    def __get__(self, data: Data | None, owner: type) -> D | type[D]:
        return self.kind if data is None else self.kind(data.dataset, self.lead, self.prefix)


def group(kind: type[D], lead: str = "", prefix: str = "", *, optional: bool = False) -> Group[D]:
    """Declare the variables of another class once more: along other axes, under other names.

    Parameters
    ----------
    kind
        The class that declares them.
    lead
        Axes that ``...`` stands for, with spaces between.
    prefix
        What their names begin with in the dataset.
    optional
        Whether a dataset may be without them.
    """
    return Group(kind, tuple(lead.split()), prefix, optional)


class Section(Generic[D]):
    """A dataset within a dataset: see :func:`section`."""

    def __init__(self, kind: type[D], lead: tuple[str, ...]) -> None:
        self.kind, self.lead, self.prefix = kind, lead, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.prefix = f"{name}."

    @overload
    def __get__(self, data: None, owner: type) -> type[D]: ...
    @overload
    def __get__(self, data: Data, owner: type) -> D: ...
    def __get__(self, data: Data | None, owner: type) -> D | type[D]:
        if data is None:
            return self.kind
        return self.kind(section_of(data.dataset, self.prefix), self.lead)

    def __set__(self, data: Data, values: Data) -> None:
        names = [*values.dataset.data_vars, *(a for a in values.dataset.dims if a != BOUND)]
        data.dataset.update(values.dataset.rename({a: f"{self.prefix}{a}" for a in names}))


def section(kind: type[D], lead: str = "") -> Section[D]:
    """Declare a dataset within the dataset, with axes of its own: ``ball.error``, ``ball.size``.

    It is there or it is not. Read, it has the names of its own class. ``lead`` are the axes that
    ``...`` stands for, with spaces between.
    """
    return Section(kind, tuple(lead.split()))


def section_of(data: xr.Dataset, prefix: str) -> xr.Dataset:
    """Return the variables whose names begin with a prefix, with axes and names without it."""
    inside = data[[name for name in data.data_vars if str(name).startswith(prefix)]]
    names = {str(name): short_name(str(name)) for name in inside.variables}
    return inside.rename({name: short for name, short in names.items() if name != short})


def short_name(name: str) -> str:
    """Return the name of a variable or axis without that of its section."""
    return name.rpartition(".")[2]


def as_kind(values: Any, kind: Kind, name: str) -> NDArray[Any]:
    """Return values as an array of a kind; None among numbers is NaN."""
    import numpy as np

    array = np.asarray(values)
    if kind == "f" and array.dtype == np.float32:
        return array
    types: dict[str, Any] = {"f": np.float64, "i": np.int64, "b": np.bool_, "U": np.str_}
    if kind in "ib" and array.size and array.dtype.kind not in "iub":
        raise TypeError(f"{name} is of type {array.dtype}; it must be {KINDS[kind]}")
    return array.astype(types[kind])


def bounds(value: float | None, ends: Sequence[float | None] | None) -> list[float]:
    """Return a number and the ends of its interval along ``bound``; NaN for what is not there."""
    low, high = ends or (None, None)
    return [float("nan") if x is None else float(x) for x in (value, low, high)]


def with_ends(array: xr.DataArray) -> tuple[float, tuple[float, float]]:
    """Return the number along ``bound`` and the ends of its interval; NaN if it is not there."""
    value, low, high = array.values.tolist()
    return value, (low, high)


def check(data: xr.Dataset, kind: type[Data], place: str) -> xr.Dataset:
    """Return the dataset if it has the variables that are declared, and no others.

    Raises
    ------
    InputError
        Naming the variable, and what is wrong with it.
    """
    import numpy as np

    declared = {variable.name: variable for variable in kind.variables()}
    unknown = [str(name) for name in data.data_vars if name not in declared]
    if unknown:
        raise InputError(f"{place}: it has a variable {unknown[0]!r}, which is not known")
    used: dict[str, str] = {}
    for name, variable in declared.items():
        where = f"{place}: {name}"
        if name not in data:
            inside = name[: -len(short_name(name))]  # of a section, which is there or is not
            there = not inside or any(str(other).startswith(inside) for other in data.data_vars)
            if variable.optional or not there:
                continue
            raise InputError(f"{where} is missing")
        array = data[name]
        if array.dims != variable.axes:
            raise InputError(f"{where} has axes {array.dims}; they must be {variable.axes}")
        if array.dtype.kind != variable.kind:
            expected = KINDS[variable.kind]
            raise InputError(f"{where} is of type {array.dtype}; it must be {expected}")
        if variable.kind == "f" and bool(np.isinf(array.values).any()):
            raise InputError(f"{where} holds an infinite number")
        used |= dict.fromkeys(variable.axes, name)
    for axis, coordinate in data.coords.items():
        if coordinate.dims != (axis,):
            raise InputError(f"{place}: it has labels {axis!r}, which are not known")
    for axis, name in used.items():
        labels = data.variables.get(axis)
        if labels is None or labels.dtype.kind != AXES[short_name(axis)][0]:
            kind_ = KINDS[AXES[short_name(axis)][0]]
            raise InputError(f"{place}: the labels of {axis!r}, along {name}, must be {kind_}")
        if len(np.unique(labels.values)) < labels.size:
            raise InputError(f"{place}: the labels of {axis!r} are not distinct")
        if axis == BOUND and tuple(labels.values) != BOUNDS:
            raise InputError(f"{place}: the labels of {BOUND!r} must be {', '.join(BOUNDS)}")
    return data


def joined(cells: Iterable[xr.Dataset], axis: str) -> xr.Dataset:
    """Return cells side by side along an axis that all of their variables but shared ones have.

    Raises
    ------
    InputError
        If their labels along the other axes are not the same.
    """
    import xarray as xr

    try:
        return xr.concat(
            list(cells),
            axis,
            data_vars="minimal",
            coords="minimal",
            compat="override",
            join="exact",
            combine_attrs="drop",
        )
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the cells do not fit together ({reason}); delete them and run the same command again"
        ) from error


def table(data: xr.Dataset, rows: Sequence[str], names: Sequence[str]) -> pd.DataFrame:
    """Return a data frame with a row for each combination of labels along ``rows``.

    An axis beside them becomes columns: ``tau``, ``tau_low`` and ``tau_high`` for ``bound``,
    otherwise name and label.
    """
    import numpy as np
    import pandas as pd

    grid = np.meshgrid(*(data[axis].values for axis in rows), indexing="ij")
    columns: dict[str, Any] = {a: g.ravel() for a, g in zip(rows, grid, strict=True)}
    count = grid[0].size
    for name in names:
        array = data[name]
        across = [str(axis) for axis in array.dims if axis not in rows]
        array = array.expand_dims({a: data.sizes[a] for a in rows if a not in array.dims})
        ends = endings(data, across)
        values = array.transpose(*rows, *across).values.reshape(count, len(ends))
        for i, end in enumerate(ends):
            columns[f"{name}{end}"] = values[:, i]
    return pd.DataFrame(columns)


def endings(data: xr.Dataset, axes: Sequence[str]) -> list[str]:
    """Return what the name of a variable ends with in the columns along some axes."""
    ends = [""]
    for axis in axes:
        labels = ["" if x == BOUNDS[0] else f"_{x}" for x in data[axis].values.tolist()]
        ends = [a + b for a in ends for b in labels]
    return ends


def by_row(words: Callable[..., str], axis: str, *arrays: xr.DataArray) -> xr.DataArray:
    """Return words made of the values along an axis, a word for each row of the others."""
    import numpy as np
    import xarray as xr

    made: xr.DataArray = xr.apply_ufunc(
        words,
        *arrays,
        input_core_dims=[[axis]] * len(arrays),
        vectorize=True,
        output_dtypes=[object],  # numpy would cut all words to the length of the first
    )
    return made.astype(np.str_)


def as_json_tree(data: xr.Dataset) -> dict[str, Any]:
    """Return a dataset as JSON has it; null for NaN."""

    def plain(variable: Any) -> dict[str, Any]:
        values = variable.values
        if values.dtype.kind == "f":
            missing, values = values != values, values.astype(object)
            values[missing] = None
        return {"axes": list(variable.dims), "values": values.tolist()}

    return {
        "labels": {str(name): array.values.tolist() for name, array in data.coords.items()},
        "variables": {str(name): plain(array) for name, array in data.data_vars.items()},
    }
