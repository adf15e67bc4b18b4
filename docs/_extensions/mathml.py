"""Mathematics as MathML, made when the site is built: no JavaScript, no network."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

#: Operators whose subscript stands below them in a displayed formula.
LIMITS = {"max", "min", "lim", "sup", "inf"}
BELOW = {"msub": "munder", "msubsup": "munderover"}
PRIMES = set("′″‴⁗")
TIGHT = {"|", "‖", "∣", "∥", "/"}
#: Environments of amsmath that the converter knows by another name.
ENVIRONMENTS = {"aligned": "align*", "gathered": "displaylines"}
#: A command of LaTeX that was left over in the result: the converter does not know it.
LEFT_OVER = re.compile(r">\\[a-zA-Z]+<")


def mathml(latex: str, display: bool) -> str:
    """One formula as a ``<math>`` element.

    Raises
    ------
    ExtensionError
        For a formula that cannot be converted; the message holds it.
    """
    for ours, theirs in ENVIRONMENTS.items():
        latex = latex.replace(f"{{{ours}}}", f"{{{theirs}}}")
    try:
        text = convert(latex, display="block" if display else "inline")
    except Exception as error:
        raise ExtensionError(f"the formula {latex!r} cannot be converted: {error!r}") from error
    if LEFT_OVER.search(text):
        raise ExtensionError(f"the formula {latex!r} has a command without a counterpart in MathML")
    ElementTree.register_namespace("", "http://www.w3.org/1998/Math/MathML")
    root = ElementTree.fromstring(text)
    space = root.tag.removesuffix("math")
    for element in root.iter():
        _tidy(element, space, display)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _tidy(element: ElementTree.Element, space: str, display: bool) -> None:
    """Say what the converter leaves to the browser, and browsers do not all know."""
    name, text = element.tag.removeprefix(space), element.text or ""
    if name in BELOW and display and element[0].text in LIMITS:
        element.tag = space + BELOW[name]
    if name == "msup" and set(element[1].text or "-") <= PRIMES:
        # primes are raised by themselves; raised once more they all but vanish
        element.tag, element[1].tag = f"{space}mrow", f"{space}mo"
        element[1].attrib |= {"lspace": "0", "rspace": "0"}
    if name == "mo" and text in TIGHT:
        # bars of a norm and the slash of a fraction, not signs of operations
        element.attrib |= {"lspace": "0", "rspace": "0", "stretchy": "false"}
    if name in ("mo", "mi") and len(text) > 1 and text.isalpha():
        # the name of a function: a little room before its argument
        element.tag = f"{space}mo"
        element.attrib |= {"lspace": "0", "rspace": "0.17em"}


def _inline(self, node: nodes.math) -> None:
    self.body.append(f'<span class="math notranslate">{mathml(node.astext(), False)}</span>')
    raise nodes.SkipNode


def _block(self, node: nodes.math_block) -> None:
    identifiers = "".join(f'<span id="{name}"></span>' for name in node["ids"])
    formula = mathml(node.astext(), True)
    self.body.append(f'<div class="math notranslate">{identifiers}{formula}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer under the name ``mathml``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
