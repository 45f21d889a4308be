"""The gate's page: for the folder, and for the summary that GitHub shows of a step."""

from __future__ import annotations

from pathlib import Path

from harness.gate.records import GateRun
from harness.report.formats.markdown import render
from harness.report.gate import build

FIGURE = "pairs.png"
LIMIT = 1024 * 1024
"""Bytes that GitHub takes as a step's summary; if there are more it takes none."""
_CUT = "\n\nThe rest was cut, since GitHub takes 1 MiB at most. `gate.md` among the run's files has all of it.\n"


def write(run: GateRun, folder: Path) -> list[Path]:
    """Write gate.md, which shows the figure that the format `plot` draws."""
    path = folder / "gate.md"
    path.write_text(page(run, figure=FIGURE if any(e.pairs for e in run.cases) else ""), encoding="utf-8")
    return [path]


def append(run: GateRun, summary: Path) -> None:
    """Add the page, without the figure, to a step's summary; as much of it as GitHub takes. Raises OSError."""
    append_text(page(run), summary)


def append_text(text: str, summary: Path) -> None:
    """Add a text to a step's summary; as much of it as GitHub takes. Raises OSError."""
    there = summary.stat().st_size if summary.exists() else 0
    with summary.open("a", encoding="utf-8") as file:
        file.write(_within(text, LIMIT - there))


def page(run: GateRun, figure: str = "") -> str:
    """The page as Markdown. figure: path of the plot, relative to the page."""
    return render(build.page(run, figure))


def _within(text: str, most: int) -> str:
    """The text, cut after a line where it has more than `most` bytes in UTF-8."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode()
    kept = data[: max(0, most - len(_CUT.encode()))].rpartition(b"\n")[0]
    return kept.decode("utf-8", "ignore") + _CUT if kept else ""
