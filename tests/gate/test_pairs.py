"""Pairs of processes: their order, who starts when, and what becomes a pair."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from harness.gate import pairing, worktree
from harness.gate.pairing import PairMeasurer
from harness.gate.records import Revision, Side
from harness.gate.worktree import Checkout
from harness.model import Case, Job, Measurement, Work
from harness.processes import python, start
from tests.one_test import one_test
from tests.rare import rare

CODE = Revision("main", "0" * 40, False, "0" * 64)
CODES: dict[Side, Checkout] = {"base": Checkout(CODE, Path("/base"), ()), "now": Checkout(CODE, Path("/now"), ())}


class Quiet:
    """An observer that counts pairs."""

    def __init__(self) -> None:
        self.firsts: list[Side] = []

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_: None

    def paired(self, first: Side) -> None:
        self.firsts.append(first)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What fake processes did: (side, what). A case takes its size in seconds, a tenth more on the side of now."""
    told: list[tuple[str, str]] = []

    class Fake:
        def __init__(self, device: str, plugins: Any, root: Path | None, digest: str, around: Any) -> None:
            if root is None:
                told.append(("now", f"code {digest}"))
            root = root or Path("/now")
            self.side = root.name
            if around.nursery:
                around.nursery.sides.append(self.side)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def begin(self, size: int) -> None:
            told.append((self.side, f"begin {size}" if size > 1 else "begin"))

        def restart(self) -> None:
            told.append((self.side, "end"))

        def measure(self, job: Job, process: int) -> Measurement:
            told.append((self.side, job.case.op))
            if job.case.op == self.side + "-fails":
                return Measurement(job.case, "crashed", process=process)
            seconds = 1.1 if self.side == "now" else 1.0
            work = Work(22 if self.side == "now" and job.case.op == "heavier" else 11, 0)
            return Measurement(job.case, "ok", samples=(seconds,), work=work, process=process)

    monkeypatch.setattr(worktree, "Workers", Fake)
    monkeypatch.setattr(pairing, "Nursery", FakeNursery)
    FakeNursery.made.clear()
    return told


class FakeNursery:
    """Notes for which sides processes may be forked, which it was asked about, and when it was closed."""

    made: ClassVar[list[FakeNursery]] = []
    unserved: ClassVar[set[str]] = set()

    def __init__(self, root: Path | None, *, compiler: bool = False) -> None:
        self.root, self.compiler, self.closed = root, compiler, 0
        self.sides: list[str] = []
        self.asked: list[str] = []
        self.made.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def serves(self, environment: Mapping[str, str]) -> bool:
        root: str = json.loads(environment[start.VARIABLE])["root"]
        self.asked.append(Path(root).name)
        return Path(root).name not in self.unserved

    def close(self) -> None:
        self.closed += 1


def jobs(*ops: str, world: int = 1) -> list[Job]:
    return [Job(Case(op, "v", "float32", (("N", 8),), world=world)) for op in ops]


def pairs(ahead: int = 0, seed: int = 1) -> tuple[PairMeasurer, Quiet]:
    quiet = Quiet()
    return PairMeasurer("cpu", CODES, random.Random(seed), ahead, quiet), quiet


def test_every_pair_has_a_process_of_each_side_in_an_order_drawn_by_the_seed(log: list[tuple[str, str]]) -> None:
    made, quiet = pairs()
    both = jobs("a", "b")
    made.measure("screen", 20, {"base": both, "now": both})
    ends = [side for side, what in log if what == "end"]
    assert [set(ends[i : i + 2]) for i in range(0, 40, 2)] == [{"base", "now"}] * 20
    assert ends[::2] == quiet.firsts
    assert quiet.firsts.count("base") == 10
    again, heard = pairs()
    again.measure("screen", 20, {"base": both, "now": both})
    assert heard.firsts == quiet.firsts
    assert [pair.first for pair in made.pairs["a/v/float32/N8"]] == quiet.firsts


@one_test("seed", range(20))
def test_of_any_ten_pairs_in_sequence_each_side_goes_first_in_five(seed: int) -> None:
    firsts = list(islice(pairing.order(random.Random(seed)), 53))
    assert {firsts[i : i + 10].count("base") for i in range(len(firsts) - 9)} == {5}
    # The pairs of a screen never have one order.
    assert {firsts[i : i + 3].count("base") for i in range(len(firsts) - 2)} <= {1, 2}


