"""The gate's page: for the folder, and for the summary that GitHub shows of a step."""

from __future__ import annotations

import shlex
from pathlib import Path

from harness import units
from harness.gate.records import GateRun
from harness.model import Machine
from harness.report.gate._content import code, columns, findings, method, outcome, rows, verdict

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
    there = summary.stat().st_size if summary.exists() else 0
    with summary.open("a", encoding="utf-8") as file:
        file.write(_within(page(run), LIMIT - there))


def page(run: GateRun, figure: str = "") -> str:
    """The page as Markdown. figure: path of the plot, relative to the page."""
    from harness.report._page import render

    word, meaning = verdict(run)
    return render(
        "gate/gate.md.j2",
        run=run,
        word=word,
        meaning=meaning,
        outcome=outcome(run),
        table=columns(rows(run)) if run.cases else [],
        findings=findings(run),
        figure=figure,
        method=method(run),
        facts=_facts(run),
        command=shlex.join(run.command),
    )


def _facts(run: GateRun) -> list[tuple[str, str]]:
    machine = run.machine
    facts = {
        "base": code(run.base),
        "now": code(run.now),
        "sources": f"{run.base.digest[:12]}, now {run.now.digest[:12]}",
        "device": f"{machine.name} ({machine.fingerprint})",
        "software": ", ".join(f"{name} {version}" for name, version in _software(machine)),
        "started": run.started,
        "took": units.seconds(run.seconds, 3),
    }
    return list(facts.items())


def _software(machine: Machine) -> list[tuple[str, str]]:
    """Names and versions; a CPU has no driver."""
    return [*([("driver", machine.driver)] if machine.driver else []), *machine.versions]


def _within(text: str, most: int) -> str:
    """The text, cut after a line where it has more than `most` bytes in UTF-8."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode()
    kept = data[: max(0, most - len(_CUT.encode()))].rpartition(b"\n")[0]
    return kept.decode("utf-8", "ignore") + _CUT if kept else ""
