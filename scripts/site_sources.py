"""The pages of the site with the source of a file, and with the files of a folder.

Hundreds of files are linked to. Sphinx takes minutes for as many pages with its navigation, so these are plain pages.
"""

from __future__ import annotations

from html import escape
from pathlib import Path, PurePosixPath

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from site_pages import PICTURES, ROOT, Pages, relative

STYLE = PurePosixPath("_static/source.css")
LIGHT, DARK = "a11y-high-contrast-light", "a11y-high-contrast-dark"
"""The styles that furo has for code, too."""
_RULES = """\
body { max-width: 76rem; margin: 1rem auto; padding: 0 1rem; font-family: system-ui, sans-serif; }
pre { padding: 1rem; overflow-x: auto; font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
a { color: light-dark(#0a4bff, #8ab4ff); }
"""


def write(site: Path, pages: Pages) -> None:
    """Write the pages that others link to, also the ones that only these link to."""
    done: set[PurePosixPath] = set()
    while todo := pages.sources.keys() - done:
        for path in sorted(todo):
            place = pages.sources[path]
            content = _folder(path, place, pages) if (ROOT / path).is_dir() else _file(path)
            file = site / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_page(path, place, content), encoding="utf-8")
        done |= todo
    (site / STYLE).write_text(_styles(), encoding="utf-8")


def _file(path: PurePosixPath) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    return str(highlight(text, lexer, HtmlFormatter()))


def _folder(path: PurePosixPath, place: PurePosixPath, pages: Pages) -> str:
    files = sorted(file.name for file in (ROOT / path).iterdir() if not file.name.startswith(("__pycache__", ".")))
    entries = ((name, pages.place(path / name)) for name in files)
    links = (
        _link(name, _page_of(there), place) if there and there.suffix not in PICTURES else escape(name)
        for name, there in entries
    )
    return "\n".join(["<ul>", *(f"<li>{link}</li>" for link in links), "</ul>"])


def _page_of(place: PurePosixPath) -> PurePosixPath:
    """What a browser is shown for a staged page."""
    return place.with_suffix(".html") if place.suffix == ".md" else place


def _link(words: str, target: PurePosixPath, place: PurePosixPath) -> str:
    return f'<a href="{escape(relative(target, place))}">{escape(words)}</a>'


def _page(path: PurePosixPath, place: PurePosixPath, content: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{escape(str(path))}</title><link rel="stylesheet" href="{relative(STYLE, place)}"></head><body>'
        f"<p>{_link('Start', PurePosixPath('index.html'), place)}</p><main><h1>{escape(str(path))}</h1>\n"
        f"{content}\n</main></body></html>\n"
    )


def _styles() -> str:
    light, dark = (HtmlFormatter(style=style).get_style_defs(".highlight") for style in (LIGHT, DARK))
    return f"{_RULES}{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"