def test_a_pair_is_forked_from_a_nursery_of_its_own(log: list[tuple[str, str]]) -> None:
    """Not where processes start ahead: a GPU's do, and its time is none of the host's."""
    both = jobs("a")
    pairs()[0].measure("screen", 3, {"base": both, "now": both})
    assert [(sorted(each.sides), sorted(each.asked), each.closed) for each in FakeNursery.made] == [
        (["base", "now"], ["base", "now"], 1)
    ] * 3
    assert {each.root for each in FakeNursery.made} == {None}, "each side has a harness of its own"
    FakeNursery.made.clear()
    there = FakeNursery(None)
    made, _ = pairs()
    made.nursery = there  # type: ignore[assignment]
    for _ in range(2):
        made.measure("screen", 2, {"base": both, "now": both})
    assert [sorted(each.sides) for each in FakeNursery.made] == [["base", "now"]] * 4, (
        "the first pair has what is there"
    )
    FakeNursery.made.clear()
    pairs(ahead=2)[0].measure("screen", 3, {"base": both, "now": both})
    assert not FakeNursery.made


def test_a_pair_of_compiled_cases_is_forked_with_the_compiler_loaded(log: list[tuple[str, str]]) -> None:
    (plain,) = jobs("a")
    compiled = replace(plain, case=replace(plain.case, variant="compile"))
    for each in (plain, compiled):
        pairs()[0].measure("screen", 1, {"base": [each], "now": [each]})
    assert [each.compiler for each in FakeNursery.made] == [False, True]


def test_a_forked_process_is_not_compared_with_one_that_was_started(
    log: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeNursery, "unserved", {"now"})
    both = jobs("a")
    pairs()[0].measure("screen", 1, {"base": both, "now": both})
    # Closed before anything was measured, and again when the pair was complete.
    assert [each.closed for each in FakeNursery.made] == [2]
    log.clear()
    monkeypatch.setattr(FakeNursery, "close", lambda _: log.append(("nursery", "close")))
    pairs()[0].measure("screen", 1, {"base": both, "now": both})
    assert [what for _, what in log] == ["close", "a", "end", "a", "end", "close"]


def test_one_harness_that_measures_both_sides_is_loaded_once() -> None:
    same = Checkout(CODE, None, ())
    assert worktree.shared_root([same, Checkout(CODE, python.own_root(), ())]) == python.own_root()
    assert worktree.shared_root(CODES.values()) is None


def test_the_order_is_random() -> None:
    orders = Counter(tuple(islice(pairing.order(random.Random(seed)), 10)) for seed in range(640))
    assert len(orders) == 32
    assert max(orders.values()) < 40
    assert 260 < sum(count for first, count in orders.items() if first[0] == "base") < 380


