"""Pages of the API reference, written from the package itself when the site is built.

One page per layer, in the order of the table of layers in CONTRIBUTING.md; a layer that is
missing there comes last. Names that ``esscher`` exports are documented as ``esscher.NAME``, on the
page of the layer that they come from; the layer's other public names follow.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import Config, NumpyDocstring
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.inspect import stringify_signature
from sphinx.util.typing import stringify_annotation

import esscher

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference" / "api"
#: Modules at the top that are no layer: the command line has a page of its own, and namespaces hold
#: what layers of the same name below have.
LEFT_OUT = {"cli", "__main__", "results", "theory"}
#: Floors of which every package is a layer of its own.
FLOORS = {"core", "math", "engine", "studies"}
#: Short names of modules in annotations that only type checkers resolve.
ALIASES = {"np": "numpy", "pd": "pandas", "xr": "xarray"}
#: Modules whose names annotations use without importing them at run time.
ELSEWHERE = ("builtins", "typing", "collections.abc", "pathlib")
#: Sphinx's own stand-in for an alias, and names that only type checkers see.
UNKNOWN = ("TypeAliasForwardRef", "AnyDeep", "AnySparse")
HEAD = """.. Written by docs/_extensions/api_pages.py; do not edit.

"""

#: What a search returns that finds nothing; None is an object like any other.
_MISSING = object()
#: Object -> the name under which it is documented.
_documented: dict[int, str] = {}


def layers() -> list[str]:
    """Names of the layers below ``esscher``, top first."""
    found = {name for floor in FLOORS for name in _modules(floor)} | set(_modules("")) - FLOORS
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+`) \|", text, flags=re.MULTILINE)
    named = [
        name.replace("/", ".") for row in rows for name in re.findall(r"`([\w/]+?)(?:/|\.py)`", row)
    ]
    ordered = list(dict.fromkeys(name for name in named if name in found))
    return ordered + sorted(found - set(ordered))


def _modules(floor: str) -> list[str]:
    """Public modules of a floor, or at the top, as names below ``esscher``."""
    package = importlib.import_module(f"esscher.{floor}" if floor else "esscher")
    prefix = f"{floor}." if floor else ""
    return [
        prefix + module.name
        for module in pkgutil.iter_modules(package.__path__)
        if (floor or module.name not in LEFT_OUT) and not module.name.startswith("_")
    ]


def public_names(layer: str) -> list[tuple[str, Any]]:
    """Full name and object of everything public in a layer, exported names first."""
    module = importlib.import_module(f"esscher.{layer}")
    exported = [
        (f"esscher.{name}", getattr(esscher, name))
        for name in esscher.__all__
        if _layer_of(getattr(esscher, name)) == layer
    ]
    known = {id(thing) for _, thing in exported}
    own = [
        (name, thing)
        for part in _parts(module)
        for name, thing in _public(part)
        if id(thing) not in known
    ]
    return exported + own


def _layer_of(thing: Any) -> str | None:
    parts = (getattr(thing, "__module__", None) or "").split(".")
    if parts[0] != "esscher" or len(parts) < 2:
        return None
    return ".".join(parts[1:3]) if parts[1] in FLOORS else parts[1]


def _parts(module: ModuleType) -> list[ModuleType]:
    """The module, or the public modules of a package that exports nothing itself."""
    if hasattr(module, "__all__") or not hasattr(module, "__path__"):
        return [module]
    inside = [m.name for m in pkgutil.iter_modules(module.__path__) if not m.name.startswith("_")]
    return [importlib.import_module(f"{module.__name__}.{name}") for name in inside]


def _public(module: ModuleType) -> list[tuple[str, Any]]:
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return [(f"{module.__name__}.{name}", getattr(module, name)) for name in listed]
    return [
        (f"{module.__name__}.{name}", thing)
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(thing) or inspect.isclass(thing))
        and thing.__module__ == module.__name__
    ]


def _entry(name: str, thing: Any) -> str:
    if inspect.isclass(thing):
        inherit = "   :show-inheritance:\n" if _layer_of(thing.__base__) else ""
        return f".. autoclass:: {name}\n   :members:\n{inherit}\n"
    if inspect.isroutine(thing):
        return f".. autofunction:: {name}\n\n"
    return f".. autodata:: {name}\n   :no-value:\n\n"


def _title(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n\n"


def _table(names: list[str]) -> str:
    listed = "\n".join(f"   ~{name}" for name in names)
    return f".. autosummary::\n   :nosignatures:\n\n{listed}\n\n"


def layer_page(layer: str) -> str:
    """One layer: what it is, what is in it, and everything in detail."""
    names = public_names(layer)
    page = HEAD + _title(f"esscher.{layer}", "=")
    page += f".. automodule:: esscher.{layer}\n   :no-index:\n   :no-members:\n\n"
    page += ".. py:currentmodule:: None\n\n"
    if names:
        page += _table([name for name, _ in names])
    exported = [(name, thing) for name, thing in names if name.count(".") == 1]
    for title, part in (
        ("Exported by esscher", exported),
        ("Also in this layer", [pair for pair in names if pair not in exported]),
    ):
        if part:
            page += _title(title, "-") + "".join(_entry(*pair) for pair in part)
    return page


def index_page(names: list[str]) -> str:
    """Everything that ``esscher`` exports, by layer, and the pages of all layers."""
    page = HEAD + _title("API reference", "=")
    page += (
        "What ``import esscher`` gives, by the layer it comes from. Each layer has a page with "
        "these and its other public names, written from the docstrings. Imports go down the list "
        "of layers, never up.\n\n"
    )
    for layer in names:
        exported = [name for name, _ in public_names(layer) if name.count(".") == 1]
        if exported:
            page += _title(f":doc:`{layer} <{layer}>`", "-") + _table(exported)
    rest = "\n".join(f"   {layer}" for layer in names)
    return page + _title("All layers", "-") + f".. toctree::\n   :maxdepth: 1\n\n{rest}\n"


def write_pages(app: Sphinx) -> None:
    """Write what changed, remove what is no longer there."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for found in pkgutil.walk_packages(esscher.__path__, "esscher."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)  # annotations name what some modules import late
    names = layers()
    pages = {"index": index_page(names)} | {layer: layer_page(layer) for layer in names}
    for name, text in pages.items():
        path = FOLDER / f"{name}.rst"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in FOLDER.glob("*.rst"):
        if path.stem not in pages:
            path.unlink()
    for layer in names:
        for name, thing in public_names(layer):
            _documented.setdefault(id(thing), name)


