"""Reads what is known of a case out of stored runs."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from harness import devices
from harness.devices import Device
from harness.errors import UsageError
from harness.explain.records import Known, Seen, Sibling, counts
from harness.metrics import Subject
from harness.model import Attachment, Result, Run, by_group

TOOLS = ("ncu", "nsys", "torch")
"""Tools whose kernels are read, the one that tells most first."""
TRACES = "torch"
"""The tool that records cases of several devices."""
_PARTS = 4  # of an id, at least
_NEAREST = 3  # ids that an error names


class Newest(NamedTuple):
    """The newest run that has a case. counted: the newest run that has counters of it, this one or another, or None."""

    folder: Path
    run: Run
    counted: Path | None


def newest(pattern: str, folders: Sequence[Path]) -> dict[str, Newest]:
    """The newest run that has a case, by id, for each case that the pattern matches, in the order of the runs.

    pattern: an id, or a glob on ids. folders: run folders, or folders above such, of which runs that this version can't
    read are left out. Raises UsageError if no case matches, and as `store.load` does for a run folder among `folders`.
    """
    from harness import store
    from harness.ops import known_cases

    named = {folder: known_cases.load(folder) for folder in folders if (folder / store.HEADER).exists()}
    runs = list(named.items())
    for folder in (file.parent for top in folders if top not in named for file in sorted(top.rglob(store.HEADER))):
        with suppress(UsageError):
            runs.append((folder, known_cases.load(folder)))
    runs.sort(key=lambda found: _started(found[1]))
    counted = {a.case: folder for folder, run in runs for a in run.attachments if any(map(counts, a.kernels))}
    every = {
        result.case.id: Newest(folder, run, counted.get(result.case.id))
        for folder, run in runs
        for result in run.results
    }
    cases = {result.case.id: result.case for _, run in runs for result in run.results}
    today = known_cases.translated(pattern)
    exact = {today: every[today]} if today in every else {}
    if chosen := exact or {key: found for key, found in every.items() if cases[key].matches(pattern)}:
        return chosen
    if not runs:
        where = ", ".join(map(str, folders))
        raise UsageError(
            f"no run has '{pattern}': no run lies in {where}", "measure it by 'harness run', or name a folder by --run"
        )
    raise _unknown(pattern, every, [folder for folder, _ in runs])


def known(run: Run, case_id: str) -> Known:
    """Everything that the run knows of a case. Raises UsageError if the case has no time."""
    results = run.results
    result = next(result for result in results if result.case.id == case_id)
    if result.time is None:
        why = f": {result.error.splitlines()[0]}" if result.error else ""
        raise UsageError(
            f"{case_id} has no time, it is {result.status.replace('_', ' ')}{why}", "explain another variant"
        )
    scenario = next((one.name for one in run.header.scenarios if case_id in one.cases), result.case.op)
    subject = Subject.of(result, run.limits)
    group, kind = by_group(results)[result.case.group], devices.kinds().get(result.case.device)
    return known_of(run, scenario, result, subject, group, run.attachments, kind)


def known_of(  # noqa: PLR0913, PLR0917 - what a caller that goes through all cases knows already
    run: Run,
    scenario: str,
    result: Result,
    subject: Subject,
    group: Iterable[Result],
    attachments: Iterable[Attachment],
    kind: Device | None,
) -> Known:
    """What is known of a case that has a time.

    group: all results of its group. attachments: what tools found of these, or of the whole run. kind: of its device.
    """
    time = result.time or 0.0
    tool, kernels = _kernels(attachments, result.case.id, time)
    return Known(
        case=result.case,
        time=time,
        subject=subject,
        device=run.header.machine.device,
        scenario=scenario,
        tool=tool,
        kernels=kernels,
        facts=tuple(dict.fromkeys(subject.kernels)),
        siblings=_siblings(result, group, attachments),
        kind=kind,
    )


def command(known: Known) -> str:
    """The command that brings the counters of a case; '' where no tool counts on its kind of device.

    Counters are of one device. Of a case of several devices the command brings their traces.
    """
    tool = known.kind.counters if known.kind else ""
    if known.case.world > 1:
        tool = TRACES
    # The scenarios of one file are named '<file>.<op>'.
    scenario = shlex.quote(known.scenario.partition(".")[0])
    return f"harness profile {tool} {scenario} --only '{known.case.id}'" if tool else ""


def _started(run: Run) -> datetime:
    try:
        moment = datetime.fromisoformat(run.header.started)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _kernels(attachments: Iterable[Attachment], case_id: str, time: float) -> tuple[str, tuple[Seen, ...]]:
    """The best tool that saw kernels of the case, and what it saw. Shares are even where it gives no times."""
    found = {a.tool: a.kernels for a in attachments if a.case == case_id and a.kernels}
    tool = next((name for name in TOOLS if name in found), "")
    profiles = found.get(tool, ())
    times = [dict(profile.values).get("time", 0.0) * profile.launches for profile in profiles]
    total = sum(times)
    shares = [own / total if total else 1 / len(profiles) for own in times]
    seen = (Seen(profile, share, share * time) for profile, share in zip(profiles, shares, strict=True))
    return tool, tuple(seen)


def _siblings(result: Result, group: Iterable[Result], attachments: Iterable[Attachment]) -> tuple[Sibling, ...]:
    launches = {a.case: sum(kernel.launches for kernel in a.kernels) for a in attachments if a.kernels}
    others = [other for other in group if other.case.id != result.case.id]
    timed = [
        Sibling(other.case.variant, other.time, launches.get(other.case.id))
        for other in others
        if other.time is not None
    ]
    return tuple(sorted(timed, key=lambda sibling: sibling.time))


def _unknown(pattern: str, every: Collection[str], folders: list[Path]) -> UsageError:
    where = str(folders[0]) if len(folders) == 1 else f"{len(folders)} runs"
    parts = pattern.count("/") + 1
    if parts < _PARTS and any(key.startswith(f"{pattern}/") for key in every):
        found = f"'{pattern}' has {parts} part{'s' * (parts > 1)}; an id has {_PARTS} or more: op/variant/type/size"
        return UsageError(found, f"give all of them, or a glob: '{pattern}/*'")
    close = difflib.get_close_matches(pattern, list(every), n=_NEAREST, cutoff=0.5)
    advice = (
        f"did you mean {', '.join(close)}?" if close else "give an id as tables have it, or a glob such as 'prelu/*'"
    )
    return UsageError(f"no case in {where} is named '{pattern}', or matches it", advice)
