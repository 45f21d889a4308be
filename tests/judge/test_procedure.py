"""The steps of a judgement, each with everything around it replaced: at which sizes, in which order, how far."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import store
from harness.errors import UsageError
from harness.judge import asking, procedure
from harness.judge.records import Asked, Calls, Sheet
from harness.judge.verdict import UNCOUNTED
from harness.model import Case, Job, Measurement, Timing
from harness.ops import Choice, Op, Tensor
from harness.scenario import Setting

ASKED = Asked(Path("mine.py"), "cpu", 3, op="own", timing=Timing(timeout=9.0))
SHEET = Sheet("ops", "mine.py", "", "", "cpu", "float32", 3, "own")


class Watcher:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def planned(self, total: int, done: int) -> None:
        self.told.append((total, done))

    def note(self, text: str, share: float | None = None) -> None:
        self.told.append(text)

    def started(self, job: Job, process: int) -> None:
        self.told.append(("started", job.case.shape, process))

    def finished(self, measurement: Measurement) -> None:
        self.told.append(("finished", measurement.status))


def op(*baselines: str) -> Op:
    made = Op(
        "own", "y = x", {"M": "rows", "N": "columns"}, defaults={"N": "2 * M"},
        choices={"mode": Choice("how", ("plain", "fast"))}, dtypes=("float32", "float16"),
        inputs=(Tensor("x", ("M", "N")),), outputs=(Tensor("y", ("M", "N")),), reference=lambda _, t: {"y": t.x},
    )  # fmt: skip
    for name in baselines:
        devices = ("cuda",) if name == "of_gpus" else ("any",)
        role = "ours" if name == "no_baseline" else "baseline"
        made.variant(name, "text", role=role, devices=devices)(lambda _: print)
    return made


def case(m: int, n: int, variant: str = "candidate") -> Case:
    return Case("own", variant, "float32", (("M", m), ("N", n)), (("mode", "plain"),), device="cpu")


# ---- Sizes.


def test_sizes_that_are_not_given_are_the_op_s_defaults() -> None:
    choices = (("mode", "plain"),)
    assert procedure._setting(op(), {"M": 4}) == Setting((("M", 4), ("N", 8)), choices)
    assert procedure._setting(op(), {"N": 3, "M": 4}) == Setting((("M", 4), ("N", 3)), choices)
    for sizes, said in (
        ({"M": 4, "K": 1}, "--sizes: op 'own' has no size 'K'"),
        ({"N": 4}, "--sizes: 'M' of op 'own' is missing"),
        ({}, "--sizes: 'N' of op 'own' isn't known"),
    ):
        with pytest.raises(UsageError) as raised:
            procedure._setting(op(), sizes)
        assert raised.value.message.startswith(said)


def test_each_size_that_is_not_given_has_its_default() -> None:
    of_three = Op("three", "", {"A": "", "B": "", "C": ""}, defaults={"B": "A", "C": "2 * A"})
    assert procedure._setting(of_three, {"A": 1, "B": 5}) == Setting((("A", 1), ("B", 5), ("C", 2)))


def test_a_case_has_given_choices_and_defaults() -> None:
    assert procedure._case(op(), {"M": "4", "N": 8}, "float32", "cpu") == case(4, 8)
    given = procedure._case(op(), {"M": 4, "N": 8, "mode": "fast"}, "float16", "cuda")
    assert given == replace(case(4, 8), dtype="float16", choices=(("mode", "fast"),), device="cuda")


def defined(monkeypatch: pytest.MonkeyPatch, *found: tuple[tuple[str, ...], tuple[Setting, ...]]) -> None:
    """The op's bundled scenarios have these dtypes and settings."""
    definitions = tuple(SimpleNamespace(dtypes=dtypes, settings=settings) for dtypes, settings in found)
    monkeypatch.setattr(procedure, "_definitions", lambda *_: definitions)


def setting(m: int, world: int = 1) -> Setting:
    return Setting((("M", m), ("N", 1)), world=world)