def read_docstring(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Turn the sections of a docstring (numpy style) into fields.

    Sphinx's own extension would take ``Word: rest`` in the docstring of a property for a type.
    """
    if what == "data" and not inspect.isclass(thing) and thing.__doc__ is not None:
        comment = _comment(name.rpartition(".")[2], thing)
        lines[:] = comment or lines
    settings = Config(napoleon_use_ivar=True, napoleon_use_rtype=False)
    kind = "class" if inspect.isclass(thing) else "method"
    lines[:] = NumpyDocstring(_one_name_each(lines), settings, app, kind, name, thing).lines()


def show_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Show annotations as they are written: ``Array``, not everything it stands for."""
    if what not in ("function", "method", "class"):
        return None
    try:
        shape = inspect.signature(thing)
    except (TypeError, ValueError):
        return None
    home = vars(sys.modules.get(getattr(thing, "__module__", ""), esscher))
    shown = [
        parameter.replace(annotation=_linked(parameter.annotation, home))
        for parameter in shape.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    text = stringify_signature(shape.replace(parameters=shown), show_return_annotation=False)
    result = shape.return_annotation
    if what == "class" or result is inspect.Signature.empty:
        return text, ""
    result = _linked(result, home)
    return text, result if isinstance(result, str) else stringify_annotation(result, "smart")


def _linked(annotation: Any, home: dict[str, Any]) -> Any:
    """Names in an annotation with the path under which they are documented; ``~`` hides it."""
    if not isinstance(annotation, str):
        return annotation
    annotation = plain_type(annotation)

    def full(match: re.Match[str]) -> str:
        name = _documented.get(id(home.get(match[0], _MISSING)))
        return match[0] if name is None else f"~{name}"

    return re.sub(r"(?<![\w.\"'])[A-Za-z_]\w*(?![\w.\"'])", full, annotation)


def plain_type(annotation: str) -> str:
    """Return an annotation without what ``Annotated`` adds to a type: bounds, help."""

    class Plain(ast.NodeTransformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
            self.generic_visit(node)
            annotated = ast.unparse(node.value).rpartition(".")[2] == "Annotated"
            return node.slice.elts[0] if annotated and isinstance(node.slice, ast.Tuple) else node

    try:
        return ast.unparse(Plain().visit(ast.parse(annotation.replace("~", ""), mode="eval")))
    except SyntaxError:
        return annotation


def _comment(name: str, thing: Any) -> list[str]:
    """The comment at a constant's definition, wherever in the package that is."""
    for home, module in sorted(sys.modules.items()):
        if home.startswith("esscher.") and vars(module).get(name) is thing:
            found = ModuleAnalyzer.for_module(home).find_attr_docs().get(("", name))
            if found:
                return list(found)
    return []


def _one_name_each(lines: list[str]) -> list[str]:
    """Split entries such as ``low, high`` of the attributes: each gets the same text."""
    out: list[str] = []
    inside, i = False, 0
    while i < len(lines):
        line = lines[i]
        if i + 1 < len(lines) and set(lines[i + 1].strip()) == {"-"}:
            inside = line.strip() == "Attributes"
        if inside and re.fullmatch(r"\w+(, \w+)+", line):
            text = list(itertools.takewhile(lambda x: not x or x.startswith(" "), lines[i + 1 :]))
            for one in line.split(", "):
                out += [one, *text]
            i += 1 + len(text)
            continue
        out.append(line)
        i += 1
    return out


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """Find what an annotation or a docstring refers to.

    What is documented is linked, whatever path it was named by; what exists but is not documented
    here (numpy, torch, private types) stays plain text; what does not exist is left as it is, and
    Sphinx warns.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    if not all(part.isidentifier() for part in target.split(".")):  # a whole type, or a bound
        return nodes.literal("", plain_type(target))
    if target in UNKNOWN:
        return content
    thing = _meant(target, node.get("py:module"), node.get("py:class"))
    if thing is _MISSING:
        return None
    name = _documented.get(id(thing))
    if name is None or name == target:
        return content
    python = env.domains["py"]
    return python.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, content)


@functools.cache
def _meant(target: str, module: str | None, owner: str | None) -> Any:
    things = map(_find, _candidates(target, module, owner))
    return next((thing for thing in things if thing is not _MISSING), _MISSING)


def _candidates(target: str, module: str | None, owner: str | None) -> Iterator[str]:
    """Full names that a reference may mean, the likely ones first."""
    first, _, rest = target.partition(".")
    if first in ALIASES:
        target = f"{ALIASES[first]}.{rest}"
    yield target
    if module and owner:
        yield f"{module}.{owner}.{target}"
    if module:
        yield f"{module}.{target}"
    # docstrings and annotations name what their own module has, without a path
    yield from (name for name in _documented.values() if name.endswith(f".{target}"))
    yield from (f"{name}.{target}" for name in ELSEWHERE)
    yield from (f"{name}.{target}" for name in sorted(sys.modules) if name.startswith("esscher."))


@functools.cache
def _find(name: str) -> Any:
    """The object of a full name, or ``_MISSING``."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        module = _module(".".join(parts[:cut]))
        if module is None:
            continue
        thing: Any = module
        for part in parts[cut:]:
            thing = getattr(thing, part, _MISSING)
            if thing is _MISSING:
                break
        else:
            return thing
    return _MISSING


@functools.cache
def _module(name: str) -> ModuleType | None:
    if name.startswith("esscher.") and name not in sys.modules:
        place = ROOT / "src" / name.replace(".", "/")
        if not place.is_dir() and not place.with_suffix(".py").exists():
            return None
    try:
        return importlib.import_module(name)
    except (ImportError, ValueError):
        return None


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before Sphinx looks for them; resolve references."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("autodoc-process-signature", show_signature)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
