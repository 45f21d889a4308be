"""The process under a profiler: cases are prepared, checked and called a few times, and each says how it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cuda.compile import cubin
from harness.devices import MARK, cuda
from harness.devices.cpu import Cpu
from harness.model import Case, Job
from harness.profile import CALLS, _request, _target
from harness.profile._request import CaseRan, ProfileRequest

PLUGIN = Path(__file__).parents[1] / "plugins" / "faults.py"


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "cache_bytes", 2**12)


def ran(
    folder: Path, *variants: str, checked: bool = False, numbers: tuple[int, ...] = ()
) -> tuple[int, list[CaseRan]]:
    jobs = tuple(Job(Case("fault", variant, "float32", (("N", 64),), device="cpu")) for variant in variants)
    file = folder / "a.request.json"
    _request.write(ProfileRequest("cpu", (str(PLUGIN),), jobs, checked=checked, numbers=numbers), file)
    code = _target.main([str(file)])
    return code, _request.answers(_request.answers_file(file))


def test_cases_run_one_after_the_other(tmp_path: Path) -> None:
    code, cases = ran(tmp_path, "fine", "slow")
    assert code == 0
    assert [(case.case, case.number, case.status) for case in cases] == [
        ("fault/fine/float32/N64", 1, "ok"),
        ("fault/slow/float32/N64", 2, "ok"),
    ]


def test_the_calls_lie_in_the_range_with_the_name_of_the_case(tmp_path: Path, recorded: list[tuple[str, str]]) -> None:
    ran(tmp_path, "fine")
    pushed = [name for kind, name in recorded if kind == "push"]
    assert pushed[-1] == "fault/fine/float32/N64"
    assert "check: fault/fine/float32/N64" in pushed


def test_an_error_ends_the_process_and_is_told(tmp_path: Path) -> None:
    code, cases = ran(tmp_path, "raises", "fine")
    assert code == 1
    assert [case.status for case in cases] == ["crashed"]
    assert "faults.py" in cases[0].error


def test_cases_that_were_checked_are_not_checked_again(tmp_path: Path, recorded: list[tuple[str, str]]) -> None:
    code, _ = ran(tmp_path, "fine", checked=True)
    assert code == 0
    assert "check: fault/fine/float32/N64" not in [name for _, name in recorded]


def test_only_the_cases_that_were_asked_for_run_and_they_keep_their_numbers(tmp_path: Path) -> None:
    code, cases = ran(tmp_path, "fine", "slow", "fine", numbers=(2,))
    assert code == 0
    assert [(case.case, case.number) for case in cases] == [("fault/slow/float32/N64", 2)]


def test_an_answer_that_is_cut_short_is_left_out(tmp_path: Path) -> None:
    _, cases = ran(tmp_path, "fine")
    file = tmp_path / "a.request.answers"
    file.write_text(file.read_text() + '{"case": "fau')
    assert _request.answers(file) == cases


def test_the_mark_is_a_kernel_that_compiles() -> None:
    code = cubin(cuda._MARK, {}, "sm_90")
    assert MARK.encode() in code


def test_a_case_is_marked_with_its_number_and_calls_ahead_of_its_range(
    tmp_path: Path, recorded: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cpu, "mark", lambda _, number, calls: recorded.append(("mark", f"{number} {calls}")))
    ran(tmp_path, "fine", "slow")
    told = [entry for entry in recorded if entry[0] == "mark" or entry[1].startswith("fault/")]
    assert told == [
        ("mark", f"1 {CALLS}"), ("push", "fault/fine/float32/N64"),
        ("mark", f"2 {CALLS}"), ("push", "fault/slow/float32/N64"),
    ]  # fmt: skip


def test_the_mark_of_a_case_is_launched_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[tuple[object, ...]] = []

    def load(file: Path, entry: str, macros: dict[str, int]) -> object:
        return lambda *grid_and_block: launched.append((file.name, entry, *grid_and_block))

    monkeypatch.setattr("harness.cuda.load", load)
    cuda.Cuda().mark(3, 4)
    assert launched == [("mark.cu", MARK, 3, 4)]