def test_three_settings_of_the_scenarios_are_drawn_for_one_device(monkeypatch) -> None:
    first, second = (setting(1), setting(2), setting(3, world=2)), (setting(2), setting(4), setting(5), setting(6))
    defined(monkeypatch, (("float16", "float32"), first), (("float16",), second))
    drawn = [tuple(procedure._settings(replace(ASKED, seed=seed), op())) for seed in range(40)]
    for one in drawn:
        assert [dtype for dtype, _ in one] == ["float16"] * 3 + ["float32"] * 3
        assert [which for _, which in one[:3]] == [which for _, which in one[3:]]
        assert len({which for _, which in one}) == 3
    assert {which.shape[0][1] for one in drawn for _, which in one} == {1, 2, 4, 5, 6}
    assert drawn == [tuple(procedure._settings(replace(ASKED, seed=seed), op())) for seed in range(40)]


def test_given_dtypes_and_sizes_count(monkeypatch) -> None:
    defined(monkeypatch, (("float16",), (setting(1),)))
    asked = replace(ASKED, dtypes=("float32",))
    assert procedure._settings(asked, op()) == [("float32", setting(1))]
    sized = procedure._settings(replace(asked, sizes=({"M": 7}, {"M": 8})), op())
    assert [one.shape[0] for _, one in sized] == [("M", 7), ("M", 8)]
    with pytest.raises(UsageError, match="has no dtype 'int8'"):
        procedure._settings(replace(ASKED, dtypes=("int8",)), op())
    defined(monkeypatch)
    assert [dtype for dtype, _ in procedure._settings(replace(ASKED, sizes=({"M": 7},)), op())] == [*op().dtypes]
    with pytest.raises(UsageError, match="no bundled scenario has sizes for op 'own'") as raised:
        procedure._settings(ASKED, op())
    assert raised.value.advice == "name some: --sizes M=1024,N=1024"


def test_scenarios_are_the_one_of_the_op_s_name_else_all_of_the_op(monkeypatch, tmp_path):
    for name, text in (("a", "op: own\n"), ("b", "x: 1\nop: own\n"), ("c", "op: owner\n"), ("d", "# op: own\n")):
        (tmp_path / f"{name}.yaml").write_text(text)
    loaded: list[list[str]] = []

    def load(files: Sequence[Path], _: object) -> list[Any]:
        loaded.append([file.stem for file in files])
        return [SimpleNamespace(op="own"), SimpleNamespace(op="another")]

    monkeypatch.setattr(procedure.paths, "data", lambda _: tmp_path)
    monkeypatch.setattr(procedure.scenario, "load", load)
    assert [one.op for one in procedure._definitions(op(), ASKED)] == ["own"]
    (tmp_path / "own.yaml").write_text("several:\n")
    procedure._definitions(op(), ASKED)
    assert loaded == [["a", "b"], ["own"]]


# ---- Processes that measure.


@pytest.fixture
def measuring(monkeypatch) -> Callable[[Callable[[Case], str]], list[Case]]:
    """Gives the cases that a process was asked to check, of which each ends as is said."""

    def made(ends: Callable[[Case], str]) -> list[Case]:
        asked: list[Case] = []

        class Here:
            def __init__(self, device: str, plugins: Sequence[Path]) -> None:
                assert (device, plugins) == ("cpu", (Path("plugin.py"),))

            def __enter__(self) -> Here:
                return self

            def __exit__(self, *_: object) -> None: ...

            def measure(self, job: Job, *, timed: bool) -> Measurement:
                assert not timed
                asked.append(job.case)
                return Measurement(job.case, ends(job.case), error="why")

        monkeypatch.setattr(procedure, "Workers", Here)
        return asked

    return made


def prepared(made: Op, **more: Any) -> Any:
    return procedure._Prepared(SHEET, (Path("plugin.py"),), made, **({"timed": (), "checked": ()} | more))


def sizes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other sizes of a case are its M, M + 1, M + 2, ..."""

    def other_sizes(_: Op, known: Mapping[str, int], __: object) -> Iterator[dict[str, int]]:
        return ({**known, "M": size} for size in itertools.count(known.get("M", 1)))

    monkeypatch.setattr(procedure, "other_sizes", other_sizes)


def test_four_unseen_sizes_are_what_the_baseline_does_right(monkeypatch, measuring) -> None:
    """Ten are proposed, from each timed case in turn. One that is timed isn't unseen."""
    sizes_in_order(monkeypatch)
    watcher, timed = Watcher(), [case(1, 5), case(20, 5)]
    asked = measuring(lambda one: "ok" if one.symbols["M"] % 2 else "unsupported")
    made = op("no_baseline", "of_gpus", "eager", "compile")
    found = procedure._other_cases(ASKED, prepared(made), timed, watcher)
    assert found == [case(m, 5) for m in (21, 3, 23, 5)]
    assert asked == [case(m, 5, "eager") for m in (2, 21, 3, 22, 4, 23, 5)]
    assert watcher.told == ["sizes that the candidate hasn't seen"]
    asked = measuring(lambda _: "wrong")
    assert procedure._other_cases(ASKED, prepared(made), timed, watcher) == []
    assert len(asked) == 10 - 2


