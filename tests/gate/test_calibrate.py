"""Calibration: blocks of a code against itself, and what is kept of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness import gate
from harness.errors import MachineError, UsageError
from harness.gate import calibration, noise_store
from harness.gate.case_lists import Cases
from harness.gate.offsets import Block
from harness.gate.records import CaseEvidence, GateRun, Pair, Revision
from harness.gate.two_codes import Request, Sides
from harness.gate.worktree import Checkout, Repository
from harness.model import Case, Job, Machine, Measurement
from harness.scenario import Selection

CODE = Checkout(Revision("HEAD", "0" * 40, False, "0" * 64), Path("/base"), ())
Started = Callable[..., list[GateRun]]


@pytest.fixture
def calibrate(
    case: Callable[..., Case],
    measured: Callable[..., Measurement],
    evidence: Callable[..., CaseEvidence],
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Started:
    """Calibrates with blocks whose pairs, or fewer of them, gain 1% in the first, 2% in the second, and so on."""
    floors: list[float | None] = []
    without = 0

    class FakeRepository:
        @contextmanager
        def worktree(self, rev: str, side: str) -> Iterator[Checkout]:
            yield CODE

    def run(request: Request, sides: Sides, noise: noise_store.Noise, start: Any) -> GateRun:
        floors.append(noise.margin(case().id, "graph", 0.0).noise)
        gain = 1 + 0.01 * len(floors)
        pairs = tuple(Pair(gain * seconds, seconds, "base", "screen") for seconds in (1e-3, 2e-3, 3e-3)[without:])
        confirm = Pair(9.0, 1.0, "base", "confirm")  # no part of the block
        found = (evidence(pairs=(*pairs, confirm)), evidence(None, of=case(n=2), pairs=()))
        return GateRun("paired", CODE.code, CODE.code, machine, (), found, (), request.seed, 0.01, "", 1.0)

    def prepare(request: Request, codes: Any, observer: Any, turn: Any) -> Sides:
        assert codes["now"].code.label == f"{CODE.code.label} again"  # which is short, whatever the base is called
        both, alone = Job(case()), Job(case(n=3))
        jobs = {"base": (both,), "now": (both, alone)} if request.files else {"base": (), "now": (alone,)}
        return Sides(codes, machine, Cases((), jobs), "", observer)

    monkeypatch.setattr(Repository, "find", lambda *_: FakeRepository())
    monkeypatch.setattr(calibration, "prepare", prepare)
    monkeypatch.setattr(calibration, "run", run)

    def start(blocks: int, files: tuple[Path, ...] = (Path("ci.yaml"),), fewer: int = 0) -> list[GateRun]:
        nonlocal without
        without = fewer
        request = Request("f" * 40, files, Selection("cpu"), seed=5, noise=tmp_path / "noise.json")
        runs = list(gate.calibrate(request, blocks, None))
        assert floors == [None] * blocks
        return runs

    return start


def test_each_block_is_kept_and_judged_without_the_others(calibrate: Started, tmp_path: Path) -> None:
    runs = calibrate(5)
    assert [run.seed for run in runs] == [5, 6, 7, 8, 9]
    file, [row] = gate.summary(runs, tmp_path / "noise.json", 0.02)
    assert file == tmp_path / "noise.json"
    assert (row.blocks, row.outcomes) == (5, ("ok",) * 5)
    assert row.margin.asked == 0.02
    square = sum(math.log(1 + 0.01 * block) ** 2 for block in range(1, 6)) / 5
    assert row.offset == pytest.approx(1 - math.exp(-math.sqrt(square)))
    assert row.margin.noise == pytest.approx(1 - math.exp(-3 * math.sqrt(square)))
    assert row.margin.too_noisy
    assert row.typical == pytest.approx(1 - 1 / 1.03)


def test_a_short_calibration_gives_no_floor_until_its_blocks_have_added_up(calibrate: Started, tmp_path: Path) -> None:
    _, [row] = gate.summary(calibrate(4), tmp_path / "noise.json")
    assert (row.blocks, row.offset, row.margin.noise) == (4, None, None)


def test_a_revision_that_knows_nothing_cannot_be_calibrated(calibrate: Started) -> None:
    with pytest.raises(UsageError, match="HEAD knows none of these cases"):
        calibrate(1, files=())


def test_a_block_with_too_few_pairs_tells_nothing(calibrate: Started, tmp_path: Path) -> None:
    runs = calibrate(2, fewer=1)
    with pytest.raises(MachineError, match="no case could be measured"):
        gate.summary(runs, tmp_path / "noise.json")
    # CI would keep a file without floors for ever.
    assert not (tmp_path / "noise.json").exists()


def test_the_noisiest_case_comes_first_and_controls_are_no_part_of_the_family(
    case: Callable[..., Case], evidence: Callable[..., CaseEvidence], machine: Machine, tmp_path: Path
) -> None:
    """Cases without enough blocks come last. Blocks may all have gained: identical code differs either way."""
    means = {1: [-0.001, -0.002, -0.003, -0.002, -0.001], 2: [0.01, 0.02, -0.01, 0.02, 0.01], 3: [0.5], 4: [0.001] * 5}
    cases = tuple(evidence(of=case(n=n), control=n == 4) for n in means)
    noise = noise_store.load(machine, tmp_path / "noise.json")
    noise.add({(case(n=n).id, "graph"): [Block(mean) for mean in of_case] for n, of_case in means.items()})
    made = GateRun("paired", CODE.code, CODE.code, machine, (), cases, (), 1, 0.01, "", 1.0)
    _, rows = gate.summary([made], noise.file)
    assert [row.case for row in rows[::3]] == [case(n=2), case(n=3)]
    assert {row.case for row in rows if row.control} == {case(n=4)}
    quiet = next(row for row in rows if row.case == case(n=1))
    assert quiet.typical == pytest.approx(1 - math.exp(-0.002))
    assert quiet.margin == noise.margin(case(n=1).id, "graph", 0.01, family=3)
    assert quiet.margin.allowed != noise.margin(case(n=1).id, "graph", 0.01, family=1).allowed
