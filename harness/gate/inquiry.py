"""What there is to measure, and with which files: both sides are asked, before anything is measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from harness import devices
from harness.errors import HarnessError, UsageError, brief, described
from harness.gate import judging, measuring, submodules, used_code
from harness.gate.case_lists import Cases, Wanted, common
from harness.gate.git import shown
from harness.gate.observer import GateObserver
from harness.gate.records import Judged, Side, UsedCode
from harness.gate.used_code import SideNames
from harness.gate.worktree import Checkout, Repository, placed
from harness.model import Job
from harness.ops import Catalogue
from harness.processes.nursery import Nursery
from harness.processes.supervisor import too_few
from harness.scenario import Selection

_MOST_GONE = 3  # files that are named


@dataclass(frozen=True, slots=True)
class Asking:
    """What the user asks for. files: scenarios; folders: which of them were named as folders; wanted: their cases.

    nursery: from which the processes that are asked are forked, on a device of the host. before_judging: is called
    with both sides and their cases, when these are known, and before the base judges what the working tree computes.
    """

    files: tuple[Path, ...]
    folders: tuple[Path, ...]
    wanted: Wanted
    catalogue: Catalogue
    selection: Selection
    observer: GateObserver
    nursery: Nursery
    before_judging: Callable[[Mapping[Side, Checkout], Cases], None]


@dataclass(frozen=True, slots=True)
class Inquired:
    """What both sides said. codes: as they are measured. same: whether code and scenarios are the same on both sides.

    measuring: what changed in the code that measures, as a sentence; "" if nothing did. judged: as in `Sides`.
    """

    codes: Mapping[Side, Checkout]
    cases: Cases
    used: UsedCode
    same: bool
    measuring: str
    judged: tuple[Judged, ...]


def inquire(asking: Asking, repository: Repository, codes: Mapping[Side, Checkout], kind: str) -> Inquired:
    """Ask the base, then the working tree. Raises what `Workers.survey` and `common` raise."""
    try:
        return _inquire(asking, repository, codes, kind, ahead=not devices.kinds()[kind].on_host)
    except HarnessError as error:
        base = codes["base"]
        if base.own_root is None:
            raise
        # The harness that measures doesn't understand the ops of the base. The base's own harness does.
        alone = {**codes, "base": replace(base, root=base.own_root, own_root=None)}
        found = _inquire(asking, repository, alone, kind)
        why = brief(described(error))
        text = f"the harness that measures now can't measure {base.code.label}, so each side was measured by its own"
        return replace(found, same=False, measuring=f"{text}: {why}")


def _inquire(
    asking: Asking, repository: Repository, codes: Mapping[Side, Checkout], kind: str, *, ahead: bool = False
) -> Inquired:
    """What `inquire` finds. ahead: whether both processes load torch at the same time, before code of a side runs."""
    base, now = codes["base"], codes["now"]
    wanted, files, folders = asking.wanted, asking.files, asking.folders
    old, new = repository.old(base, files, folders), repository.new(base, files, folders)
    scenarios = {file.resolve() for file in (*files, *old)}
    nursery = asking.nursery if devices.kinds()[kind].on_host else None
    trees = {side: (*code.trees, repository.top) for side, code in codes.items()}
    if absent := submodules.absent(repository.top):
        advice = "git submodule update --init --recursive"
        asking.observer.say(f"not checked out here, so neither side has it: {', '.join(map(shown, absent))} ({advice})")
    with (
        base.workers(kind, listen=trees["base"], nursery=nursery) as of_base,
        now.workers(kind, listen=trees["now"], nursery=nursery) as of_now,
    ):
        for workers in (of_base, of_now) if ahead else ():
            workers.load()
        for workers in (of_base, of_now) if ahead else ():
            # What is opened while the base is watched is to be the base's.
            workers.wait_until_loaded()
        with used_code.watched(repository, codes.values()) as opened:
            with _named(base):
                surveyed = of_base.survey((*wanted.files, *wanted.broken, *old), wanted.jobs)
            cases = common(wanted, surveyed, asking.catalogue, asking.selection, old)
            before = used_code.probe(of_base, _alone(cases.jobs["base"]), opened, base.root)
        asking.observer.note(f"asking {now.code.label} which files it uses")
        with used_code.watched(repository, codes.values()) as opened:
            after = used_code.probe(of_now, _alone(cases.jobs["now"]), opened, now.root)
        used = used_code.compared(repository, codes, {"base": before, "now": after}, scenarios)
        codes = {"base": base.with_variables(before.variables), "now": now.with_variables(after.variables)}
        # What is right may be said by any file, so the same code needs no judge, unless several ranks use more of it.
        jobs = [
            job for job in _to_judge(cases, before.right & after.right, kind) if job.case.world > 1 or not used.same
        ]
        if jobs:
            asking.before_judging(codes, cases)
        judged = (*judging.judged(of_base, of_now, jobs), *_unjudged(cases, before.right & after.right))
    unheard = (_unheard(file, repository, base) for file in new)
    gone = _unplugged(base, now) if cases.untold else ()
    cases = replace(cases, untold=(*cases.untold, *gone, *unheard))
    same = _same(cases, used)
    return Inquired(codes, cases, used, same, _measuring(repository, codes, used, kind), judged)


def _unplugged(base: Checkout, now: Checkout) -> Iterator[str]:
    """Why the base lacks ops that its scenarios may name, one sentence each: a file of --ops isn't there."""
    there = {file.relative_to(base.folder) for file in base.plugins if base.folder and file.is_relative_to(base.folder)}
    for file in now.plugins:
        if now.folder and file.is_relative_to(now.folder) and file.relative_to(now.folder) not in there:
            name = file.relative_to(now.folder)
            text = f"{base.code.label} has no {name}, which --ops names now"
            gone = _gone(name, base, now.folder)
            renamed = f"gone now: {gone}; if that was its name, rename the file in a commit of its own" if gone else ""
            yield f"{text}; {renamed or 'if its ops are new, they are compared from the next change on'}"


