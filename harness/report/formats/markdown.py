"""The report to read: tables, figures, claims, warnings, and how to get the same numbers again."""

from __future__ import annotations

from pathlib import Path

from harness.model import Run

SUMMARY = "report.md: tables and figures, claims beside measurements, the machine and the command"


def write(run: Run, folder: Path) -> list[Path]:
    """Write report.md, which shows the figures that the format `plots` draws."""
    from harness.report._content import content
    from harness.report._page import render

    path = folder / "report.md"
    path.write_text(render("report.md.j2", **content(run)), encoding="utf-8")
    return [path]
