"""Write what reports/h200/trust.md has of the check of timed calls, from tests/exploits.yaml and committed runs.

The part above it, where other timers stand beside ours, is by scripts/trust.py, and stays as it is. Figures are from
the runs that scripts/trust_runs.sh makes; a section whose run isn't there is left out. With --check nothing is written,
and the exit code is 1 if the page isn't as it would be written.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from committed import ROOT, RUNS
from tables import table

from harness import units
from harness.differences import compare
from harness.model import Difference, Result, Run
from harness.ops import Catalogue, known_cases
from harness.units import plural

PAGE = RUNS / "trust.md"
REGISTER = ROOT / "tests" / "exploits.yaml"
PATCHES = Path(__file__).parent / "trust"
BEGIN = "## What a time here was checked by"
BEFORE, AFTER, FAULTS = "trust_before", "trust_after", "trust_faults"
SAME = 0.002
"""How far a time may be from the one without the check: the precision that is asked of a time."""
NO_CHECK = ("true", "not_caught")
"""Ways of the register that aren't checks."""
DEVICES = {"cpu": "processor", "gpu": "GPU"}


@dataclass(frozen=True)
class Fault:
    """A fault that a patch plants. text: what it does. case: the id of the case that shows it."""

    name: str
    text: str
    case: str

    @classmethod
    def read(cls, file: Path) -> Fault:
        """The fault of a patch, from the lines above its changes."""
        text, case = file.read_text(encoding="utf-8").partition("\ndiff --git")[0].split("\nCase: ")
        return cls(file.stem.replace("_", " "), text, case.strip())


def faults() -> list[Fault]:
    """Every fault that is planted."""
    return [Fault.read(file) for file in sorted(PATCHES.glob("*.patch")) if file.stem != "unchecked"]


def written(register: Mapping[str, Any], runs: Mapping[str, Run]) -> str:
    """The part of the page that this script writes."""
    parts = [*checks(register), *exploits(register)]
    if FAULTS in runs:
        parts += planted(runs[FAULTS])
    if BEFORE in runs and AFTER in runs:
        parts += side_by_side(runs[BEFORE], runs[AFTER])
    return "\n\n".join([*parts, "This part is made by `python scripts/make_trust.py`; a test compares it."]) + "\n"


# ---- From the register.


def checks(register: Mapping[str, Any]) -> Iterator[str]:
    """What each way of catching does."""
    yield BEGIN
    yield "\n".join(
        f"- **{way['title']}**: {way['does']}" for name, way in register["ways"].items() if name not in NO_CHECK
    )


def exploits(register: Mapping[str, Any]) -> Iterator[str]:
    """The table of exploits, and what we know of what others published."""
    entries, ways = register["exploits"], register["ways"]
    yield "## Ways to get a time that isn't deserved"
    caught = [entry for entry in entries if entry["caught"] not in NO_CHECK]
    yield (
        f"{plural(len(entries), 'way')} that others published, or that we tried. {len(caught)} of them end without a "
        "time. Each is a test, which holds it to what stands here."
    )
    head = ("what a variant does", "from", "caught by", "ends as", "tested on")
    yield "\n".join(table(head, (_exploit(register, entry) for entry in entries), left=len(head)))
    yield f"**{ways['not_caught']['title']}**: {ways['not_caught']['does']}"
    yield f"**{ways['true']['title']}**: {ways['true']['does']}"
    yield "What we could read of what others published:"
    given = register["sources"].values()
    yield "\n".join(f"- [{one['title']}]({one['url']}): {one['read']}." for one in given if "url" in one)


def _exploit(register: Mapping[str, Any], entry: Mapping[str, Any]) -> Sequence[str]:
    sources = [_source(register["sources"][name], called) for name, called in entry["from"].items()]
    return (
        _safe(entry["does"]),
        _safe("; ".join(sources)),
        register["ways"][entry["caught"]]["title"],
        entry.get("ends", "wrong"),
        ", ".join(DEVICES[device] for device in entry["runs"]),
    )


def _source(source: Mapping[str, str], called: str | None) -> str:
    return f"{source['short']} ({called})" if called else source["short"]


# ---- From runs.


