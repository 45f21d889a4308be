"""Trees of a gate run: one for a page, one for a console."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from harness import units
from harness.gate.records import Finding, GateRun
from harness.model import Machine
from harness.report.gate.content import (
    KINDS,
    WAIVERS,
    ending,
    findings,
    limited,
    method,
    nothing_measured,
    outcome,
    revision,
    rows,
    table,
    told,
    waivers,
)
from harness.report.tree import Block, CommandLine, Facts, Figure, Items, Note, Page, Section, Terms
from harness.units import plural

_DIGEST = 12
_MOST_NOTES = 10
_MOST_CHANGED = 10  # files
_TERMS = {
    "change": "mean over the pairs of the speed now over the speed of the base; a minus is a loss",
    "interval": "bounds of the change, each one-sided and at the level that the decision takes",
    "margin": "the loss that still passes, the largest of what was asked for, what the case's offsets on this machine "
    "need in a run of so many cases, and what a waiver lets pass; where the noise, three standard deviations of the "
    "offsets, is more than twice what was asked for, the case can't pass",
    "pairs": "to screen + to confirm; the last stage alone decides",
    "verdict": "regressed only where the whole interval lies below the margin, ok only where it lies above. A control "
    "is the library's copy, which never fails: if a control gets slower, the machine has changed, not the code",
}


def page(run: GateRun, figure: str = "") -> Page:
    """The page of a gate run. figure: path of the plot, relative to the page; '' for no plot."""
    word, meaning = ending(run)
    counts = "" if nothing_measured(run) else f"{outcome(run)}. "
    blocks: list[Block] = [Note(f"{counts}Exit code {run.exit:d}: {meaning}.")]
    blocks += [Note(difference, "environment", "Can't be compared") for difference in run.refused]
    if run.cases:
        blocks.append(table(rows(run)))
    if about := findings(run):
        blocks.append(Section("Findings", (Items(tuple(map(note, about))),)))
    if figure:
        blocks.append(Figure(figure, "Every pair of every case, with the margin"))
    blocks.append(Section("How it was measured", tuple(_method(run))))
    return Page(f"Gate {word}", tuple(blocks))


def is_told(finding: Finding) -> bool:
    """Whether a finding is more than a note, or a note about a waiver."""
    return finding.severity != "note" or finding.rule == WAIVERS


def note(finding: Finding) -> Note:
    """A finding as it stands on a page."""
    label = f"{finding.severity} ({finding.rule})"
    about = finding.case.id if finding.case else ""
    return Note(finding.message, KINDS[finding.severity], label, about, finding.advice)


def _method(run: GateRun) -> Iterator[Block]:
    yield Note(method(run))
    yield _facts(run)
    if run.cases:
        yield Terms(tuple(_TERMS.items()))
    if run.command:
        yield CommandLine(shlex.join(run.command))


def _facts(run: GateRun) -> Facts:
    machine = run.machine
    facts = {
        **({"repository": run.now.repository} if run.now.repository else {}),
        "base": revision(run.base),
        "now": revision(run.now),
        **_code(run),
        "device": f"{machine.name} ({machine.fingerprint})",
        "software": ", ".join(f"{name} {version}" for name, version in _software(machine)),
        "started": run.started,
        **({"goes on from": f"the pairs of {run.continues}"} if run.continues else {}),
        **({"waivers": waivers(run)} if run.waivers else {}),
        "took": units.seconds(run.seconds, 3),
    }
    return Facts(tuple(facts.items()))


def _code(run: GateRun) -> dict[str, str]:
    """The digests of both codes, over all files that each side used, where these are known; and which files changed."""
    before, now = run.used.digests if run.used else (run.base.digest, run.now.digest)
    count = f", of {plural(len(run.used.now), 'file')} that it used" if run.used else ""
    changed = limited(run.used.changed, _MOST_CHANGED, "and {} more") if run.used else ()
    named = {"changed, and used": ", ".join(changed)} if changed else {}
    return {"code": f"{before[:_DIGEST]}, now {now[:_DIGEST]}{count}", **named}


def _software(machine: Machine) -> list[tuple[str, str]]:
    """Names and versions; a CPU has no driver."""
    return [*([("driver", machine.driver)] if machine.driver else []), *machine.versions]


def screen(run: GateRun) -> Page:
    """The table, worst first, then the findings, then one line that says how it ended."""
    blocks: list[Block] = [table(rows(run))] if run.cases else []
    blocks.append(Section("", tuple(_told(run))))
    where = f", in {run.now.repository}" if run.now.repository else ""
    heading = f"{revision(run.base)} against {revision(run.now)}{where}, on {run.machine.name}"
    return Page("", (Section(heading, tuple(blocks)),))


def _told(run: GateRun) -> Iterator[Note]:
    for difference in run.refused:
        yield Note(f"can't be compared: {difference}", "environment")
    for finding in findings(run):
        if finding.severity != "note":
            yield note(finding)
    # Somebody has to do something about a waiver, so its notes aren't those that the terminal leaves out.
    listed = sorted((f for f in findings(run) if f.severity == "note"), key=lambda finding: finding.rule != WAIVERS)
    notes = [f"note ({finding.rule}) {told(finding)}" for finding in listed]
    for text in limited(notes, _MOST_NOTES, "note: and {} more, see gate.md"):
        yield Note(text)
    word, meaning = ending(run)
    pairs = max((len(evidence.pairs) for evidence in run.cases), default=0)
    count = "nothing measured" if nothing_measured(run) else f"{outcome(run)}; {plural(pairs, 'pair')} at most"
    yield Note(f"{count}, {run.seconds:.0f} s")
    yield Note(f"gate {word}: exit {run.exit:d}, {meaning}", "strong")
