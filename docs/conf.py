"""Sphinx's settings for the site, which `scripts/make_site.py` stages and builds."""

import os

from harness import __version__

project = "GPU benchmarking harness"
author = "the contributors"
version = release = __version__
language = "en"

extensions = ["myst_parser"]
# Links name headings as GitHub does.
myst_heading_anchors = 6
# What begins with `site:` is a page that lies on the site, but isn't one of Sphinx's.
myst_url_schemes = {"http": None, "https": None, "mailto": None, "site": "{{path}}"}
myst_enable_extensions = ["colon_fence"]

exclude_patterns = [".doctrees"]
# In prose about a command line, two hyphens are two hyphens.
smartquotes = False
add_module_names = False
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
# Types of torch and of Python aren't documented here, and a name in a signature is as its source has it.
nitpick_ignore_regex = [("py:class", r"(?!harness\.).*")]

html_theme = "furo"
html_title = f"{project} {version}"
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"font-stack--monospace": "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"},
}
if repository := os.environ.get("GITHUB_REPOSITORY"):
    html_theme_options["footer_icons"] = [
        {"name": "GitHub", "url": f"https://github.com/{repository}", "html": "source", "class": ""}
    ]
