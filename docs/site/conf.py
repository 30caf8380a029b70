"""How Sphinx builds the site from docs/: `make site`. Nothing is loaded from the network, then or by a reader."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

from tensornet_attn.version import __version__  # noqa: E402

project = "tensornet-attn"
copyright = "the authors of tensornet-attn"
version = release = __version__

extensions = [
    "myst_nb",  # Markdown and notebooks
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",  # cards and tabs
    "site_files",  # links to files of the repository
    "site_pages",  # toctrees take pages that come
    "site_gallery",
]
exclude_patterns = ["site/templates", "playground/**", "reproduce", "results"]
templates_path = ["templates"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".rst": "restructuredtext"}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
nb_execution_mode = "off"  # notebooks show the outputs they were saved with; tests/site runs them

nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(torch|nn|np|numpy|matplotlib|collections|pathlib|transformers|pydantic|typing)\..*"),
    ("py:.*", r"(?!tensornet_attn\.)[\w.]*"),  # names of types in signatures, as the source imports them
    ("py:.*", r"tensornet_attn\.(?!compile$)[\w.]*"),  # types that are not part of the public interface
]
suppress_warnings = ["misc.highlighting_failure"]

default_role = "code"  # `name` in docstrings
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "tensornet-attn"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_logo = "static/logo.svg"
html_favicon = "static/logo.svg"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "sidebar_hide_name": False}
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
