"""Sphinx: how the pages in this folder become a site; `make docs` builds it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import gradred  # noqa: E402 (found through the path above)

project = "gradred"
author = "the gradred authors"
release = version = gradred.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = False  # the docstrings name types of mpi4py and NumPy, whose pages are elsewhere

html_theme = "furo"
html_title = f"gradred {release}"
html_copy_source = False

default_role = "code"  # in docstrings, as in the Markdown pages, `x` is code
autodoc_typehints = "none"  # the docstrings say what an argument may be, in words
autodoc_preserve_defaults = True  # as they are written, not as they print
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

myst_heading_anchors = 3  # pages may link to the headings of others
