"""`harness gate --base`: measure two codes in pairs of processes, and decide."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from harness import devices, units
from harness.gate import deciding, inherited, looks, new_waivers, noise_store
from harness.gate.alike import unlike
from harness.gate.case_lists import Cases, common, is_control, wanted
from harness.gate.evidence import Evidence
from harness.gate.inquiry import Asking, inquire
from harness.gate.noise_store import Noise
from harness.gate.observer import Comparing, GateObserver
from harness.gate.pairing import PairMeasurer
from harness.gate.procedure import Procedure
from harness.gate.records import GateRun, Judged, Side, UsedCode, Waiver
from harness.gate.resuming import check
from harness.gate.rulebook import findings
from harness.gate.rules.floor import expected, floors_of
from harness.gate.sides import two_sides
from harness.gate.used_code import edited
from harness.gate.waiving import waived
from harness.gate.worktree import Checkout, Repository, shared_root
from harness.limits import Needs
from harness.metrics import METRICS
from harness.model import Limits, Machine
from harness.ops import Catalogue
from harness.processes import lock
from harness.processes.nursery import Nursery
from harness.processes.supervisor import Workers
from harness.runner import compiles, most_ranks
from harness.scenario import Selection

_MOST_AHEAD = 4
_CORES_AHEAD = 4  # for each process that loads torch


@dataclass(frozen=True, slots=True)
class Request:
    """What to compare and how. files: scenarios; plugins: files with more ops; selection: its device works here.

    folders: which of the named folders `files` has scenarios of. accept: rules whose findings pass.

    prepare: commands that install the packages of a side. harness: the revision whose harness measures both sides; None
    for the working tree's. always: measure, even if both sides use the same code.

    margin: the loss that passes, as a share. seed: decides the order within each pair; drawn if None. noise: the file
    of noise; in the user's cache folder if None. command: the command line, program first.

    pairs: how many may confirm a case, at most; None for as many as usual, or for one more look at the pairs of an
    earlier run. earlier: the run from whose pairs this one goes on. waivers: losses that pass for a while; waivers_in:
    the file that they stand in. unsure: as in the evidence.
    """

    base: str
    files: tuple[Path, ...]
    selection: Selection
    plugins: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()
    accept: tuple[str, ...] = ()
    margin: float = 0.01
    seed: int | None = None
    noise: Path | None = None
    advisory: bool = False
    command: tuple[str, ...] = ()
    prepare: tuple[str, ...] = ()
    harness: str | None = None
    always: bool = False
    pairs: int | None = None
    earlier: GateRun | None = None
    waivers: tuple[Waiver, ...] = ()
    waivers_in: Path | None = None
    unsure: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """When a gate run began: for the record, and on a clock that only goes forward."""

    text: str
    seconds: float

    @classmethod
    def now(cls) -> Start:
        """The moment of the call."""
        return cls(datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic())

    @property
    def day(self) -> str:
        """The day in UTC, as YYYY-MM-DD."""
        return self.text[:10]


@dataclass(frozen=True, slots=True)
class Sides:
    """The two codes on one machine, and the observer.

    shared: who else used the device before anything ran. used: the files that both sides use; None where one revision
    is compared with itself. same: whether nothing need be measured, since both sides have the same code and scenarios.
    measuring: why the times of both sides can't be compared, since the code that measures changed; "" if they can.
    judged: cases of the working tree that the base finds wrong, or can't judge. nursery: has torch loaded, and may fork
    the processes of one pair. begun: processes for the first pair that were started already.
    """

    codes: Mapping[Side, Checkout]
    machine: Machine
    cases: Cases
    shared: str
    observer: GateObserver
    used: UsedCode | None = None
    same: bool = False
    measuring: str = ""
    judged: tuple[Judged, ...] = ()
    nursery: Nursery | None = None
    begun: Mapping[Side, Workers] = field(default_factory=dict)


def paired(request: Request, observer: GateObserver) -> GateRun:
    """Compare the working tree with the revision `request.base`.

    Raises UsageError for a request that can't be carried out as written, MachineError where the machine or the base
    can't give valid numbers, KeyboardInterrupt on Ctrl-C. The worktree is removed in any case.
    """
    start = Start.now()
    repository = Repository.find(request.plugins, request.files)
    with (
        two_sides(repository, request.base, request.prepare, request.harness, observer) as codes,
        ExitStack() as turn,
    ):
        sides = prepare(request, codes, observer, turn, repository)
        waivers, unsure = new_waivers.marked(request.waivers, request.waivers_in, repository, codes["base"])
        request = replace(request, waivers=waivers, unsure=unsure)
        if request.earlier:
            check(request.earlier, sides.codes, sides.machine, sides.cases, sides.used)
        return run(request, sides, noise_store.load(sides.machine, request.noise), start)


def prepare(
    request: Request,
    codes: Mapping[Side, Checkout],
    observer: GateObserver,
    turn: ExitStack,
    repository: Repository | None = None,
) -> Sides:
    """Find out what there is to measure. Raises what `paired` raises.

    turn: until it ends, no other command measures on the devices. repository: the working tree's, which is compared
    with its base; None where one revision is compared with itself.
    """
    device = devices.kinds()[request.selection.device]
    with inherited.kept():
        catalogue = Catalogue(request.plugins)
    with inherited.kept():  # again, since the names of files hold in the folder of the command
        asked = wanted(request.files, catalogue, request.selection)
    turn.enter_context(lock.held(device, range(most_ranks(asked.jobs))))
    shared = device.shared() or ""
    if asked.left_out:
        observer.say(asked.left_out)
    observer.note(f"asking {codes['base'].code.label} what it can measure")
    if repository is None:
        with codes["base"].workers(device.kind) as workers:
            surveyed = workers.survey((*asked.files, *asked.broken), asked.jobs)
        codes = {side: code.with_variables(surveyed.variables) for side, code in codes.items()}
        sides = Sides(codes, device.machine(), common(asked, surveyed, catalogue, request.selection), shared, observer)
    else:
        nursery = turn.enter_context(Nursery(shared_root(codes.values()), compiler=compiles(asked.jobs)))
        begun: dict[Side, Workers] = {}

        def begin(codes: Mapping[Side, Checkout], cases: Cases) -> None:
            if not device.on_host:
                begun.update(_begun(codes, cases, device.kind, turn))

        asking = Asking(request.files, request.folders, asked, catalogue, request.selection, observer, nursery, begin)
        found = inquire(asking, repository, codes, device.kind)
        sides = Sides(found.codes, device.machine(), found.cases, shared, observer, begun=begun)
        sides = replace(sides, used=found.used, measuring=found.measuring, judged=found.judged, nursery=nursery)
        # An earlier run has pairs, so it measured this code.
        sides = replace(sides, same=found.same and not request.always and request.earlier is None)
    cases, machine = len(sides.cases.all), sides.machine
    compared = Comparing(codes["base"].code, codes["now"].code, cases, machine, sides.used, sides.same)
    observer.comparing(compared)
    return sides


def run(request: Request, sides: Sides, noise: Noise, start: Start) -> GateRun:
    """Screen and confirm once, and let the rules judge."""
    earlier = request.earlier
    drawn = earlier.seed if earlier and request.seed is None else request.seed
    seed = random.SystemRandom().randrange(2**32) if drawn is None else drawn
    sides = _measured_alike(request, sides, noise, seed)
    with sides.codes["now"].workers(sides.machine.kind) as of_limits:
        return _run(replace(request, seed=seed), sides, noise, start, of_limits)


def _run(request: Request, sides: Sides, noise: Noise, start: Start, of_limits: Workers) -> GateRun:
    """The gate run. of_limits: measures what the machine can do, if a floor is compared with that."""
    earlier = request.earlier
    draw, ahead = random.Random(request.seed), _ahead(sides.machine)
    after = of_limits if _holds_to_limits(sides.cases) else None
    pairs = PairMeasurer(
        sides.machine.kind, sides.codes, draw, ahead, sides.observer, sides.nursery, dict(sides.begun), after
    )
    # The same code has the same times, so there is nothing to find out.
    # No change of ours can slow a control down, so a waiver that covers one would only hide that the machine changed.
    ours = (job.case.id for job in sides.cases.all if not is_control(job.case, sides.cases.scenarios))
    waivable = waived(request.waivers, ours, start.day)
    procedure = Procedure(pairs, sides.cases, request.margin, noise, sides.observer, _looks(request), waivable)
    found = () if sides.same else procedure.go_on(earlier) if earlier else procedure.carry_out()
    cases, scenarios = sides.cases, sides.cases.scenarios
    evidence = Evidence(
        sides.codes["base"].code.label,
        scenarios,
        found,
        broken=cases.broken,
        shared=sides.shared,
        asked=cases.asked,
        before=cases.before,
        untold=cases.untold,
        used=sides.used,
        same=sides.same,
        measuring=sides.measuring,
        judged=sides.judged,
        laxer=cases.laxer,
        untimed=cases.untimed,
        waivers=request.waivers,
        unsure=request.unsure,
        today=start.day,
        edited=edited(sides.codes["now"], sides.used) if sides.used else (),
    )
    evidence = replace(evidence, limits=_limits(evidence, sides.observer, of_limits))
    return GateRun(
        mode="paired",
        base=sides.codes["base"].code,
        now=sides.codes["now"].code,
        machine=sides.machine,
        scenarios=scenarios,
        cases=found,
        findings=findings(evidence, request.accept),
        seed=request.seed,
        alpha=deciding.ALPHA,
        started=start.text,
        seconds=time.monotonic() - start.seconds,
        command=request.command,
        advisory=request.advisory,
        accept=request.accept,
        used=sides.used,
        looks=procedure.made,
        waivers=request.waivers,
        continues=earlier.started if earlier else "",
    )


def _looks(request: Request) -> int:
    """How often the confirmation looks, at most."""
    if request.pairs is not None:
        return looks.looks_for(request.pairs)
    return request.earlier.looks + 1 if request.earlier else looks.LOOKS


def _measured_alike(request: Request, sides: Sides, noise: Noise, seed: int) -> Sides:
    """The sides, without a reason to doubt where the code that measures changed, but measures the base as before."""
    base = sides.codes["base"]
    if not sides.measuring or base.own_root is None:
        return sides
    sides.observer.say("the code that measures changed: the kernels of the base are measured by the old and the new")
    codes: Mapping[Side, Checkout] = {"base": replace(base, root=base.own_root, own_root=None), "now": base}
    pairs = PairMeasurer(sides.machine.kind, codes, random.Random(seed), _ahead(sides.machine), sides.observer)
    why = unlike(pairs, sides.cases.jobs["base"], request.margin, noise)
    return replace(sides, measuring=f"{sides.measuring}; the kernels of the base are {why}" if why else "")


def _ahead(machine: Machine) -> int:
    """How many processes may load torch while another one measures: none on the host, whose cores are measured."""
    return 0 if devices.kinds()[machine.kind].on_host else max(1, min(_MOST_AHEAD, machine.cpu_count // _CORES_AHEAD))


def _begun(codes: Mapping[Side, Checkout], cases: Cases, kind: str, turn: ExitStack) -> Iterator[tuple[Side, Workers]]:
    """A process of each side that loads torch meanwhile. It leaves the device alone before its turn."""
    for side, code in codes.items():
        if jobs := cases.jobs[side]:
            workers = turn.enter_context(code.workers(kind))
            workers.begin(jobs[0].case.world)
            yield side, workers


def _holds_to_limits(cases: Cases) -> bool:
    """Whether a floor of any case is compared with what the machine can do."""
    floors = (floor for scenario in cases.scenarios for _, floor in floors_of(scenario))
    return any(floor.metric in METRICS and METRICS[floor.metric].of_limits for floor in floors)


def _limits(evidence: Evidence, observer: GateObserver, workers: Workers) -> Limits | None:
    """What the machine can do, as far as floors are compared with it; None if no floor is."""
    held = [found for _, found, floor in expected(evidence) if METRICS[floor.metric].of_limits]
    if not held:
        return None
    needs = Needs.of((work, found.case.world) for found in held for m in found.now if (work := m.work_done))
    return workers.limits(needs, lambda text, done: observer.note(f"{text} ({units.percent(done, 0)})"))
