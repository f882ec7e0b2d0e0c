"""How the pages are built: `make docs` writes them to build/docs, and a warning is an error."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

project = "Flux"
author = "The authors of Flux"
copyright = author
release = "0.1.0"

extensions = ["sphinx.ext.autodoc", "generated"]
# Docstrings put names between single backquotes; pages use two.
default_role = "code"
highlight_language = "none"
# The numbers of rules and the names of tests are read as they stand.
smartquotes = False

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_display_short_literal_types = True
add_module_names = False
maximum_signature_line_length = 88

html_theme = "furo"
html_title = "Flux"
html_static_path = ["_static"]
html_css_files = ["flux.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
