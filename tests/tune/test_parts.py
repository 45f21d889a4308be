"""A search part by part: what is in the table when it ends, and where the next one goes on; with given times."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import paths, plans
from harness.errors import CompileError, UnwritableError, UsageError
from harness.model import Case, Job, Measurement
from harness.ops import Catalogue
from harness.store import files
from harness.tune import ToTune, forget, procedure, tune
from harness.tune import parts as parts_module
from harness.tune.candidates import legal
from harness.tune.compiling import Compiling
from harness.tune.parts import InParts, in_parts
from harness.tune.search import SpentError, Until
from tests.one_test import one_test
from tests.tune.test_search import Silent

TUNABLE = Path(__file__).parents[1] / "plugins" / "tunable.py"
CASES = tuple(Case("chunked", "tuned", "float32", (("M", rows), ("N", 16)), device="cpu") for rows in (64, 65, 66))
WANTED = ToTune("chunked", "tuned", CASES, "cpu", (TUNABLE,))


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, no table of the package, and parts of two cases, which have six plans each."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(paths, "data", lambda name: tmp_path / name)
    monkeypatch.setattr(parts_module, "_OF_A_PART", 12)
    plans.forget()
    yield tmp_path
    plans.forget()


class Machine:
    """Measures: 64 rows at once are the fastest, 'wrong' is wrong. left: rounds until the time is over."""

    def __init__(self, left: int = 10**9) -> None:
        self.left = left
        self.rounds: list[tuple[str, set[int]]] = []

    def __call__(self, jobs: Sequence[Job], folder: Path, _: Any) -> list[Measurement]:
        if len(self.rounds) >= self.left:
            raise SpentError
        self.rounds.append((f"{folder.parent.name}/{folder.name}", {job.case.symbols["M"] for job in jobs}))
        return [self._measured(job.case) for job in jobs]

    @staticmethod
    def _measured(case: Case) -> Measurement:
        if "wrong" in case.variant:
            return Measurement(case, "wrong", error="y is off")
        time = {"1": 3.0, "8": 2.0, "64": 1.0}[case.variant.partition(":rows")[2].partition(".")[0]]
        return Measurement(case, "ok", samples=(time,) * 9)


def run(monkeypatch: pytest.MonkeyPatch, machine: Machine, wanted: ToTune = WANTED) -> procedure.Tuned:
    monkeypatch.setattr(procedure, "in_runs", lambda *_: machine)
    return tune(wanted, Silent())


def entries(file: Path | None) -> list[dict[str, Any]]:
    assert file
    found: list[dict[str, Any]] = json.loads(file.read_text())["entries"]
    return found


@one_test(
    ("counts", "found"),
    [
        ([], []),
        ([5], [[0]]),
        ([300], [[0]]),
        ([6, 6, 1], [[0, 1], [2]]),
        ([300, 6, 6, 6], [[0], [1, 2], [3]]),
        ([6, 6, 300, 1], [[0, 1], [2], [3]]),
        ([0, 12, 0], [[0, 1, 2]]),
    ],
)
def test_cases_are_searched_together_until_they_have_too_many_plans(counts: list[int], found: list[list[int]]) -> None:
    assert [[*part] for part in in_parts(counts)] == found


def test_each_part_has_rounds_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    found = run(monkeypatch, machine)
    names = ["round-0", "round-1", "round-2"]
    assert machine.rounds == [
        *((f"part-0/{name}", {64, 65}) for name in names),
        *((f"part-1/{name}", {66}) for name in names),
    ]
    assert found.complete
    assert [each.timed[0].plan["rows"] for each in found.found.values()] == [64, 64, 64]
    assert [(each["shape"]["M"], each["tried"], each["dropped"]) for each in entries(found.file)] == [
        (64, 6, 3),
        (65, 6, 3),
        (66, 6, 3),
    ]
    forget(WANTED)
    assert not list((paths.cache() / "tune").iterdir())


def test_when_the_time_is_over_the_parts_that_are_done_are_in_the_table_and_not_searched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = run(monkeypatch, Machine(left=4))
    assert not stopped.complete
    before = entries(stopped.file)
    assert [each["shape"]["M"] for each in before] == [64, 65]
    assert {case.symbols["M"]: each.complete for case, each in stopped.found.items()} == {64: True, 65: True, 66: False}
    machine = Machine()
    ended = run(monkeypatch, machine)
    assert {rows for _, of_round in machine.rounds for rows in of_round} == {66}
    assert ended.complete
    assert [each.timed[0].plan["rows"] for each in ended.found.values()] == [64, 64, 64]
    assert entries(ended.file)[:2] == before
    assert [each.shape["M"] for each in ended.entries] == [64, 65, 66]


def test_what_another_output_asks_for_has_the_parts_that_are_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run(monkeypatch, Machine(left=4))
    machine = Machine()
    ended = run(monkeypatch, machine, replace(WANTED, output=tmp_path / "mine.json"))
    assert ended.file == tmp_path / "mine.json"
    assert [each["shape"]["M"] for each in entries(ended.file)] == [64, 65, 66]
    assert {rows for _, of_round in machine.rounds for rows in of_round} == {66}


def test_a_part_whose_record_is_damaged_is_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, Machine(left=4))
    [record] = (paths.cache() / "tune").glob("*/part-0/done.json")
    record.write_text("{")
    machine = Machine()
    assert run(monkeypatch, machine).complete
    assert {rows for _, of_round in machine.rounds for rows in of_round} == {64, 65, 66}


def test_two_searches_of_other_sizes_are_in_one_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number, cases in enumerate((CASES[:2], CASES[1:])):
        found = run(monkeypatch, Machine(), replace(WANTED, cases=cases, output=tmp_path / "mine.json"))
        assert [each.shape["M"] for each in found.entries] == [64 + number, 65 + number]
    assert [each["shape"]["M"] for each in entries(found.file)] == [64, 65, 66]


def test_the_next_part_is_compiled_beside_the_first_round_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first round of a part goes on while the next part is compiled; the second one begins after that."""
    compiled, first_round = threading.Event(), threading.Event()
    told: list[str] = []

    def of_part(_op: object, found: dict[Case, Any], *_: Any, **__: Any) -> dict[Case, Any]:
        if CASES[2] in found:
            first_round.wait()
            told.append("compiled")
            compiled.set()
        return found

    class Watching(Machine):
        def __call__(self, jobs: Sequence[Job], folder: Path, observer: Any) -> list[Measurement]:
            told.append(f"{folder.parent.name}/{folder.name}")
            first_round.set()
            return super().__call__(jobs, folder, observer)

    monkeypatch.setattr(parts_module, "compiled", of_part)
    op = Catalogue([TUNABLE])["chunked"]
    with Compiling("") as compiling:
        search = InParts(WANTED, op, paths.cache() / "tune", Until(Silent()), compiling, Watching())
        assert search.run({case: legal(op, case) for case in CASES}, lambda *_: None)
    assert told[:3] == ["part-0/round-0", "compiled", "part-0/round-1"]


