"""What a plug-in sets in the process that loads it: not for the other side too, and for its own side from the start."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from harness import intact
from harness.devices.cpu import Cpu
from harness.errors import UsageError
from harness.gate import ci, inherited, inquiry, judging, submodules, two_codes, used_code
from harness.gate.case_lists import Cases
from harness.gate.records import Revision, Side, UsedCode
from harness.gate.used_code import Probed
from harness.gate.worktree import Checkout
from harness.model import Case, Job
from harness.processes import child, messages
from harness.processes.surroundings import Surroundings

_SET_THP_DISABLE, _GET_THP_DISABLE = 41, 42  # of Linux's prctl
CODE = Revision("main", "0" * 40, False, "d" * 64)


def a_plug_in(folder: Path) -> None:
    """What ops do at the top of their file."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("GONE", None)
    os.environ["NEW"] = "1"
    os.chdir(folder)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def now() -> tuple[object, ...]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return variables, Path.cwd(), os.sched_getaffinity(0)


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setenv("GONE", "1")
    monkeypatch.setenv("NEW", "")
    monkeypatch.delenv("NEW")
    return now()


def test_what_ops_set_where_they_are_declared_is_undone(tmp_path: Path, before: tuple[object, ...]) -> None:
    with inherited.kept():
        a_plug_in(tmp_path)
    assert now() == before


def test_what_ops_set_is_undone_though_they_can_not_be_loaded(tmp_path: Path, before: tuple[object, ...]) -> None:
    with pytest.raises(FileNotFoundError), inherited.kept():
        a_plug_in(tmp_path / "gone")
    assert now() == before


def test_what_can_not_be_undone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who isn't root can only lower the priority."""
    priority, asked = [0], list[tuple[int, ...]]()

    def refused(*given: int) -> None:
        asked.append(given)
        raise PermissionError

    monkeypatch.setattr(os, "getpriority", lambda *given: priority[0] if given == (os.PRIO_PROCESS, 0) else 7)
    monkeypatch.setattr(os, "setpriority", refused)
    with pytest.raises(UsageError, match="the ops set the priority of the process") as caught, inherited.kept():
        priority[0] = 19
    assert asked == [(os.PRIO_PROCESS, 0, 0)]
    assert "variant" in caught.value.advice


def test_limits_huge_pages_and_scheduling_are_undone() -> None:
    """What the processes of both sides would have, though one side's ops alone set it."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    pages, policy = _huge_pages_are_off(), os.sched_getscheduler(0)
    with inherited.kept():
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit - 1, most))
        ctypes.CDLL(None).prctl(_SET_THP_DISABLE, 1 - pages, 0, 0, 0)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limit, most)
    assert (_huge_pages_are_off(), os.sched_getscheduler(0)) == (pages, policy)


def test_huge_pages_that_were_off_before_stay_off() -> None:
    pages = _huge_pages_are_off()
    ctypes.CDLL(None).prctl(_SET_THP_DISABLE, 1, 0, 0, 0)
    try:
        with inherited.kept():
            pass
        assert _huge_pages_are_off() == 1
    finally:
        ctypes.CDLL(None).prctl(_SET_THP_DISABLE, pages, 0, 0, 0)


def test_the_scheduling_of_this_process_alone_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[int] = set()

    def of(process: int) -> os.sched_param:
        asked.add(process)
        return os.sched_param(0)

    monkeypatch.setattr(os, "sched_getscheduler", of)
    monkeypatch.setattr(os, "sched_getparam", of)
    with inherited.kept():
        pass
    assert asked == {0}


def _huge_pages_are_off() -> int:
    found: int = ctypes.CDLL(None).prctl(_GET_THP_DISABLE, 0, 0, 0, 0)
    return found


def test_a_hard_limit_that_ops_lower_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root may raise it again."""
    limits = {resource.RLIMIT_CORE: (8, 8)}

    def refused(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda number: limits.get(number, (1, 1)))
    monkeypatch.setattr(resource, "setrlimit", refused)
    with pytest.raises(UsageError, match="the ops set the limits of resources of the process"), inherited.kept():
        limits[resource.RLIMIT_CORE] = (0, 0)