def planted(run: Run) -> Iterator[str]:
    """What was found of each fault that was planted."""
    found = {result.case.id: result for result in run.results}
    late = "(found in the timed calls; the first call was right)"
    alone = sum(late in _error(found.get(fault.case)) for fault in faults())
    yield "## Faults that show late"
    yield (
        f"Faults planted in kernels of the collection, by the patches in `scripts/trust/`. {alone} of {len(faults())} "
        f"were found in the timed calls alone: {_origin(run, FAULTS)}."
    )
    rows = ((fault.name, _safe(fault.text), fault.case, *_found(found.get(fault.case))) for fault in faults())
    head = ("fault", "what the kernel does", "case", "status", "what was found")
    yield "\n".join(table(head, rows, left=len(head)))


def _found(result: Result | None) -> tuple[str, str]:
    return (result.status, _safe(_error(result))) if result else ("not run", "")


def _error(result: Result | None) -> str:
    return next((m.error for m in result.measurements if m.error), "") if result else ""


def side_by_side(before: Run, after: Run) -> Iterator[str]:
    """Each case's time without the check and with it, and what the check costs."""
    found = [one for one in compare(before, after) if one.ratio]
    off = {one.case.id: 1 / one.ratio - 1 for one in found if one.ratio}
    apart = [one for one in found if one.verdict in ("faster", "slower")]
    within = sum(abs(change) <= SAME for change in off.values())
    lost = [one.case.id for one in compare(before, after) if not one.ratio]
    cost = _seconds(after) / _seconds(before) - 1
    without, checked = _whole(before), _whole(after)
    yield "## The same times as without the check"
    yield (
        f"{plural(len(off), 'case')} by the same code, without the check of timed calls and with it. {within} of "
        f"{len(off)} times are within {units.percent(SAME)}; median {units.percent(_median(off), 2)}, the furthest "
        f"{units.percent(max(map(abs, off.values())), 2)}. The intervals of {len(apart)} don't overlap. All steps of "
        f"all cases took {units.seconds(_seconds(before))} without the check and {units.seconds(_seconds(after))} with "
        f"it, {cost:+.1%}; from start to end, with the starts of processes, the runs took {units.seconds(without)} and "
        f"{units.seconds(checked)}, {checked / without - 1:+.1%}. Runs: {_origin(before, BEFORE)}, with "
        f"`scripts/trust/unchecked.patch`, and {_origin(after, AFTER)}."
    )
    if lost:
        yield "\n".join(f"- {id}: no time in one of the runs" for id in lost)
    head = ("case", "without", "with", "change", "beyond noise")
    yield "\n".join(table(head, (_compared(one, off[one.case.id]) for one in found)))


def _compared(one: Difference, change: float) -> Sequence[str]:
    times = map(units.seconds, filter(None, (one.reference, one.run)))
    return one.case.id, *times, f"{change:+.2%}", "no" if one.verdict == "~" else one.verdict


def _median(off: Mapping[str, float]) -> float:
    return statistics.median(map(abs, off.values()))


def _seconds(run: Run) -> float:
    """What all steps of all cases took."""
    return sum(seconds for m in run.measurements for _, seconds in m.phases)


def _whole(run: Run) -> float:
    """What the run took, to a second."""
    assert run.header.finished, "the run isn't finished"
    begin, end = map(datetime.fromisoformat, (run.header.started, run.header.finished))
    return (end - begin).total_seconds()


def _origin(run: Run, name: str) -> str:
    return f"[{name}]({name}/report.md) of {run.header.started[:10]} on {run.header.machine.name}"


def _safe(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.replace("|", "\\|").split())


def page(text: str, register: Mapping[str, Any], runs: Mapping[str, Run]) -> str:
    """The whole page, its first part as it stands in `text`."""
    return text.partition(BEGIN)[0] + written(register, runs)


def committed_runs() -> dict[str, Run]:
    """The runs that are there, by their names."""
    Catalogue()  # loading the ops registers the metrics that they declare
    there = [name for name in (BEFORE, AFTER, FAULTS) if (RUNS / name / "run.json").exists()]
    return {name: known_cases.load(RUNS / name) for name in there}


def main(arguments: Sequence[str]) -> int:
    """Write the page, or say that it isn't as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    wanted = page(text, yaml.safe_load(REGISTER.read_text(encoding="utf-8")), committed_runs())
    if wanted == text:
        return 0
    if "--check" in arguments:
        print(f"{PAGE.relative_to(ROOT)}: isn't as its register and its runs have it; run scripts/make_trust.py")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