def test_plans_that_do_not_compile_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_part(_op: object, found: dict[Case, Any], *_: Any, **__: Any) -> dict[Case, Any]:
        why = {1: "doesn't compile: mine.cu", 2: "doesn't compile: mine.cu", 3: "spills: 8 bytes"}
        broken = [replace(each, dropped=why.get(place, "")) for place, each in enumerate(found.get(CASES[1], []))]
        return found | ({CASES[1]: broken} if broken else {})

    monkeypatch.setattr(parts_module, "compiled", of_part)
    op, watch = Catalogue([TUNABLE])["chunked"], Silent()
    with Compiling("") as compiling:
        search = InParts(WANTED, op, paths.cache() / "tune", Until(watch), compiling, Machine())
        assert search.run({case: legal(op, case) for case in CASES}, lambda *_: None)
    told = [note for note in watch.notes if "compile" in note]
    assert told == [f"{CASES[1].id}: plan rows1.waywrong doesn't compile: mine.cu, nor does 1 other plan"]


def test_a_size_whose_rule_does_not_compile_is_left_out_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {CASES[1]}

    def of_part(_op: object, found: dict[Case, Any], *_: Any, **__: Any) -> dict[Case, Any]:
        why = {True: "doesn't compile: mine.cu", False: ""}
        return {case: [replace(each, dropped=why[case in broken]) for each in all_] for case, all_ in found.items()}

    monkeypatch.setattr(parts_module, "compiled", of_part)
    for _ in range(2):  # the same command again says and does the same
        found = run(monkeypatch, Machine())
        assert (found.complete, found.broken) == (True, (CASES[1],))
        assert [each["shape"]["M"] for each in entries(found.file)] == [64, 66]
    broken |= set(CASES)
    for _ in range(2):
        procedure.forget(WANTED)
        with pytest.raises(CompileError, match=r"the rule's plan, rows1\.wayneg, doesn't compile: mine\.cu"):
            run(monkeypatch, Machine())
    broken.clear()
    found = run(monkeypatch, Machine())
    assert (found.complete, found.broken) == (True, ())
    assert [each["shape"]["M"] for each in entries(found.file)] == [64, 65, 66]


