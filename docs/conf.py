"""How the documentation site is built: ``make docs``.

The source folder is the root of the repository, so that links between documentation, tests,
notebooks and CONTRIBUTING.md are the same on disk, in a forge and in the site. The navigation is
made by an extension: the pages themselves stay plain Markdown.
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS / "_extensions"), str(ROOT / "src")]

from esscher import __version__  # noqa: E402

project = "Esscher"
author = "The Esscher authors"
project_copyright = "the Esscher authors"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "mathml",
    "api_pages",
    "command_pages",
    "navigation",
    "offline",
]
root_doc = "docs/index"
include_patterns = ["docs/**", "examples/*.ipynb", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
exclude_patterns = [
    "docs/_build",
    "docs/_templates",
    "docs/_extensions",
    "**/.ipynb_checkpoints",
    # everything else at the root, so that it is not even looked at
    *(p.name for p in ROOT.iterdir() if p.is_dir() and p.name not in ("docs", "examples")),
]
templates_path = ["_templates"]
nitpicky = True

# --- Markdown and notebooks ---------------------------------------------------------------------
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist", "fieldlist"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4
myst_dmath_double_inline = True
# The notebooks hold the outputs of their last run; a test runs them again.
nb_execution_mode = "off"
nb_merge_streams = True
# external links cannot be followed here; `make docs-links` does where there is a network
linkcheck_anchors = False

# --- API reference --------------------------------------------------------------------------------
autodoc_typehints = "signature"
autodoc_type_aliases = {"Array": "Array", "ArrayLike": "ArrayLike", "TextSource": "TextSource"}
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
autosummary_generate = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries = False  # the sidebar copies them for every page

# --- The pages ------------------------------------------------------------------------------------
html_theme = "furo"
html_title = "Esscher"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["esscher.css"]
html_favicon = "_static/esscher.svg"
html_logo = "_static/esscher.svg"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_last_updated_fmt = None
html_additional_pages = {"index": "to_index.html"}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {
        "color-brand-primary": "#1f5f8b",
        "color-brand-content": "#1f5f8b",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7db8e0",
        "color-brand-content": "#7db8e0",
    },
}
