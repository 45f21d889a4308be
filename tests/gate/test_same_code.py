"""What both sides used alike, by a fake process of the base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.gate.case_lists import Cases
from harness.gate.records import Revision
from harness.gate.same_code import same_code
from harness.gate.worktree import Checkout, Repository
from harness.model import Case, Job, Measurement
from harness.ops import Op
from harness.processes.messages import Surveyed

TOP, BASE = Path("/theirs"), Path("/cache/base")


class FakeWorkers:
    """Uses these files for each variant, once it has been told to listen, in a process that forgets when it crashes."""

    def __init__(self, used: dict[str, list[str]]) -> None:
        self._used = used
        self._heard: list[str] | None = None
        self.measured: list[Job] = []

    def survey(self, top: Path) -> Surveyed:
        assert top == TOP
        self._heard = self._heard or []
        return Surveyed((), (), used=tuple(self._heard))

    def measure(self, job: Job) -> Measurement:
        assert self._heard is not None
        self.measured.append(job)
        self._heard += self._used.get(job.case.variant, [])
        return Measurement(job.case, "crashed")


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What isn't compared of an op in `file` with variants ours, other and lib; and what was measured to find out."""
    monkeypatch.setattr(Repository, "belonging", lambda _, files: [file.removeprefix(f"{TOP}/") for file in files])
    monkeypatch.setattr(Repository, "package", None)

    def run(used: dict[str, list[str]], plugins: tuple[str, ...] = ("/theirs/mine.py",), file: str = "") -> Any:
        op = Op("mine", "y = x", {"N": "elements"}, file=Path(file or plugins[0]))
        for name, role in (("ours", "ours"), ("other", "published"), ("lib", "baseline")):
            op.variant(name, "one way", role=role)(lambda _: lambda _: None)
        jobs = tuple(
            Job(Case("mine", name, "float32", (("N", n),), world=world))
            for name in op.variants
            for n, world in ((8, 2), (8, 1), (9, 1))
        )
        workers = FakeWorkers(used)
        code = Revision("main", "", False, "")
        base = Checkout(code, None, (), BASE)
        repository = Repository(TOP, tuple(map(Path, plugins)))
        found = same_code(repository, base, Cases((), {"base": jobs, "now": jobs}), {"mine": op}, workers)
        return found, workers.measured

    return run


def test_each_variant_of_ours_is_run_once_and_what_it_used_is_named(ask: Any) -> None:
    used = {"ours": ["/theirs/src/mykern.py", "/cache/base/src/own.py"], "other": ["/theirs/lib.so"]}
    found, measured = ask(used)
    assert found == ("lib.so", "src/mykern.py")
    assert [(job.case.variant, job.case.symbols["N"], job.case.world) for job in measured] == [
        ("ours", 8, 1),
        ("other", 8, 1),
    ]
    assert {job.timing.max_time for job in measured} == {0.001}


def test_each_side_with_code_of_its_own_is_compared(ask: Any) -> None:
    assert ask({"ours": ["/cache/base/src/mykern.py"]})[0] == ()


def test_a_plugin_of_another_place_is_not_compared(ask: Any) -> None:
    assert ask({}, ("/theirs/mine.py", "/elsewhere/b.py"))[0] == ("/elsewhere/b.py",)


def test_a_repository_without_a_plugin_compares_nothing(ask: Any) -> None:
    import harness

    bundled = str(Path(harness.__file__).parent / "collection" / "ops" / "access" / "copy.py")
    found, measured = ask({}, (), file=bundled)
    assert found == ("every op, since no file of --ops lies in /theirs",)
    assert measured == []
