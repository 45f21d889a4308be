"""Several verdicts of a gate as one: a table of all cases, the findings of each verdict, and how it ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from harness import store, units
from harness.errors import Exit
from harness.gate.joining import GRAVEST, Joined, JoinedPart
from harness.gate.records import share
from harness.report.formats.markdown import render
from harness.report.gate import SUMMARY, WORKSPACE, build, github
from harness.report.gate.content import KINDS, MEANINGS, CaseRow, ending, findings, outcome, revision, rows
from harness.report.gate.formats import junit, markdown
from harness.report.gate.stopped import WORDS
from harness.report.placing import placed
from harness.report.terminal import show
from harness.report.tree import Block, Items, Note, Page, Section, Table, text_column
from harness.units import plural

if TYPE_CHECKING:
    from rich.console import Console


def write(made: Joined, folder: Path) -> list[Path]:
    """Write gate.json, gate.md and junit.xml of all verdicts into the folder, which is made if need be."""

    def write_into(draft: Path) -> list[Path]:
        store.write(made, draft / "gate.json", indent=2)
        (draft / "gate.md").write_text(render(page(made)), encoding="utf-8")
        (draft / "junit.xml").write_text(_junit(made), encoding="utf-8")
        return [draft / name for name in ("gate.json", "gate.md", "junit.xml")]

    return placed(folder, write_into)


def publish(made: Joined, environ: Mapping[str, str]) -> None:
    """Tell GitHub, where it asks for it: the page as the step's summary, and annotations on standard output."""
    lines = list(_annotations(made, environ.get(WORKSPACE, ""))) if environ.get("GITHUB_ACTIONS") == "true" else []
    if summary := environ.get(SUMMARY):
        try:
            markdown.append_text(render(page(made)), Path(summary))
        except OSError as error:
            lines.append(github.command("warning", "summary", f"{summary}: can't be written: {error.strerror}"))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def draw(made: Joined, console: Console) -> None:
    """Draw the table, the findings of each verdict, and one line that says how it ended."""
    blocks: list[Block] = [_table(made.joined), *_findings(made)]
    blocks.append(Section("", (Note(f"gate {_word(made)}: exit {made.exit:d}, {_meaning(made)}", "strong"),)))
    show(Page("", (Section(_heading(made), tuple(blocks)),)), console)


def page(made: Joined) -> Page:
    """The page of several verdicts."""
    blocks: list[Block] = [Note(f"{_heading(made)}. Exit code {made.exit:d}: {_meaning(made)}.")]
    blocks += [_endings(made.joined), _table(made.joined), *_findings(made)]
    for part in made.joined:
        if part.run:
            blocks.append(Section(part.label, build.page(part.run).blocks[-1:]))
    return Page(f"Gate {_word(made)}", tuple(blocks))


def _word(made: Joined) -> str:
    return MEANINGS[made.exit][0] if made.exit in MEANINGS else WORDS.get(made.exit, "stopped")


def _meaning(made: Joined) -> str:
    """Which verdicts ended with the gravest code, and what the code means."""
    worst = [part for part in made.joined if part.exit == made.exit]
    meaning = ending(worst[0].run)[1] if worst[0].run else worst[0].message.partition("\n")[0]
    if made.exit == Exit.OK:
        return meaning
    return f"{', '.join(part.label for part in worst)}: {meaning}"


def _heading(made: Joined) -> str:
    codes = next((revision(part.run.now) for part in made.joined if part.run), "a code that wasn't judged")
    return f"{plural(len(made.joined), 'verdict')} on {codes}"


def _endings(parts: Sequence[JoinedPart]) -> Table:
    """A row a verdict, the gravest first."""
    ordered = sorted(parts, key=lambda part: GRAVEST.index(part.exit))
    told = [outcome(part.run) if part.run else part.message.partition("\n")[0] for part in ordered]
    return Table(
        (
            text_column("verdict", (part.label for part in ordered)),
            text_column("exit", (str(int(part.exit)) for part in ordered)),
            text_column("cases", told),
        )
    )


def _table(parts: Sequence[JoinedPart]) -> Table:
    """A row a case, worst first; a column a verdict: the change, and what was decided."""
    found = [{row.case: row for row in rows(part.run)} if part.run else {} for part in parts]
    every = sorted(
        {key: None for by_case in found for key in by_case},
        key=lambda key: min(_rank(by_case[key]) for by_case in found if key in by_case),
    )
    columns = [text_column("case", every, code=True)]
    for part, by_case in zip(parts, found, strict=True):
        cells = [_cell(by_case.get(key)) for key in every]
        columns.append(text_column(part.label, cells if part.run else [f"exit {int(part.exit)}"] * len(every)))
    worst = [min((by_case[key] for by_case in found if key in by_case), key=_rank) for key in every]
    return Table(tuple(columns), kinds=tuple(KINDS[row.severity] for row in worst))


def _rank(row: CaseRow) -> tuple[int, float]:
    kinds = list(KINDS)
    decision = row.evidence.decision
    return kinds.index(row.severity), decision.estimate if decision else 0.0


def _cell(row: CaseRow | None) -> str:
    if row is None:
        return ""
    decision = row.evidence.decision
    return f"{units.change(share(decision.estimate))} {row.verdict}" if decision else row.verdict


def _findings(made: Joined) -> Iterator[Section]:
    """What each verdict found, but for notes."""
    for part in made.joined:
        if part.run is None:
            yield Section(part.label, (Note(part.message, "failure", f"stopped with exit {part.ended}"),))
            continue
        notes = [build.note(finding) for finding in findings(part.run) if build.is_told(finding)]
        notes += [Note(difference, "environment", "can't be compared") for difference in part.run.refused]
        if notes:
            yield Section(part.label, (Items(tuple(notes)),))


def _junit(made: Joined) -> str:
    root = ET.Element("testsuites")
    for part in made.joined:
        if part.run:
            suite = junit.suite(part.run)
        else:
            suite = ET.Element("testsuite", tests="1", failures="0", errors="1", skipped="0")
            test = ET.SubElement(suite, "testcase", classname="gate", name="gate", time="0.000")
            ET.SubElement(test, "error", message=junit.clean(part.message), type=str(part.ended))
        suite.set("name", junit.clean(f"gate, {part.label}"))
        root.append(suite)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _annotations(made: Joined, workspace: str) -> Iterator[str]:
    for part in made.joined:
        if part.run:
            yield from github.lines(part.run, part.label, workspace)
        else:
            yield github.command("error", part.label, part.message)
