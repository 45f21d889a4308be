"""Whether the links inside a built site lead somewhere: each file is there, and has the part that a link names."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LEADS = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src", "object": "data"}


class _Page(HTMLParser):
    """The links of a page, and the names of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.parts: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take down where a tag leads, and what it is called."""
        found = dict(attrs)
        self.parts |= {name for key in ("id", "name") if (name := found.get(key))}
        if target := found.get(_LEADS.get(tag, "")):
            self.links.append(target)


@cache
def _read(file: Path) -> _Page:
    page = _Page()
    page.feed(file.read_text(encoding="utf-8"))
    return page


def broken(site: Path) -> list[str]:
    """Each link of a page that leads nowhere: 'page: link'. Links to other hosts aren't tried."""
    return sorted(
        f"{page.relative_to(site)}: {link}" for page in site.rglob("*.html") for link in _broken_of(page, site)
    )


def _broken_of(page: Path, site: Path) -> Iterator[str]:
    for link in dict.fromkeys(_read(page).links):
        there = urlsplit(link)
        if there.scheme or there.netloc:
            continue
        file = page.parent / unquote(there.path) if there.path else page
        file = file / "index.html" if file.is_dir() else file
        inside = file.is_file() and file.resolve().is_relative_to(site.resolve())
        if not inside or (_names_a_part(file, there.fragment) and not _has(file, unquote(there.fragment))):
            yield link


def _names_a_part(file: Path, fragment: str) -> bool:
    """Whether a fragment names a part of a page. A run's page keeps its filters there, as `q=...`."""
    return file.suffix == ".html" and "=" not in fragment


def _has(file: Path, part: str) -> bool:
    return part in ("", "top") or part in _read(file).parts
