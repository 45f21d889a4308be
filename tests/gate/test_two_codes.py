"""What a gate of two codes measures, in which order, and what its record says; with pairs that are invented."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.gate import looks, two_codes
from harness.gate.case_lists import Cases
from harness.gate.deciding import SCREEN_PAIRS
from harness.gate.evidence import Evidence
from harness.gate.noise_store import Noise
from harness.gate.observer import Comparing
from harness.gate.pairing import PairMeasurer
from harness.gate.records import Finding, Pair, Revision, Side, Stage, UsedCode, Waiver
from harness.gate.two_codes import Request, Sides, Start
from harness.gate.worktree import Checkout
from harness.model import Case, Expectation, Job, Machine, Measurement, Scenario
from tests.one_test import one_test
from tests.rare import rare

BASE, NOW = Revision("main", "b" * 40, False, "1" * 64), Revision("the working tree", "f" * 40, True, "2" * 64)
CODES: dict[Side, Checkout] = {"base": Checkout(BASE, None, ()), "now": Checkout(NOW, None, ())}
JOBS = tuple(Job(Case(op, variant, "float32", (("N", 8),))) for op, variant in (("a", "tuned"), ("copy", "memcpy")))
START = Start("2026-11-26T06:00:00+00:00", 500.0)
WAIVER = Waiver(("*",), 0.5, "r", "o", "2026-11-26", "w:1")


class Even(PairMeasurer):
    """Pairs of the same times. made: every one, with what it was given."""

    made: list[Even]

    def __post_init__(self) -> None:
        self.drawn = self.draw.random()
        self.stages: list[tuple[Stage, int]] = []
        self.made.append(self)

    def measure(self, stage: Stage, count: int, jobs: Any) -> None:
        self.stages.append((stage, count))
        for job in jobs["now"]:
            self.pairs[job.case.id] += [Pair(1.0, 1.0, "base", stage)] * count
            for side in ("base", "now"):
                self.measurements[side][job.case.id] += [Measurement(job.case, "ok", samples=(1.0,))] * count


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Evidence, Sequence[str]]]:
    """What the rules were asked to judge, and what may pass."""
    told: list[tuple[Evidence, Sequence[str]]] = []
    Even.made = []
    monkeypatch.setattr(two_codes, "PairMeasurer", Even)

    def findings(evidence: Evidence, accept: Sequence[str]) -> tuple[Finding, ...]:
        told.append((evidence, accept))
        return ()

    monkeypatch.setattr(two_codes, "findings", findings)
    return told


def sides(machine: Machine, **fields: Any) -> Sides:
    observer: Any = SimpleNamespace(settled=lambda *_: None, say=lambda *_: None)
    cases = Cases((), {"base": JOBS, "now": JOBS}, untold=("why",), laxer=("how",), untimed=("where",))
    return Sides(CODES, machine, cases, "another program", observer, **fields)


def request(**fields: Any) -> Request:
    selection: Any = SimpleNamespace(device="cpu")
    return Request("main", (), selection, **fields)


NOISE = Noise(Path("none"), "f00d", {})


def test_the_record_says_what_was_asked_and_found(
    judged: list[tuple[Evidence, Sequence[str]]], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_codes, "time", SimpleNamespace(monotonic=lambda: START.seconds + 30))
    used = UsedCode((("a.py", "1"),), (("a.py", "2"),), complete=True)
    asked = request(seed=7, accept=("work",), advisory=True, command=("harness", "gate"), waivers=(WAIVER,))
    found = two_codes.run(asked, sides(machine, used=used), NOISE, START)
    [pairs] = Even.made
    assert pairs.stages == [("screen", SCREEN_PAIRS)]
    assert pairs.drawn == random.Random(7).random()
    assert (found.mode, found.base, found.now, found.seed, found.seconds) == ("paired", BASE, NOW, 7, 30.0)
    assert (found.started, found.command, found.advisory, found.accept) == (
        START.text, ("harness", "gate"), True, ("work",),
    )  # fmt: skip
    assert (found.used, found.waivers, found.continues, found.looks) == (used, (WAIVER,), "", 0)
    assert [case.decision.outcome for case in found.cases if case.decision] == ["ok", "ok"]
    # A waiver holds on its last day too. It never covers a control, which would hide that the machine changed.
    assert [case.margin.waived for case in found.cases] == [0.5, 0.0]
    [(evidence, accept)] = judged
    assert (evidence.base, evidence.cases, evidence.today, accept) == ("main", found.cases, "2026-11-26", ("work",))
    assert (evidence.shared, evidence.untold, evidence.laxer) == ("another program", ("why",), ("how",))
    assert evidence.untimed == ("where",)
    assert (evidence.used, evidence.waivers, evidence.edited, evidence.limits) == (used, (WAIVER,), (), None)


def test_the_same_code_is_not_measured(judged: list[tuple[Evidence, Sequence[str]]], machine: Machine) -> None:
    found = two_codes.run(request(), sides(machine, same=True), NOISE, START)
    assert [pairs.stages for pairs in Even.made] == [[]]
    assert (found.cases, judged[0][0].same) == ((), True)


def test_files_edited_meanwhile_are_asked_of_the_working_tree(
    judged: list[tuple[Evidence, Sequence[str]]], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_codes, "edited", lambda code, used: (code.code.label, *used.changed))
    two_codes.run(request(), sides(machine, same=True, used=UsedCode(changed=("a.py",))), NOISE, START)
    two_codes.run(request(), sides(machine, same=True), NOISE, START)
    assert [evidence.edited for evidence, _ in judged] == [("the working tree", "a.py"), ()]


@pytest.mark.parametrize(("asked", "drawn"), [(None, 1), (5, 5), (0, 0)])
def test_a_gate_goes_on_with_its_seed_unless_another_one_is_asked_for(
    judged: list[tuple[Evidence, Sequence[str]]], machine: Machine, asked: int | None, drawn: int
) -> None:
    first = two_codes.run(request(seed=1), sides(machine), NOISE, START)
    before = replace(first, started="2026-11-25T10:00:00+00:00", looks=3)
    # The cases are the same, so nothing is measured; what the procedure refuses is told elsewhere.
    found = two_codes.run(request(seed=asked, earlier=before), sides(machine, same=True), NOISE, START)
    assert (found.seed, found.continues) == (drawn, before.started)


def test_a_seed_is_drawn_anew_for_each_gate(judged: list[tuple[Evidence, Sequence[str]]], machine: Machine) -> None:
    seeds = {two_codes.run(request(), sides(machine, same=True), NOISE, START).seed or 0 for _ in range(4)}
    assert len(seeds) > 1
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert max(seeds) > 2**20


@pytest.mark.parametrize(
    ("pairs", "before", "most"),
    [(None, None, looks.LOOKS), (10, None, 1), (25, None, 3), (None, 3, 4), (80, 1, 4)],
)
def test_how_often_it_looks(pairs: int | None, before: int | None, most: int) -> None:
    earlier: Any = None if before is None else SimpleNamespace(looks=before)
    assert two_codes._looks(request(pairs=pairs, earlier=earlier)) == most


@one_test(
    ("kind", "cores", "ahead"), [("cpu", 64, 0), ("cuda", 1, 1), ("cuda", 8, 2), ("cuda", 11, 2), ("cuda", 64, 4)]
)
def test_processes_load_ahead_where_cores_are_free(machine: Machine, kind: str, cores: int, ahead: int) -> None:
    assert two_codes._ahead(replace(machine, kind=kind, cpu_count=cores)) == ahead


def test_a_process_of_each_side_that_measures_anything_is_begun_for_as_many_ranks_as_its_first_case_has() -> None:
    log: list[object] = []

    class Noted:
        def __init__(self, side: str) -> None:
            self.side = side

        def __enter__(self) -> Noted:
            return self

        def __exit__(self, *_: object) -> None:
            log.append(f"end of {self.side}")

        def begin(self, size: int) -> None:
            log.append((self.side, size))

    codes: Any = {side: SimpleNamespace(workers=lambda _, side=side: Noted(side)) for side in ("base", "now")}
    first = replace(JOBS[0], case=replace(JOBS[0].case, world=2))
    with ExitStack() as turn:
        made = dict(two_codes._begun(codes, Cases((), {"base": (), "now": (first, *JOBS)}), "cuda", turn))
        assert (log, [*made]) == ([("now", 2)], ["now"])
    assert log == [("now", 2), "end of now"]


@one_test(("metric", "held"), [("of_ceiling", True), ("of_peak", True), ("speedup", False), ("of_nobody", False)])
def test_limits_are_measured_after_the_pairs_where_a_floor_is_over_them(metric: str, held: bool) -> None:
    scenario = Scenario("s", "t", "a", (JOBS[0].case.id,), expect=(Expectation("tuned", metric, 0.9),))
    assert two_codes._holds_to_limits(Cases((scenario,), {"base": JOBS, "now": JOBS})) == held
    assert not two_codes._holds_to_limits(Cases((replace(scenario, expect=()),), {"base": JOBS, "now": JOBS}))


def test_code_that_measures_as_before_is_not_measured_twice(
    judged: list[tuple[Evidence, Sequence[str]]], machine: Machine
) -> None:
    """Nor is anything measured where there is no code of the base that measures: it is only doubted."""
    for given in (sides(machine), sides(machine, measuring="it changed")):
        assert two_codes._measured_alike(request(), given, NOISE, 1) is given
    assert Even.made == []


def test_a_day_is_that_of_the_start() -> None:
    assert START.day == "2026-11-26"
    assert len(Start.now().text) == len(START.text)
    assert Start.now().text.endswith("+00:00")


@pytest.fixture
def found_out(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Sides, list[object]]]:
    """What `prepare` finds, and what it did, in its order. same: whether both sides use the same code."""

    def make(asked: Request, repository: Any, same: bool = False, left_out: str = "") -> tuple[Sides, list[object]]:
        log: list[object] = []

        @contextmanager
        def noted(*what: object) -> Iterator[Any]:
            log.append(what)

            def survey(*given: object) -> Any:
                log.append(given)
                return SimpleNamespace(variables=(("A", "1"),))

            yield SimpleNamespace(survey=survey)
            log.append(("end of", what[0]))

        device = SimpleNamespace(kind="cpu", shared=lambda: "another program", machine=lambda: machine)
        cases = Cases((), {"base": JOBS, "now": JOBS})
        of_device = SimpleNamespace(jobs=JOBS, left_out=left_out, files=("s.yaml",), broken=("t.yaml",))
        found = SimpleNamespace(codes=CODES, cases=cases, used=UsedCode(), measuring="changed", judged=(), same=same)
        fakes = {
            "devices": SimpleNamespace(kinds=lambda: {"cpu": device}),
            "Catalogue": lambda plugins: plugins,
            "wanted": lambda *_: of_device,
            "lock": SimpleNamespace(held=lambda _device, ranks: noted("lock", [*ranks])),
            "Nursery": lambda root, compiler: noted("nursery", root, compiler),
            "inquire": lambda asking, *given: found if given == (repository, codes, "cpu") else None,
            "common": lambda *_: cases,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(two_codes, name, fake)
        codes: Any = {
            side: SimpleNamespace(
                code=code,
                root=None,
                workers=lambda kind: noted("workers", kind),
                with_variables=lambda given, code=code: SimpleNamespace(code=code, given=given),
            )
            for side, code in (("base", BASE), ("now", NOW))
        }
        monkeypatch.setattr(two_codes, "shared_root", lambda _: Path("/own"))
        observer: Any = SimpleNamespace(say=log.append, note=log.append, comparing=log.append)
        with ExitStack() as turn:
            sides = two_codes.prepare(asked, codes, observer, turn, repository)
            log.append("prepared")
        return sides, log

    return make


@pytest.mark.slow  # processes/test_lock.py has what is held
def test_the_devices_are_held_until_the_turn_ends(
    found_out: Callable[..., tuple[Sides, list[object]]], machine: Machine
) -> None:
    sides, log = found_out(request(), "repository", left_out="two of a library are left out")
    compared = Comparing(BASE, NOW, 2, machine, UsedCode(), False)
    assert log == [
        ("lock", [0]), "two of a library are left out", "asking main what it can measure",
        ("nursery", Path("/own"), False), compared, "prepared", ("end of", "nursery"), ("end of", "lock"),
    ]  # fmt: skip
    assert (sides.shared, sides.measuring, sides.judged, sides.used) == (
        "another program",
        "changed",
        (),
        UsedCode(),
    )
    assert sides.nursery is not None


def test_a_revision_compared_with_itself_is_asked_what_it_can_measure(
    found_out: Callable[..., tuple[Sides, list[object]]],
) -> None:
    sides, log = found_out(request(), None)
    assert log[:5] == [
        ("lock", [0]), "asking main what it can measure", ("workers", "cpu"), (("s.yaml", "t.yaml"), JOBS),
        ("end of", "workers"),
    ]  # fmt: skip
    codes: Any = sides.codes
    given = {side: (of.code, of.given) for side, of in codes.items()}
    assert given == {"base": (BASE, (("A", "1"),)), "now": (NOW, (("A", "1"),))}
    assert (sides.used, sides.same, sides.measuring, sides.nursery, sides.shared) == (
        None, False, "", None, "another program",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("same", "fields", "passed_over"),
    [(True, {}, True), (False, {}, False), (True, {"always": True}, False), rare(True, {"earlier": "a run"}, False)],
)
def test_the_same_code_is_passed_over_unless_somebody_wants_it_measured(
    found_out: Callable[..., tuple[Sides, list[object]]], same: bool, fields: dict[str, Any], passed_over: bool
) -> None:
    assert found_out(request(**fields), "repository", same)[0].same == passed_over


@pytest.mark.parametrize("earlier", [None, "a run"])
def test_a_run_that_goes_on_is_checked_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, earlier: Any
) -> None:
    log: list[object] = []
    given = sides(machine, used=UsedCode())

    @contextmanager
    def both(*asked: object) -> Iterator[Any]:
        log.append(asked[1:4])
        yield CODES

    asked = request(earlier=earlier, prepare=("pip install .",), harness="1.0", noise=Path("noise"))
    monkeypatch.setattr(two_codes, "two_sides", both)
    monkeypatch.setattr(two_codes, "Repository", SimpleNamespace(find=lambda *_: "repository"))
    monkeypatch.setattr(two_codes, "prepare", lambda *_: given)
    monkeypatch.setattr(two_codes, "check", lambda run, *of: log.append((run, of[-1])))
    monkeypatch.setattr(two_codes, "noise_store", SimpleNamespace(load=lambda machine, file: file))
    monkeypatch.setattr(two_codes, "run", lambda asked, sides, noise, _: (sides is given, noise))
    found: Any = two_codes.paired(asked, given.observer)
    assert found == (True, Path("noise"))
    assert log == [("main", ("pip install .",), "1.0"), *[("a run", UsedCode())] * bool(earlier)]
