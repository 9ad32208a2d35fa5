"""Builds the pages: `make docs`. Markdown by MyST, commands from click, the Python interface from docstrings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from detrain.package import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "detrain"
author = "the authors of detrain"
copyright = "the authors of detrain"  # noqa: A001 - Sphinx's name
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click", "sphinx_copybutton"]
exclude_patterns: list[str] = []
smartquotes = False  # commands are to be copied
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_title = f"detrain {__version__}"
html_show_sphinx = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"

#: One page of the manual: the commands.
man_pages = [("reference/commands", "detrain", "training runs that can be killed at any moment", author, 1)]

linkcheck_anchors = True

ROOT = Path(__file__).parents[1]
#: Pages of other folders of the repository: where they lie there, and where a copy lies while the site is built.
ELSEWHERE = {"benchmarks/results": "measured", "syscalls/README.md": "syscalls.md"}


def copy_elsewhere() -> None:
    """Sphinx reads pages below this folder only."""
    for source, target in ELSEWHERE.items():
        found, copied = ROOT / source, Path(__file__).with_name(target)
        if found.is_dir():
            shutil.rmtree(copied, ignore_errors=True)
            copied.mkdir()
        for page in found.glob("*.md") if found.is_dir() else [found]:
            shutil.copy(page, copied / page.name if found.is_dir() else copied)


def follow_elsewhere(app: Sphinx, name: str, source: list[str]) -> None:  # noqa: ARG001 - Sphinx's signature
    """Links name these pages by where they lie in the repository."""
    up = "../" * name.count("/")
    for link, page in ELSEWHERE.items():
        source[0] = source[0].replace(f"](../{up}{link}", f"]({up}{page}")


def setup(app: Sphinx) -> None:
    """Sphinx calls it."""
    copy_elsewhere()
    app.connect("source-read", follow_elsewhere)
