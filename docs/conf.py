"""Build the site: ``make docs``. Nothing is fetched, neither while it is built nor by the finished pages."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the examples are small

from pygments.lexers.special import TextLexer  # noqa: E402

import anchorinv  # noqa: E402
from anchorinv.core.registry import METHODS  # noqa: E402

project = "anchorinv"
author = "The anchorinv developers"
copyright = f"2026, {author}"
version = release = anchorinv.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "_build",
    "_drafts",
    "gallery/*.ipynb",
    "gallery/*.py",
    "gallery/*.md5",
    "generated/methods.rst",
    "results",
]
templates_path = ["_templates"]
root_doc = "index"

# Markdown as GitHub shows it: the pages are read there too.
myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4

# The API reference, from the docstrings.
autosummary_generate = True
autodoc_typehints = "none"  # the docstrings have the types
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # the template lists them
numpydoc_class_members_toctree = False

# The gallery, from the scripts in examples/.
sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"/\d\d_",
    "within_subsection_order": "FileNameSortKey",
    "backreferences_dir": "generated/backreferences",
    "doc_module": ("anchorinv",),
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "min_reported_time": 1e9,  # seconds differ from build to build
    "image_srcset": ["2x"],
    "matplotlib_animations": False,
    "abort_on_example_error": True,
    "write_computation_times": False,
}
suppress_warnings = ["config.cache"]

html_theme = "pydata_sphinx_theme"
html_title = "anchorinv"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sidebars = {"*": [], "api": ["sidebar-nav-bs"]}  # other pages have no pages below them
toc_object_entries_show_parents = "hide"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "light"}


def write_methods(app):
    """Write the table of all methods, from the registry."""
    table = [".. list-table::", "   :header-rows: 1", "   :class: methods", ""]
    head = ("``method=``", "name", "of the paper", "trains a network", "a model file keeps", "after")
    rows = []
    for each in METHODS.values():
        published, network = ("yes" if fact else "" for fact in (each.published, each.network))
        rows.append((f"``{each.name}``", each.title, published, network, each.keeps, each.citation))
    for row in (head, *rows):
        table += [f"   {'*' if i == 0 else ' '} - {cell}" for i, cell in enumerate(row)]
    target = Path(app.srcdir) / "generated" / "methods.rst"
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(table) + "\n", encoding="utf-8")


def setup(app):
    """Show tables of text as they are, for which Pygments has no lexer; list the methods."""
    app.add_lexer("csv", TextLexer)
    app.connect("builder-inited", write_methods)