def test_without_a_baseline_and_without_sizes_nothing_is_unseen(monkeypatch, measuring) -> None:
    sizes_in_order(monkeypatch)
    asked = measuring(lambda _: "ok")
    assert procedure._other_cases(ASKED, prepared(op("of_gpus")), [case(1, 5)], Watcher()) == []
    assert procedure._other_cases(ASKED, prepared(op("eager")), [replace(case(1, 5), shape=())], Watcher()) == []
    assert asked == []


def test_cases_are_checked_up_to_the_first_that_fails(measuring) -> None:
    kinds = ("given", "unseen", "unseen", "tested", "unseen")
    checked = tuple((kind, Job(case(m, 5))) for m, kind in enumerate(kinds))
    ends = dict(enumerate(("ok", "unsupported", "ok", "wrong", "ok")))
    asked, watcher = measuring(lambda one: ends[one.symbols["M"]]), Watcher()
    found = procedure._check(prepared(op(), checked=checked), "cpu", watcher)
    assert [(kind, one.status) for kind, one in found] == [*zip(kinds, ends.values(), strict=True)][:4]
    assert len(asked) == 4
    assert watcher.told[:3] == [(5, 0), ("started", (("M", 0), ("N", 5)), 0), ("finished", "ok")]
    assert [one[1] for one in watcher.told if one[0] == "finished"] == ["ok", "unsupported", "ok", "wrong"]


def test_nothing_is_checked_after_given_sizes_at_which_a_candidate_cannot_run(measuring) -> None:
    checked = (("given", Job(case(0, 5))), ("unseen", Job(case(1, 5))))
    measuring(lambda _: "unsupported")
    assert [kind for kind, _ in procedure._check(prepared(op(), checked=checked), "cpu", Watcher())] == ["given"]


@pytest.mark.parametrize(("kind", "count"), [("unseen", 2), ("tested", 1)])
def test_only_an_unseen_size_may_be_declined(monkeypatch, measuring, kind, count):
    monkeypatch.setattr(procedure.verdict, "declines", lambda one: one.status == "crashed")
    measuring(lambda one: "crashed" if one.symbols["M"] else "ok")
    right = (("given", Job(case(0, 5))), ("unseen", Job(case(0, 6))))
    checked = (*right, *((kind, Job(case(m, 5))) for m in (1, 2)))
    assert len(procedure._check(prepared(op(), checked=checked), "cpu", Watcher())) == len(right) + count