@pytest.mark.parametrize("seed", [0, *map(rare, range(1, 5))])
def test_a_steady_drift_of_the_machine_cancels_in_every_look(
    seed: int, log: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process is 1% slower than the one before, and the code is identical."""
    started = itertools.count()

    def measure(self: Any, job: Job, process: int) -> Measurement:
        return Measurement(job.case, "ok", samples=(1.01 ** next(started),), process=process)

    monkeypatch.setattr("harness.gate.worktree.Workers.measure", measure)
    made, _ = pairs(seed=seed)
    both = jobs("a")
    for stage, count in (("screen", 3), ("confirm", 10), ("confirm", 10)):
        made.measure(stage, count, {"base": both, "now": both})
    changes = made.changes(["a/v/float32/N8"], "confirm")["a/v/float32/N8"]
    assert [abs(change) for change in changes] == pytest.approx([math.log(1.01)] * 20)
    assert math.fsum(changes[:10]) == pytest.approx(0, abs=1e-9)
    assert math.fsum(changes) == pytest.approx(0, abs=1e-9)


@one_test("seconds", [0.0, math.nan, math.inf, -1.0])
def test_a_time_without_a_ratio_gives_no_pair(seconds: float) -> None:
    case = jobs("a")[0].case
    good, bad = (Measurement(case, "ok", samples=(time,)) for time in (1.0, seconds))
    assert pairing.pair_of(good, bad, "base", "screen") is None
    assert pairing.pair_of(bad, good, "base", "screen") is None


def test_a_pair_is_base_over_now_whoever_went_first(log: list[tuple[str, str]]) -> None:
    made, _ = pairs()
    both = jobs("a", "heavier")
    made.measure("screen", 10, {"base": both, "now": both})
    assert {(p.base, p.now) for p in made.pairs["a/v/float32/N8"]} == {(1.0, 1.1)}
    # Other work under the same name changes nothing: times are compared.
    assert {p.change for p in made.pairs["heavier/v/float32/N8"]} == {math.log(1 / 1.1)}


def test_the_next_process_is_started_while_one_measures_where_that_disturbs_nothing(log: list[tuple[str, str]]) -> None:
    both = jobs("a")
    made, _ = pairs(ahead=1)
    made.measure("screen", 2, {"base": both, "now": both})
    assert [what for _, what in log] == ["begin", "a", "end", "begin", "a", "end", "begin", "a", "end", "a", "end"]
    log.clear()
    more, _ = pairs(ahead=3)
    more.measure("screen", 2, {"base": both, "now": both})
    assert [what for _, what in log[:4]] == ["begin", "begin", "begin", "a"]
    log.clear()
    alone, _ = pairs(ahead=0)
    alone.measure("screen", 1, {"base": both, "now": both})
    assert [what for _, what in log] == ["a", "end", "a", "end"]
    log.clear()
    ranks = jobs("a", world=2)
    several, _ = pairs(ahead=1)
    several.measure("screen", 1, {"base": ranks, "now": ranks})
    assert [what for _, what in log] == ["begin 2", "a", "end", "a", "end"]
    log.clear()
    mixed = [*ranks, *jobs("b")]
    pairs(ahead=1)[0].measure("screen", 1, {"base": mixed, "now": mixed})
    assert log[0][1] == "begin 2", "the first case's ranks are needed first"


def test_processes_that_were_begun_before_are_the_first_pair_s(log: list[tuple[str, str]]) -> None:
    both = jobs("a")
    made, _ = pairs(ahead=4)
    made.begun |= {side: Checkout(CODE, Path(f"/begun-{side}"), ()).workers("cpu") for side in CODES}
    made.measure("screen", 2, {"base": both, "now": both})
    who = [side for side, what in log if what == "a"]
    assert ({*who[:2]}, {*who[2:]}) == ({"begun-base", "begun-now"}, {"base", "now"})


@pytest.mark.parametrize(("ahead", "ended"), [(0, None), (1, 3), (2, 2), (4, 0)])
def test_what_comes_after_the_pairs_starts_once_no_process_of_a_pair_is_left_to_start(
    log: list[tuple[str, str]], ahead: int, ended: int | None
) -> None:
    """ended: how many processes have ended by then. None starts where that would disturb."""
    made, _ = pairs(ahead=ahead)
    made.after = Checkout(CODE, Path("/after"), ()).workers("cpu")
    made.measure("screen", 2, {"base": jobs("a"), "now": jobs("a")})
    started = [sum(what == "end" for _, what in log[:place]) for place, (side, _) in enumerate(log) if side == "after"]
    assert next(iter(started), None) == ended


def test_each_measurement_is_told_when_it_begins_and_when_it_is_there(log: list[tuple[str, str]]) -> None:
    made, quiet = pairs()
    told: list[tuple[str, str, Side]] = []
    observer: Any = quiet
    observer.started = lambda job, side: told.append(("started", job.case.op, side))
    observer.finished = lambda found, side: told.append(("finished", found.case.op, side))
    made.measure("screen", 1, {"base": jobs("a", "b"), "now": jobs("a", "b")})
    sides = [quiet.firsts[0], *({"base", "now"} - {quiet.firsts[0]})]
    assert told == [(what, op, side) for side in sides for op in "ab" for what in ("started", "finished")]


def test_each_stage_measures_the_code_that_lay_there_when_the_gate_began(
    log: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes are held to the hash of that time. Another revision may make its hash in another way."""
    made, _ = pairs()
    made.codes = {**CODES, "now": Checkout(CODE, None, ())}
    for stage in ("screen", "confirm"):
        made.measure(stage, 1, {"base": [], "now": jobs("a")})
    assert [what for _, what in log if what.startswith("code")] == [f"code {CODE.digest}"] * 2
    assert CODES["now"].digest == ""
    monkeypatch.setattr("harness.processes.python.own_root", lambda: Path("/now"))
    assert CODES["now"].digest == CODE.digest


def test_what_fails_on_a_side_or_is_known_to_one_gives_no_pair(log: list[tuple[str, str]]) -> None:
    made, _ = pairs()
    made.measure("screen", 3, {"base": jobs("now-fails", "a", "older"), "now": jobs("now-fails", "a", "newer")})
    assert {case: len(found) for case, found in made.pairs.items()} == {"a/v/float32/N8": 3}
    sides = {side: {case: len(found) for case, found in made.measurements[side].items()} for side in CODES}
    assert sides["base"] == {"now-fails/v/float32/N8": 3, "a/v/float32/N8": 3, "older/v/float32/N8": 3}
    assert sides["now"]["newer/v/float32/N8"] == 3


def test_a_side_that_knows_nothing_starts_no_process(log: list[tuple[str, str]]) -> None:
    made, _ = pairs()
    made.measure("screen", 2, {"base": [], "now": jobs("newer")})
    assert log == [("now", "newer"), ("now", "end")] * 2
    assert made.pairs == {}


def test_stages_are_kept_apart_and_processes_counted_through(log: list[tuple[str, str]]) -> None:
    made, _ = pairs()
    both = jobs("a")
    made.measure("screen", 2, {"base": both, "now": both})
    made.measure("confirm", 3, {"base": both, "now": both})
    key = "a/v/float32/N8"
    assert [len(made.changes([key], stage)[key]) for stage in ("screen", "confirm")] == [2, 3]
    assert [m.process for m in made.measurements["now"][key]] == [0, 1, 2, 3, 4]
