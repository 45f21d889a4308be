"""`harness gate calibrate`: how far identical code differs on this machine, and how the gate would have decided."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import MachineError, UsageError
from harness.gate import deciding, noise_store
from harness.gate.case_lists import Cases
from harness.gate.observer import GateObserver
from harness.gate.offsets import Block
from harness.gate.preparing import prepared
from harness.gate.records import CaseEvidence, GateRun, Margin, Outcome, Side, share
from harness.gate.two_codes import Request, Sides, Start, prepare, run
from harness.gate.worktree import Checkout, Repository
from harness.model import Case


@dataclass(frozen=True, slots=True)
class CaseNoise:
    """How far identical code has differed in one case. margin: of the case from now on, in a run of as many cases.

    typical: the median difference of the case's blocks, as a loss. offset: the standard deviation of what all pairs of
    a run share, as a loss; None with too few blocks. outcomes: how the gate decided the case in the blocks of this
    calibration. control: whether the case is a library's copy, which never fails.
    """

    case: Case
    blocks: int
    typical: float
    offset: float | None
    margin: Margin
    outcomes: tuple[Outcome, ...]
    control: bool = False


def calibrate(request: Request, blocks: int, observer: GateObserver) -> Iterator[GateRun]:
    """Gate `request.base` against itself, in two worktrees, `blocks` times; add each block to the noise.

    A block is the screen's pairs. Each gate run is yielded as soon as it is done. All of them are decided with the
    noise that was known before the first block. Raises what `paired` raises.
    """
    repository = Repository.find(request.plugins, request.files)
    with (
        repository.worktree(request.base, "base") as base,
        repository.worktree(request.base, "again") as same,
        ExitStack() as turn,
    ):
        again = replace(same, code=replace(same.code, label=f"{same.code.label} again"))
        codes: dict[Side, Checkout] = {"base": prepared(base, request.prepare), "now": prepared(again, request.prepare)}
        sides = _same(prepare(request, codes, observer, turn))
        before = noise_store.load(sides.machine, request.noise)
        for block in range(blocks):
            seed = None if request.seed is None else request.seed + block
            made = run(replace(request, seed=seed, waivers=()), sides, before, Start.now())
            found = {_key(case): [own] for case in made.cases if (own := _block(case)) is not None}
            if found:
                noise_store.load(sides.machine, request.noise).add(found)
            yield made


def summary(
    runs: Sequence[GateRun], file: Path | None = None, asked: float = 0.01
) -> tuple[Path, tuple[CaseNoise, ...]]:
    """The noise file, and the noise of each case in the calibration's gate runs, the noisiest first.

    asked: the margin that the noise may raise, as a share. Raises MachineError if no case could be measured.
    """
    known = noise_store.load(runs[0].machine, file)
    found: dict[noise_store.Key, list[CaseEvidence]] = {}
    for made in runs:
        for case in made.cases:
            found.setdefault(_key(case), []).append(case)
    rows = []
    family = sum(not cases[0].control for cases in found.values())
    for key, cases in found.items():
        if blocks := known.blocks.get(key):
            outcomes = tuple(case.decision.outcome for case in cases if case.decision)
            typical = -share(-statistics.median(abs(block.mean) for block in blocks))
            offset = -share(-known.offsets[key].scale) if key in known.offsets else None
            margin = known.margin(*key, asked, family)
            rows.append(CaseNoise(cases[0].case, len(blocks), typical, offset, margin, outcomes, cases[0].control))
    if not rows:
        raise MachineError("no case could be measured", "run 'harness env', then the scenario: harness run")
    return known.file, tuple(sorted(rows, key=lambda row: -(row.margin.noise or 0.0)))


def _same(sides: Sides) -> Sides:
    """The sides with only the cases that the revision knows."""
    jobs = [job for job in sides.cases.jobs["now"] if job in sides.cases.jobs["base"]]
    if not jobs:
        raise UsageError(f"{sides.codes['base'].code.label} knows none of these cases", "calibrate a later revision")
    return replace(sides, cases=Cases(sides.cases.scenarios, {"base": tuple(jobs), "now": tuple(jobs)}))


def _key(found: CaseEvidence) -> noise_store.Key:
    return found.case.id, noise_store.timer(found.now)


def _block(found: CaseEvidence) -> Block | None:
    """The screen's pairs as a block; None if some have no time, since a block of fewer pairs varies more."""
    changes = [pair.change for pair in found.pairs if pair.stage == "screen"]
    return Block.of(changes) if len(changes) >= deciding.SCREEN_PAIRS else None