def test_calls_are_looked_at_in_the_smallest_case_that_was_right(monkeypatch) -> None:
    asked: list[tuple[str, Case, float]] = []

    def ask(action: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        asked.append((action, store.parse(Job, request["job"]).case, seconds))
        assert request["plugins"] == [str(Path("plugin.py").resolve())]
        return {"torch": ["aten.mm"], "others": [], "only_torch": True}

    monkeypatch.setattr(asking, "ask", ask)
    known = prepared(op(), timed=tuple(Job(case(m, m), ASKED.timing) for m in (9, 7)))
    checked = [(case(8, 8), "ok"), (case(3, 5), "ok"), (case(2, 2), "wrong"), (case(4, 4), "ok")]
    found = [("unseen", Measurement(one, status)) for one, status in checked]
    watcher = Watcher()
    assert procedure._calls(known, found, watcher) == Calls(("aten.mm",), (), True)
    procedure._calls(known, [], watcher)
    assert asked == [("calls", case(3, 5), 9.0), ("calls", case(9, 9), 9.0)]
    assert watcher.told == ["which calls of torch it makes"] * 2


@pytest.mark.parametrize("error", [asking.AnswerError("lost"), UsageError("no", "mend it"), ValueError("no JSON")])
def test_where_calls_can_not_be_looked_at_they_are_not_known(monkeypatch, error) -> None:
    def ask(*_: object) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(asking, "ask", ask)
    assert procedure._calls(prepared(op(), timed=(Job(case(9, 9)),)), [], Watcher()) is None


def test_all_baselines_of_the_device_are_timed_before_the_candidate(monkeypatch):
    ran: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(procedure.runner, "run", lambda plan, **options: ran.append((plan, options)))
    made = op("eager", "of_gpus", "no_baseline", "compile")
    watcher = Watcher()
    known = prepared(made, timed=(Job(case(1, 5)), Job(case(2, 5))))
    procedure._run(known, "cpu", Path("folder"), ["harness", "judge"], watcher)
    [(plan, options)] = ran
    variants = ("eager", "compile", "candidate")
    assert [job.case for job in plan.jobs] == [case(m, 5, name) for name in variants for m in (1, 2)]
    assert plan.ops == {"own": made}
    assert options == {
        "name": "judge", "folder": Path("folder"), "device": "cpu", "plugins": (Path("plugin.py"),),
        "command": ("harness", "judge"), "observer": watcher,
    }  # fmt: skip


# ---- All of it.


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """Judges with steps that only note that they were made. counted: the ceiling of the run is believed."""

    def made(
        *, counted: bool = True, right: bool = True, isolated: bool = False, **of_sheet: Any
    ) -> tuple[Any, list[str], Watcher]:
        (tmp_path / "mine.py").write_text("text")
        done: list[str] = []
        sheet = replace(SHEET, **of_sheet)
        failed = [("given", Measurement(case(1, 5), "ok" if right else "wrong", error="why"))]

        def run(known: Any, _: str, folder: Path, *__: object) -> str:
            done.append(f"{folder.name} {known.sheet.is_counted}")
            return folder.name

        def of_run(ruling: Any, run: str, checked: Any, calls: Any) -> Any:
            return SimpleNamespace(sheet=ruling.sheet, run=run, checked=checked, calls=calls, sha256=ruling.sha256)

        monkeypatch.setattr(procedure, "_settled", lambda *_: sheet)
        monkeypatch.setattr(procedure, "_prepared", lambda _, sheet, *__: replace(prepared(op()), sheet=sheet))
        monkeypatch.setattr(procedure, "_check", lambda *_: failed)
        monkeypatch.setattr(procedure, "_calls", lambda *_: "calls")
        monkeypatch.setattr(procedure, "_run", run)
        monkeypatch.setattr("harness.judge.verdict.ceiling_is_wrong", lambda _: not counted)
        monkeypatch.setattr("harness.judge.verdict.Ruling.of_run", of_run)
        watcher, asked = Watcher(), replace(ASKED, candidate=tmp_path / "mine.py", isolated=isolated)
        return procedure.judge(asked, ("harness", "judge"), watcher), done, watcher

    return made


def test_a_candidate_that_is_right_is_timed_once(steps) -> None:
    found, done, watcher = steps(form="gpumode")
    assert (found.run, found.calls, done) == ("run", "calls", ["run True"])
    assert found.sha256 == sha256(b"text").hexdigest()
    assert watcher.told == ["what the candidate is, and its reference"]
    assert steps(isolated=True)[0].calls is None, "kernels alone call no torch"


def test_where_torch_is_above_the_ceiling_bytes_are_not_counted(steps) -> None:
    found, done, _ = steps(form="gpumode", counted=False, notes=("first",))
    assert (found.run, done) == ("again", ["run True", "again False"])
    assert found.sheet.notes == ("first", UNCOUNTED)
    found, done, _ = steps(form="ops", counted=False)
    assert (found.run, done) == ("run", ["run True"]), "an op counts its own bytes"


def test_a_candidate_that_is_wrong_is_not_timed(steps) -> None:
    found, done, _ = steps(right=False)
    assert (found.verdict, done) == ("wrong", [])


def test_a_candidate_that_can_not_be_loaded_is_crashed(steps, monkeypatch) -> None:
    def settled(*_: object) -> Sheet:
        raise asking.AnswerError("no compiler")

    steps()
    monkeypatch.setattr(procedure, "_settled", settled)
    found = procedure.judge(ASKED, (), Watcher())
    assert (found.line, found.sha256) == ("crashed: loading it failed: no compiler", "")
