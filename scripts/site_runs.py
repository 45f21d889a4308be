"""The pages of the committed runs on the site, rendered by the code that `harness report` uses.

A run's page has two forms: report.html, with filters, and the index of its folder, which is report.md among the other
pages. Pictures aren't drawn again, since drawing takes minutes and tests compare the committed ones with their runs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from site_pages import REPORT, ROOT, RUNS

from harness import report
from harness.cli.report import stale
from harness.ops import Catalogue, known_cases
from harness.report import overview, preface, summary
from harness.report.formats.markdown import prose
from harness.report.plotting import FOLDER as FIGURES

FOLDER = ROOT / RUNS
PAGE = "report.html"
_MOST_TITLES = 3
"""Titles of scenarios that the list of runs has room for."""


@dataclass(frozen=True)
class Told:
    """What the list of runs says of one: its folder, machine, day, outcome, answer, and what its scenarios show."""

    name: str
    machine: str
    day: str
    outcome: str
    answer: str
    titles: tuple[str, ...]


def names() -> list[str]:
    """The folders of all committed runs."""
    return sorted(file.parent.name for file in FOLDER.glob("*/run.json"))


def render(chosen: Iterable[str], staged: Path) -> list[Told]:
    """Write the pages of the chosen runs into the staged folder. Gives what the list of runs says of each."""
    # The largest first, so that no process is left with one at the end.
    order = sorted(chosen, key=lambda name: (FOLDER / name / "results.jsonl").stat().st_size, reverse=True)
    if not order:
        return []
    with ProcessPoolExecutor(min(len(order), os.cpu_count() or 1)) as pool:
        return sorted(pool.map(_render, order, repeat(staged)), key=lambda told: told.name)


def _render(name: str, staged: Path) -> Told:
    folder, place = FOLDER / name, staged / RUNS / name
    place.mkdir(parents=True)
    if (folder / FIGURES).is_dir():
        shutil.copytree(folder / FIGURES, place / FIGURES)
    catalogue = Catalogue()  # which registers the metrics of ops, before a run is read
    run = known_cases.load(folder)
    (notes,) = stale([run], catalogue)
    report.write(run, place, ["markdown", "html"], notes)
    page = place / REPORT
    (place / "index.md").write_text(_linked(page.read_text(encoding="utf-8")), encoding="utf-8")
    page.unlink()
    return Told(
        name,
        run.header.machine.name,
        run.header.started[:10],
        preface.outcome(run),
        " ".join(overview.headline(summary.summarise(run))),
        tuple(dict.fromkeys(scenario.title for scenario in run.header.scenarios)),
    )


def _linked(text: str) -> str:
    """The report with a link to its other form below the title. It is HTML, since the page isn't one of Sphinx's."""
    title, _, rest = text.partition("\n")
    link = f'<p><a href="{PAGE}">This run with filters, sorting and each case in detail</a>, in one file.</p>'
    return f"{title}\n\n{link}\n{rest}"


def _shortened(titles: Sequence[str]) -> str:
    rest = len(titles) - _MOST_TITLES
    return "; ".join(titles[:_MOST_TITLES]) + (f"; {rest} more" if rest > 0 else "")


def listed(runs: Sequence[Told]) -> str:
    """The page that lists the runs, each with its answer first. Its sentences are too long for a table."""
    if not runs:
        return "# All runs\n\nNo run was rendered for this site.\n"
    machines = ", ".join(dict.fromkeys(told.machine for told in runs))
    items = [
        f"- [{told.name}]({told.name}/index.md), {told.day}, {told.outcome}: {prose(_shortened(told.titles))}.\\\n"
        f"  {prose(told.answer)}"
        for told in runs
    ]
    tree = ["```{toctree}", ":hidden:", "", *(f"{told.name} <{told.name}/index>" for told in runs), "```"]
    return "\n\n".join(["# All runs", f"Measured on {machines}.", "\n".join(items), "\n".join(tree)]) + "\n"
