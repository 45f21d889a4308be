"""Several verdicts as one: of one code on several machines (`harness gate merge`), or against several bases."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import Exit, UsageError
from harness.gate.records import GateRun, Revision
from harness.store import codec

FILE = "gate.json"
GRAVEST = (Exit.GATE_FAILED, Exit.BUG, Exit.USAGE, Exit.ENVIRONMENT, Exit.UNDECIDED, Exit.OK)
"""Exit codes, the gravest first. A failure comes first: what one machine has shown, another one can't take back."""


@dataclass(frozen=True, slots=True)
class JoinedPart:
    """One verdict. label: the machine, the base, or both; source: the file that it was read from, if it was.

    run: None where the gate stopped before it could judge; then `ended` is its exit code, `message` says why.
    """

    label: str
    run: GateRun | None = None
    ended: int = 0
    message: str = ""
    source: str = ""

    @property
    def exit(self) -> Exit:
        return self.run.exit if self.run else Exit(self.ended)


@dataclass(frozen=True, slots=True)
class Joined:
    """Several verdicts, and what they are together."""

    joined: tuple[JoinedPart, ...]

    @property
    def exit(self) -> Exit:
        """The gravest of all exit codes."""
        return min((part.exit for part in self.joined), key=GRAVEST.index)


def merge(places: Sequence[Path]) -> Joined:
    """The verdicts in these files and folders as one. Raises UsageError for what isn't one, and for different codes."""
    parts = [part for place in places for part in _parts(place)]
    if len(parts) < 2:
        raise UsageError("harness gate merge joins several verdicts: only one was named", "name all gate.json files")
    _refuse_twice(parts)
    _refuse_other_code([part.run for part in parts if part.run])
    return Joined(tuple(_labelled(parts)))


def against(runs: Sequence[GateRun]) -> Joined:
    """The verdicts of one code against several bases as one. Raises UsageError if the code was edited meanwhile."""
    _refuse_other_code(runs)
    return Joined(tuple(JoinedPart(run.base.label, run) for run in runs))


def _parts(place: Path) -> Iterator[JoinedPart]:
    file = place / FILE if place.is_dir() else place
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if stopped := content.get("stopped"):
            yield JoinedPart(str(place), None, int(Exit(stopped["exit"])), str(stopped["message"]), str(place))
        elif content.get("joined"):
            for each in content["joined"]:
                part = codec.build(JoinedPart, each)
                yield replace(part, source=f"{place}, {part.label}")
        else:
            yield JoinedPart("", codec.build(GateRun, content), source=str(place))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise UsageError(f"{file}: holds no verdict of a gate: {reason}", f"name the {FILE} of each gate") from error


def _refuse_twice(parts: Sequence[JoinedPart]) -> None:
    """Raise UsageError if one verdict is named twice."""
    seen: dict[tuple[str, ...], str] = {}
    for part in parts:
        run = part.run
        # A machine measures one run at a time.
        key = (run.started, run.machine.fingerprint, run.base.revision, str(run.seed)) if run else (part.source,)
        if key in seen:
            raise UsageError(f"{part.source} is the same verdict as {seen[key]}", "name each verdict once")
        seen[key] = part.source


def _refuse_other_code(runs: Sequence[GateRun]) -> None:
    """Raise UsageError unless all runs compare the same code with bases of the same revision where they have one name.

    A verdict about another code says nothing about this one.
    """
    advice = "gate the same commit on each machine, against the same base"
    codes = {(run.now.revision, run.now.dirty, run.now.digest): run.now for run in runs}
    if len(codes) > 1:
        told = " and ".join(_named(code) for code in list(codes.values())[:2])
        raise UsageError(f"these verdicts are about different codes: {told}", advice)
    bases: dict[str, Revision] = {}
    for run in runs:
        first = bases.setdefault(run.base.label, run.base)
        if first.revision != run.base.revision:
            told = f"{_named(first)} and {_named(run.base)}"
            raise UsageError(f"the base {run.base.label} of these verdicts is of two revisions: {told}", advice)


def _named(code: Revision) -> str:
    return f"{code.revision[:12] or code.label}{' with changes' if code.dirty else ''}"


def _labelled(parts: Sequence[JoinedPart]) -> Iterator[JoinedPart]:
    """The parts with labels that tell them apart: by machine, by base if there are several, by number if need be."""
    bases = {part.run.base.label for part in parts if part.run}
    counts = Counter[str]()
    for part in parts:
        label = part.label
        if run := part.run:
            label = f"{run.machine.name}, against {run.base.label}" if len(bases) > 1 else run.machine.name
        counts[label] += 1
        yield replace(part, label=f"{label} ({counts[label]})" if counts[label] > 1 else label)
