"""Candidates judged in this process, by a clock that counts calls: what is judged there may do no harm to a test."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import discover, intact, measure
from harness.devices import Batch
from harness.devices.cpu import Cpu
from harness.errors import HarnessError, brief, described
from harness.judge import Asked, Judgement, asking, child, judge, loading
from harness.model import Job, Limits, Measurement, StreamPoint, Timer, Timing
from harness.ops import Catalogue
from harness.session import Session

UNIT = 1e-4
"""Seconds that every call takes by the clock of the tests."""
OP = """
from harness.ops import Op, Tensor

OP = Op(
    "doubling", "y = 2 x", symbols={"M": "rows", "N": "columns"}, dtypes=("float32", "float16"),
    inputs=(Tensor("x", ("M", "N")),), outputs=(Tensor("y", ("M", "N")),),
    reference=lambda _, t: {"y": 2 * t.x.double()},
)
OP.variant("eager", "torch", role="baseline", devices=("any",), returns=True)(lambda _: lambda t: (t.x * 2,))
"""
"""An op that has one baseline, so that its candidates are judged quickly."""
_POINTS = tuple(StreamPoint(size, size, size * 1e-10, "memcpy", is_copy=True) for size in (2**12, 2**20))


class Counted:
    """A clock that is told what was called."""

    now = 0.0

    def mark(self) -> float:
        return self.now

    def between(self, marks: Sequence[float]) -> list[float]:
        return [later - earlier for earlier, later in itertools.pairwise(marks)]


class Small(Cpu):
    """A processor with a small cache on which every call takes as long."""

    cache_bytes = 2**8
    clock = Counted()

    def batch(self, calls: Sequence[Callable[[], object]], *, timer: Timer, **_: Any) -> Batch:
        def run(count: int) -> list[float]:
            for _ in range(count):
                for call in calls:
                    call()
            return [UNIT] * count

        return Batch(run, len(calls), timer, UNIT * len(calls))


class Here:
    """Measures in this process what `Workers` measures in another one."""

    def __init__(self, device: str, plugins: Sequence[Path] = (), **_: object) -> None:
        # As a new process has it.
        for noted in (intact._remembered, intact._others, intact._watched):
            noted.clear()
        sys.modules.pop(loading.REFERENCE, None)
        self._ops = Catalogue(plugins)

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None: ...

    def begin_next(self, *, compiler: bool = False) -> None: ...

    def restart(self) -> None: ...

    def limits(self, *_: object) -> Limits:
        return Limits(_POINTS)

    def limits_again(self, *_: object) -> Limits:
        return Limits(_POINTS, end=_POINTS)

    def measure(self, job: Job, process: int = 0, *, timed: bool = True) -> Measurement:
        try:
            return measure.measure(job, self._ops[job.case.op], Small(), None, process, timed=timed)
        except Exception as error:
            return Measurement(job.case, "crashed", error=described(error), process=process)


def ask(action: str, request: Mapping[str, Any], _seconds: float, **_: Any) -> dict[str, Any]:
    """What the process would answer, from this one."""
    try:
        return child.ACTIONS[action](dict(request))
    except HarnessError:
        raise
    except Exception as error:
        raise asking.AnswerError(brief(described(error))) from error


Judged = Callable[..., Judgement]


@pytest.fixture
def functions_noted() -> None:
    """Functions that numbers rest on are noted and compared, and extreme values tried, as ever.

    Both take most of the time of a judgement.
    """


@pytest.fixture
def judged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    watcher: Any,
    one_thread: None,
    short_timing: None,
) -> Iterator[Judged]:
    """judged(text, other.py=text, ...): the judgement of a candidate with this text; files lie beside it."""
    if "functions_noted" not in request.fixturenames:
        monkeypatch.setattr(intact, "remember", lambda *_: None)
        monkeypatch.setattr(Session, "extremes", lambda _: None)
    # Packages aren't read again whenever a candidate's folder comes to sys.path.
    read = discover._read
    monkeypatch.setattr(discover, "_read", lambda group, *_: read(group, (), ()))
    for name in ("harness.judge.procedure", "harness.runner"):
        monkeypatch.setattr(f"{name}.Workers", Here)
    monkeypatch.setattr(asking, "ask", ask)
    monkeypatch.setattr("harness.judge.forms._op._compiled", lambda function, *_: function)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    monkeypatch.setattr("harness.measure._RECHECK_SHARE", 1.0)
    modules, path = {*sys.modules}, [*sys.path]

    def run(text: str, files: Mapping[str, str] | None = None, **asked: Any) -> Judgement:
        for name, content in {"candidate.py": text, "op.py": OP, **(files or {})}.items():
            (tmp_path / name).write_text(content)
        plugins = (tmp_path / "op.py",) if asked.get("op") == "doubling" else ()
        named = {name: tmp_path / value for name, value in asked.items() if name in ("reference", "candidate")}
        rest = {"candidate": tmp_path / "candidate.py", "plugins": plugins, "timing": Timing(0.5, 0.01), "seed": 1}
        return judge(Asked(device="cpu", **rest | asked | named), ("harness", "judge"), watcher)

    yield run
    sys.path[:] = path
    for name in {*sys.modules} - modules:
        if not name.startswith(("torch", "harness.")) or name.startswith("harness.judged"):
            del sys.modules[name]


@pytest.fixture
def doubling(judged: Judged) -> Judged:
    """Judges candidates for the op of the tests."""
    return lambda text, **asked: judged(text, **{"op": "doubling", "sizes": ({"M": 8, "N": 24},)} | asked)