def test_what_does_not_compile_of_a_rule_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_part(_op: object, found: dict[Case, Any], *_: Any, **__: Any) -> dict[Case, Any]:
        broken = [replace(each, dropped="doesn't compile: mine.cu") for each in found.get(CASES[1], [])]
        return found | ({CASES[1]: broken} if broken else {})

    monkeypatch.setattr(parts_module, "compiled", of_part)
    op, watch = Catalogue([TUNABLE])["chunked"], Silent()
    with Compiling("") as compiling:
        search = InParts(WANTED, op, paths.cache() / "tune", Until(watch), compiling, Machine())
        assert search.run({case: legal(op, case) for case in CASES}, lambda *_: None)
    [told] = [note for note in watch.notes if "compile" in note]
    assert told.startswith(f"{CASES[1].id}: the rule's plan ")
    assert told.endswith(" doesn't compile: mine.cu; no plan is timed")


def test_when_the_time_is_over_while_kernels_are_compiled_the_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(parts_module, "compiled", lambda *_, **__: ended.wait())
    op, machine = Catalogue([TUNABLE])["chunked"], Machine()
    with Compiling("") as compiling:
        search = InParts(WANTED, op, paths.cache() / "tune", Until(Silent(), 0.0), compiling, machine)
        assert not search.run({case: legal(op, case) for case in CASES}, lambda *_: None)
        ended.set()
    assert machine.rounds == []


def test_the_same_search_in_two_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, Machine(left=4))
    [home] = (paths.cache() / "tune").iterdir()
    with plans.locked(home, wait=False), pytest.raises(UsageError, match="the same search goes on in another process"):
        run(monkeypatch, Machine())
    assert run(monkeypatch, Machine()).complete


def test_a_budget_of_a_thousand_years_is_no_longer_than_a_lock_can_wait() -> None:
    waits: list[float] = []
    ready = SimpleNamespace(result=waits.append)
    until = Until(Silent(), time.monotonic() + 3.2e10)
    asking: Any = InParts
    assert asking(WANTED, None, Path(), until, None, Machine())._in_time(ready) is None
    assert waits == [threading.TIMEOUT_MAX]


def test_the_table_is_locked_from_its_reading_to_its_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one of two searches that end together would lose its sizes."""
    locks = []

    def write(table: plans.PlanTable, file: Path | None = None) -> Path | None:
        if file is None:
            with pytest.raises(BlockingIOError), plans.locked(paths.cache(), wait=False):
                pass
            locks.append(table)
        return written(table, file)

    written = plans.write
    monkeypatch.setattr(plans, "write", write)
    run(monkeypatch, Machine())
    assert len(locks) == 2


def test_a_table_of_another_device_with_that_file_name_gives_no_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    name = plans.device_name("cpu")
    run(monkeypatch, Machine())
    [file] = (paths.cache() / "plans").iterdir()
    file.write_text(file.read_text().replace(f'"{name}"', f'"{name.upper()}"', 1))
    forget(WANTED)
    ended = run(monkeypatch, Machine(), replace(WANTED, cases=CASES[2:]))
    assert [each["shape"]["M"] for each in entries(ended.file)] == [66]


def test_a_full_disk_in_a_round_is_told_with_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Machine):
        def __call__(self, jobs: Sequence[Job], folder: Path, observer: Any) -> list[Measurement]:
            if self.rounds:
                raise files.unwritable(folder / "run.json", OSError(28, "No space left on device"))
            return super().__call__(jobs, folder, observer)

    with pytest.raises(UnwritableError, match=r"run\.json: can't be written: No space left on device") as caught:
        run(monkeypatch, Full())
    assert "the same command goes on" in caught.value.advice
    assert "--resume" not in caught.value.advice


@pytest.mark.parametrize("output", [None, "table.json"])
@pytest.mark.parametrize(
    ("folder", "why"),
    [("a file", "a file can't be written: Not a directory"), ("of others", "of others can be written by other users")],
)
def test_a_cache_folder_that_can_keep_nothing_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str, why: str, output: str | None
) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "of others").mkdir()
    (tmp_path / "of others").chmod(0o777)
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / folder))
    machine = Machine()
    with pytest.raises(UnwritableError, match=why) as caught:
        run(monkeypatch, machine, replace(WANTED, output=tmp_path / output if output else None))
    assert "in HARNESS_CACHE" in caught.value.advice
    assert machine.rounds == []


def test_where_the_cache_cannot_keep_tables_a_search_for_an_output_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paths.cache()
    (paths.cache() / plans.FOLDER).touch()
    with pytest.raises(UnwritableError, match="plans can't be written: Not a directory"):
        run(monkeypatch, Machine())
    assert run(monkeypatch, Machine(), replace(WANTED, output=tmp_path / "mine.json")).complete
