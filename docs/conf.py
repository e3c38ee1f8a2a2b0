"""Settings of the documentation site, which ``scripts/docs`` builds from the pages of the whole repository."""

import sys
from pathlib import Path

from kiel_groups import __version__

sys.path.insert(0, str(Path(__file__).parent))
_ROOT = Path(__file__).parents[1]

project = "kiel-groups"
release = __version__
html_title = f"kiel-groups {__version__}"
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.doctest", "myst_parser", "site_extension"]

root_doc = "docs/index"
include_patterns = ["*.rst", "docs/**", "zookeeper/*.rst"]
# Otherwise Sphinx looks for pages in all folders, those of the virtual environment among them.
exclude_patterns = [each.name for each in _ROOT.iterdir() if each.is_dir() and each.name not in ("docs", "zookeeper")]

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_domain_indices = False
smartquotes = False
# Commands and their output, unless a page says otherwise.
highlight_language = "text"

autodoc_member_order = "groupwise"
autodoc_default_options = {"members": True, "inherited-members": "Exception"}
autodoc_preserve_defaults = True
maximum_signature_line_length = 100
napoleon_numpy_docstring = False
# Annotations name types that have no page, such as those of the standard library; no text refers to Python by a role.
nitpick_ignore_regex = [("py:.*", ".*")]
doctest_test_doctest_blocks = "default"