@pytest.mark.parametrize("use", ["gate", "ci"])
def test_the_gate_keeps_what_its_processes_inherit(
    use: str, tmp_path: Path, before: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both where it loads the ops and where it plans their cases."""
    module: Any = {"gate": two_codes, "ci": ci}[use]

    class LoadedError(Exception):
        """Says that the ops were loaded, and that the state is as before."""

    def planned(*_: object) -> Any:
        assert now() == before
        a_plug_in(tmp_path)
        return SimpleNamespace(jobs=(), left_out="")

    def looked(*_: object) -> None:
        raise LoadedError(now())

    monkeypatch.setattr(module, "Catalogue", lambda _: a_plug_in(tmp_path))
    monkeypatch.setattr(module, "wanted", planned)
    monkeypatch.setattr(module, "devices", SimpleNamespace(kinds=lambda: {"cpu": MagicMock()}))
    monkeypatch.setattr(two_codes, "most_ranks", looked)
    request: Any = SimpleNamespace(plugins=(), files=(), selection=SimpleNamespace(device="cpu"), noise=tmp_path / "n")
    if use == "ci":
        ci.unknown(request)
        assert now() == before
    else:
        with pytest.raises(LoadedError) as caught:
            two_codes.prepare(request, {}, MagicMock(), MagicMock())
        assert caught.value.args == (before,)


def test_a_process_tells_what_its_ops_have_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("CHANGED", "1")
    monkeypatch.setenv("GONE", "1")
    monkeypatch.setenv("NEW", "")
    monkeypatch.delenv("NEW")

    def load(_: object) -> Any:
        os.environ |= {"CHANGED": "2", "NEW": "3", "KEPT": "1"}
        del os.environ["GONE"]
        return MagicMock()

    for name in ("devices", "intact", "ranks", "gc"):
        monkeypatch.setattr(child, name, MagicMock())
    monkeypatch.setattr(child, "Catalogue", load)
    worker = child.Worker("cpu", (), lambda _: None)
    worker._software = ()
    told: Any = worker.answer(messages.SurveyCode((), ()))
    assert told.variables == (("CHANGED", "2"), ("GONE", None), ("NEW", "3"))
    assert messages.decode_reply(messages.encode(told)) == told


def test_the_processes_of_a_side_begin_with_what_its_ops_set() -> None:
    side = Checkout(CODE, None, (), around=Surroundings(variables=(("MADE", "1"),)))
    side = side.with_variables((("GONE", None), ("NEW", "3"), ("MADE", "2")))
    applied = side.around.applied({"GONE": "1", "KEPT": "1"})
    assert {name: applied.get(name) for name in ("GONE", "KEPT", "NEW", "MADE")} == {
        "GONE": None, "KEPT": "1", "NEW": "3", "MADE": "2",
    }  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., inquiry.Inquired]:
    """What both sides say, each of variables of its own. untold: what isn't known of the base's scenarios."""

    def make(
        *untold: str, jobs: tuple[Job, ...] = (), log: list[Any] | None = None, on_host: bool = True
    ) -> inquiry.Inquired:
        noted: list[Any] = [] if log is None else log
        told: dict[Side, Any] = {"base": (("OMP_NUM_THREADS", "4"),), "now": (("OMP_NUM_THREADS", None),)}
        code = Checkout(CODE, None, ())

        def workers(side: str) -> Any:
            calls = {name: lambda *_, name=name: noted.append((side, name)) for name in ("load", "wait_until_loaded")}
            return nullcontext(SimpleNamespace(survey=lambda *_: None, **calls))

        sides: dict[Side, Any] = {
            side: SimpleNamespace(
                trees=(), root=side, own_root=None, workers=lambda *_, side=side, **__: workers(side),
                with_variables=code.with_variables, code=CODE, folder=Path("/r"),
                plugins=(Path("/r/ops.py"),) if side == "now" else (),
            )
            for side in told
        }  # fmt: skip

        def probe(_workers: object, _jobs: object, _opened: object, root: Any) -> Probed:
            right = frozenset(job.case.id for job in jobs)
            return Probed({}, frozenset(), frozenset(), True, True, right, {}, told[root])

        monkeypatch.setattr(used_code, "probe", probe)

        def watched(*_: object) -> Any:
            if not on_host:
                noted.append("watched")
            return nullcontext()

        monkeypatch.setattr(used_code, "watched", watched)
        monkeypatch.setattr(used_code, "compared", lambda *_: UsedCode())

        def judged(_base: object, _now: object, asked: list[Job]) -> tuple[()]:
            noted.append(asked)
            return ()

        monkeypatch.setattr(judging, "judged", judged)
        monkeypatch.setattr(submodules, "absent", lambda _: [])
        monkeypatch.setattr(inquiry, "common", lambda *_: Cases((), {"base": jobs, "now": jobs}, untold=untold))
        device: Any = type("Device", (Cpu,), {"on_host": on_host})()
        monkeypatch.setattr(inquiry, "devices", SimpleNamespace(kinds=lambda: {"cpu": device}))
        repository: Any = SimpleNamespace(top=Path("/r"), package=None, old=lambda *_: (), new=lambda *_: ())
        asking: Any = MagicMock(files=(), folders=(), wanted=SimpleNamespace(files=(), broken={}, jobs=()))
        asking.before_judging = lambda codes, _: noted.append({side: codes[side].around.variables for side in codes})
        return inquiry.inquire(asking, repository, sides, "cpu")

    return make


def test_each_side_is_measured_with_the_variables_that_its_own_ops_set(
    asked: Callable[..., inquiry.Inquired],
) -> None:
    codes = asked().codes
    assert codes["base"].around.variables == (("OMP_NUM_THREADS", "4"),)
    assert codes["now"].around.variables == (("OMP_NUM_THREADS", None),)


def test_what_comes_next_is_told_of_both_sides_before_the_base_judges(asked: Callable[..., inquiry.Inquired]) -> None:
    """So that processes can load torch meanwhile. Where nothing is to be judged, nothing may be measured either."""
    job, log = Job(Case("twice", "plain", "float32", (("N", 64),), device="cpu")), list[Any]()
    made = asked(jobs=(job,), log=log)
    assert log == [{side: code.around.variables for side, code in made.codes.items()}, [job]]
    log.clear()
    asked(log=log)
    assert log == [[]]


def test_beside_a_device_both_processes_have_loaded_torch_before_the_base_is_watched(
    asked: Callable[..., inquiry.Inquired],
) -> None:
    """Else what the process of the working tree opens meanwhile would look as if the base had opened it."""
    log = list[Any]()
    asked(log=log, on_host=False)
    loading = [(side, what) for what in ("load", "wait_until_loaded") for side in ("base", "now")]
    assert log == [*loading, "watched", "watched", []]


def test_what_is_not_known_of_the_base_is_told_with_the_file_of_ops_that_it_lacks(
    asked: Callable[..., inquiry.Inquired],
) -> None:
    assert asked().cases.untold == ()
    why, gone = asked("the base can't load its own s.yaml").cases.untold
    assert why.endswith("s.yaml")
    assert gone.startswith("main has no ops.py")


def test_ops_that_replace_what_judges_them_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered afterwards, since the process may be a user's, who replaces what he likes."""
    with pytest.raises(UsageError, match=r"harness\.gate\.two_codes\.findings was replaced while the ops were loaded"):  # noqa: SIM117
        with inherited.kept():
            monkeypatch.setattr(two_codes, "findings", lambda *_: ())
    assert intact.replaced() is None
