"""The links of all committed pages: each relative link leads to a committed file, each anchor to a heading."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.one_test import one_test

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = ("tests/golden/", "harness/_data/")
"""Pages of invented runs, whose pictures nobody drew; and what only an installed package has."""

RUNS = "reports/h200"
"""The folder of runs, which an archive of sources leaves out."""


@cache
def committed() -> frozenset[str]:
    """Paths of all files that git has or would take; of all files where there is no git."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return frozenset(name for name in listed.split("\0") if name and (ROOT / name).exists())
    return frozenset(file.relative_to(ROOT).as_posix() for file in ROOT.rglob("*") if file.is_file())


PAGES = sorted(name for name in committed() if name.endswith(".md") and not name.startswith(SKIPPED))
_FENCED = re.compile(r"^(?P<fence>`{3,}|~{3,})[^\n]*\n.*?^(?P=fence)[^\S\n]*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$", re.MULTILINE)


def links(text: str) -> list[str]:
    """The targets of links and pictures in Markdown, and of links in HTML, but for other hosts."""
    prose = _CODE.sub("", _FENCED.sub("", text))
    found = re.findall(r"\]\(<?([^()\s>]*)>?(?: \"[^\"]*\")?\)", prose)
    found += re.findall(r"^\[[^\]^]+\]: +(\S+)", prose, re.MULTILINE)
    found += re.findall(r"<(?:a|img)\b[^>]*?\b(?:href|src)=[\"']([^\"']+)", prose)
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@cache
def anchors(text: str) -> frozenset[str]:
    """The names that GitHub gives to the headings of a page; the second heading of a name gets -1."""
    seen: Counter[str] = Counter()
    names = set(re.findall(r"<a\b[^>]*?\b(?:id|name)=[\"']([^\"']+)", text))
    for title in _HEADING.findall(_FENCED.sub("", text)):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        names.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(names)


@cache
def anchors_of(file: Path) -> frozenset[str]:
    return anchors(file.read_text(encoding="utf-8"))


def broken(page: str, text: str) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    for link in dict.fromkeys(links(text)):
        path, _, heading = link.partition("#")
        target = os.path.normpath(Path(page).parent / path) if path else page
        here = not path or target in committed() or any(name.startswith(f"{target}/") for name in committed())
        if target.startswith(RUNS) and not (ROOT / RUNS).exists():
            continue
        if not here:
            yield link
        elif heading:
            known = anchors(text) if target == page else anchors_of(ROOT / target) if target.endswith(".md") else ()
            if heading not in known:
                yield link


def test_there_are_pages_of_every_kind() -> None:
    kinds = {"README.md", "CONTRIBUTING.md", "docs/gate.md", "harness/gate/README.md", "kernels/README.md"}
    assert kinds <= set(PAGES)
    if (ROOT / RUNS).exists():
        assert {"reports/README.md", "reports/h200/rows.md", "reports/h200/norms/report.md"} <= set(PAGES)


@one_test("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    assert list(broken(page, (ROOT / page).read_text(encoding="utf-8"))) == []


@one_test(
    ("text", "found"),
    [
        ("[fine](../README.md)", []),
        ("[fine](../README.md#two-commands)", []),
        ("[fine](../kernels)", []),
        ("[of a folder](../kernels/nowhere)", ["../kernels/nowhere"]),
        ("[a file](NONE.md)", ["NONE.md"]),
        ("[a heading](../README.md#three-commands)", ["../README.md#three-commands"]),
        ("## One\n[its own](#one) [none](#two)", ["#two"]),
        ("## One\n## One\n[the second](#one-1) [no third](#one-2)", ["#one-2"]),
        ("## A `word` of [links](../README.md)!\n[it](#a-word-of-links)", []),
        ("![a picture](none.svg)", ["none.svg"]),
        ("[a link\nover lines](none.md)", ["none.md"]),
        ('<img src="none.png">', ["none.png"]),
        ("[of another host](https://example.org/none) <https://example.org>", []),
        ("`[code](none.md)`\n\n```\n[code](none.md)\n## Code\n```\n[it](#code)", ["#code"]),
        ("[what git leaves out](../reports/h200/norms/report.html)", ["../reports/h200/norms/report.html"]),
        ("[out of the repository](../../README.md)", ["../../README.md"]),
    ],
)
def test_a_link_to_nowhere_is_noticed(text: str, found: list[str]) -> None:
    assert list(broken("docs/page.md", text)) == found
