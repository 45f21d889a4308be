"""The pages of the site, staged for Sphinx: the Markdown pages of this repository, with links that work on the site.

A page is written for GitHub, with links relative to the file. On the site a page README.md is the index of its folder,
a run's report.md lies beside its report.html, so the report is the index of its folder, too. A file that a page links
to gets a page with its source, and a folder without a README a list of its files: `site_sources.py` writes them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("*.md", "docs/**/*.md", "docs/*.ipynb", "examples/*.md", "harness/**/*.md", "kernels/*.md", "reports/*.md",
          "reports/h200/*.md", "reports/h200/gate/**/*.md", "reports/h200/peak/*.md", "scenarios/*.md")  # fmt: skip
"""The pages that are committed, but for the reports of runs, which are rendered anew."""
RUNS = PurePosixPath("reports/h200")
REPORT = "report.md"
SOURCES = PurePosixPath("sources")
"""The folder of the site with the pages of sources."""
PICTURES = (".svg", ".png")
SCHEME = "site"
"""What links to pages begin with that Sphinx doesn't know; docs/conf.py takes it off again."""
_FENCED = re.compile(r"(^(?P<fence>`{3,}|~{3,})[^\n]*\n.*?^(?P=fence)[^\S\n]*$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s#]*)(#[^()\s]*)?\)")


def committed() -> list[PurePosixPath]:
    """The paths of the committed pages, relative to the repository."""
    found = {path for place in PLACES for path in ROOT.glob(place) if "_data" not in path.parts}
    return sorted(PurePosixPath(path.relative_to(ROOT).as_posix()) for path in found)


class Pages:
    """The folder of staged pages, and where each path of the repository is found in it.

    runs: the runs that the site has, by the names of their folders.
    """

    def __init__(self, folder: Path, runs: frozenset[str]) -> None:
        self.folder, self.runs = folder, runs
        self.of_page = {path: _staged(path) for path in committed()}
        self.of_page |= {RUNS / name / REPORT: RUNS / name / "index.md" for name in runs}
        self.sources: dict[PurePosixPath, PurePosixPath] = {}
        """The page of each file and folder that pages link to, and that Sphinx doesn't know."""

    def write(self, place: PurePosixPath | str, text: str) -> None:
        """Write a page to its place in the staged folder."""
        file = self.folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def stage(self) -> None:
        """Write every committed page. The reports of the runs lie in the staged folder already."""
        for path, place in self.of_page.items():
            if path.name == REPORT:
                continue
            text = (ROOT / path).read_text(encoding="utf-8")
            self.write(place, self.linked(_of_notebook(text) if path.suffix == ".ipynb" else text, path, place))

    def linked(self, text: str, path: PurePosixPath, place: PurePosixPath) -> str:
        """The text of a page at `path` of the repository, with links that lead from its `place` on the site."""

        def link(match: re.Match[str]) -> str:
            picture, words, target, heading = match[1], match[2], match[3], match[4] or ""
            if not target or ":" in target:
                return match[0]
            words = words if picture else _LINK.sub(link, words)
            meant = PurePosixPath(os.path.normpath(path.parent / target))
            if meant.name == REPORT and meant not in self.of_page and (ROOT / meant).is_file():
                return words  # a run that this site leaves out
            there = self.place(meant)
            return f"{picture}[{words}]({self.target(there, place)}{heading})" if there else match[0]

        parts = _FENCED.split(text)
        # A split with two groups gives text, fenced block, fence, text, ...
        return "".join(_LINK.sub(link, part) if number % 3 == 0 else part for number, part in enumerate(parts)
                       if number % 3 != 2)  # fmt: skip

    def place(self, path: PurePosixPath) -> PurePosixPath | None:
        """Where the site has a path of the repository; None if there is no such path."""
        if path in self.of_page:
            return self.of_page[path]
        if (readme := path / "README.md") in self.of_page:
            return self.of_page[readme]
        if path == RUNS:
            return RUNS / "index.md"
        file = ROOT / path
        if not file.exists() or not file.is_relative_to(ROOT):
            return None
        if file.suffix in PICTURES:
            copied = self.folder / path
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copied)
            return path
        name = path / "index.html" if file.is_dir() else path.with_name(f"{path.name}.html")
        # GitHub Pages takes no file whose name begins with a dot.
        return self.sources.setdefault(path, SOURCES.joinpath(*(part.lstrip(".") for part in name.parts)))

    def target(self, there: PurePosixPath, page: PurePosixPath) -> str:
        """What a link says that leads from a page to a place of the site."""
        link = relative(there, page)
        return f"{SCHEME}:{link}" if there.is_relative_to(SOURCES) else link

    def link(self, words: str, path: PurePosixPath, page: PurePosixPath) -> str:
        """A link from a page of the site to a path of the repository; the words alone if the site has no such path."""
        there = self.place(path)
        return f"[{words}]({self.target(there, page)})" if there else words


def relative(target: PurePosixPath, page: PurePosixPath) -> str:
    """A link from a page to a target, both relative to one folder."""
    return PurePosixPath(os.path.relpath(target, page.parent)).as_posix()


def _staged(path: PurePosixPath) -> PurePosixPath:
    """Where a committed page lies on the site."""
    return path.with_name("index.md") if path.name == "README.md" else path.with_suffix(".md")


def _of_notebook(text: str) -> str:
    """The cells of a notebook as Markdown."""
    return "\n\n".join(_cells(json.loads(text)))


def _cells(notebook: dict[str, list[dict[str, list[str]]]]) -> Iterator[str]:
    for cell in notebook["cells"]:
        content = "".join(cell["source"])
        yield f"```python\n{content}\n```" if str(cell["cell_type"]) == "code" else content