def _unheard(file: Path, repository: Repository, base: Checkout) -> str:
    """Why nobody knows what a scenario should ask for, as a sentence: the base lacks its file."""
    name = placed(file, repository.top).relative_to(repository.top)
    text = f"{base.code.label} has no {name}, so nobody knows which cases and floors it should have"
    if gone := _gone(name, base, repository.top):
        how = "rename the file in a commit of its own; or gate its folder, where a scenario may get another file"
        return f"{text}; gone now: {gone}; if that was its name, {how}"
    return f"{text}; if the scenario is new, it is compared from the next change on"


def _gone(name: Path, base: Checkout, top: Path) -> str:
    """Files of this kind that the base has in the folder of a file, and the working tree doesn't; '' for none."""
    there = (base.folder or top) / name.parent
    names = (name.parent / file.name for file in sorted(there.glob(f"*{name.suffix}")))
    gone = [str(file) for file in names if not (top / file).exists()]
    return ", ".join(gone[:_MOST_GONE]) + (f" and {len(gone) - _MOST_GONE} more" if len(gone) > _MOST_GONE else "")


@contextmanager
def _named(base: Checkout) -> Iterator[None]:
    """An error of the base's code is told as the base's: its file is gone when the user reads that."""
    try:
        yield
    except UsageError as error:
        found = error.message.replace(f"{base.folder}/", "")
        advice = "name a base whose code can be loaded: with this one nothing can be compared"
        raise UsageError(f"{base.code.label} can't be loaded: {found}", advice) from error


def _to_judge(cases: Cases, right: frozenset[str], kind: str) -> list[Job]:
    """The jobs that each side finds right, on one device; then the jobs of both on several, where there are so many.

    right: as found on one device.
    """
    known = {job.case.id for job in cases.jobs["base"]}
    alone = [job for job in cases.jobs["now"] if job.case.world == 1 and job.case.id in right]
    several = [job for job in cases.jobs["now"] if job.case.world > 1 and job.case.id in known]
    there = (job for job in several if not too_few(kind, job.case.world))
    return [*alone, *sorted(there, key=lambda job: job.case.world)]


def _unjudged(cases: Cases, right: frozenset[str]) -> Iterator[Judged]:
    """Cases of both sides that weren't right when they were asked. Whether that was by chance, their times show."""
    known = {job.case.id for job in cases.jobs["base"]}
    for job in cases.jobs["now"]:
        if job.case.world == 1 and job.case.id in known - right:
            yield Judged(job.case, unable="it wasn't right when each side was asked, though it was when it was timed")


def _alone(jobs: Sequence[Job]) -> list[Job]:
    """The jobs on one device each, since one process is asked."""
    return [replace(job, case=replace(job.case, world=1)) for job in jobs]


def _same(cases: Cases, used: UsedCode) -> bool:
    """Whether a comparison would compare a thing with itself."""
    jobs = cases.jobs
    whole = not (cases.broken or cases.untold or cases.laxer)
    same_cases = bool(jobs["now"]) and jobs["base"] == jobs["now"] and cases.asked == cases.before
    # Several ranks may use files that one doesn't.
    alone = all(job.case.world == 1 for job in jobs["now"])
    return used.same and whole and same_cases and alone


def _measuring(repository: Repository, codes: Mapping[Side, Checkout], used: UsedCode, kind: str) -> str:
    """What changed in the code that measures both sides, as a sentence; "" if nothing did."""
    before, now = codes["base"].own_root, codes["now"].root
    package = repository.package or Path()
    files = measuring.changed(before, now, dict(used.now), package) if before and now else []
    what = "the code that measures both sides"
    if not files:
        files = _of_device(kind, SideNames(codes["now"], package), used)
        what = f"the device '{kind}', which times each side,"
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{what} changed: {files[0]}{more}" if files else ""


def _of_device(kind: str, names: SideNames, used: UsedCode) -> list[str]:
    """Files of the package of a device, where it is the repository's, that the sides used with other contents."""
    module = type(devices.kinds()[kind]).__module__
    first = sys.modules[module.partition(".")[0]]
    code = first if first.__file__ else sys.modules[module]  # a namespace has no file
    place = Path(code.__file__ or "/").resolve()
    name = names.of(place.parent if hasattr(code, "__path__") else place)
    if name is None or first.__name__ == "harness":
        return []
    before, now = dict(used.base), dict(used.now)
    own = (file for file in before.keys() | now.keys() if PurePath(file).is_relative_to(name))
    return sorted(file for file in own if before.get(file) != now.get(file))
