"""Whether two codes that measure give the same times of the same kernels: from pairs that are invented."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import MachineError
from harness.gate import two_codes
from harness.gate.alike import _is_alike, unlike
from harness.gate.case_lists import Cases
from harness.gate.noise_store import Noise
from harness.gate.records import Margin, Pair, Revision, Stage
from harness.gate.two_codes import Request, Sides
from harness.gate.worktree import Checkout
from harness.model import Case, Job, Machine, Measurement


class Quiet(Noise):
    """A machine whose margin is what was asked for."""

    def margin(self, case: str, timer: str, asked: float, family: int = 1, waived: float = 0.0) -> Margin:
        return Margin(asked)


NOISE = Quiet(Path("none"), "f00d", {})


class Pairs:
    """Pairs in which the code of now gives a case so many times its seconds, or its processes fail."""

    def __init__(self, times: Mapping[str, float | Exception], status: str = "ok") -> None:
        self._times, self._status = times, status
        self.pairs: dict[str, list[Pair]] = defaultdict(list)
        self.measurements: dict[str, dict[str, list[Measurement]]] = {s: defaultdict(list) for s in ("base", "now")}
        self.measured: list[tuple[Stage, list[str]]] = []

    def measure(self, stage: Stage, count: int, jobs: Mapping[str, Sequence[Job]]) -> None:
        assert jobs["base"] == jobs["now"]
        self.measured.append((stage, [job.case.op for job in jobs["now"]]))
        for job in jobs["now"]:
            times = self._times[job.case.op]
            if isinstance(times, Exception):
                raise times
            for side in ("base", "now"):
                samples = (1.0,) if self._status == "ok" else ()
                measured = Measurement(job.case, self._status, samples=samples, timer="graph")
                self.measurements[side][job.case.id] += [measured] * count
            if self._status == "ok":
                self.pairs[job.case.id] += [Pair(1.0, times, "base", stage)] * count


def said(times: Mapping[str, float | Exception], **options: Any) -> tuple[str, list[tuple[Stage, list[str]]]]:
    pairs = Pairs(times, **options)
    jobs = [Job(Case(op, "tuned", "float32", (("N", 8),))) for op in times]
    return unlike(pairs, jobs, 0.01, NOISE), pairs.measured


def test_codes_that_give_the_same_times_measure_alike() -> None:
    assert said({"a": 1.0, "b": 1.002}) == ("", [("screen", ["a", "b"])])


@pytest.mark.parametrize("times", [0.001, 0.98, 1.02])
def test_a_code_that_gives_other_times_does_not_and_its_case_is_measured_twice(times: float) -> None:
    found = "not measured alike, or too few pairs say so: b/tuned/float32/N8"
    assert said({"a": 1.0, "b": times}) == (found, [("screen", ["a", "b"]), ("confirm", ["b"])])


def test_three_cases_are_named_and_the_others_are_counted() -> None:
    found, _ = said(dict.fromkeys("abcde", 2.0))
    assert found.endswith(": a/tuned/float32/N8, b/tuned/float32/N8, c/tuned/float32/N8 and 2 more")


def test_a_case_that_neither_code_measures_says_nothing_but_one_that_crashes_does() -> None:
    assert said({"a": 1.0}, status="unsupported")[0] == ""
    assert said({"a": 1.0}, status="crashed")[0].startswith("not measured alike")


def test_a_code_that_cannot_measure_leaves_one_of_them() -> None:
    found, _ = said({"a": MachineError("it speaks protocol 99", "take another")})
    assert found == "measured by one of them alone: it speaks protocol 99"


@pytest.mark.parametrize(
    ("times", "doubt"), [(1.0, ""), (0.001, "changed; the kernels of the base are not measured alike")]
)
def test_a_gate_doubts_code_that_gives_the_kernels_of_the_base_other_times(
    times: float, doubt: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One side of these pairs is the base as it was, the other side is the base in the hands of the new code."""
    base = Checkout(Revision("main", "0" * 40, False, "0" * 64), Path("/both"), (), own_root=Path("/old"))
    jobs = (Job(Case("a", "tuned", "float32", (("N", 8),))),)
    codes: dict[str, Checkout] = {}

    def pairs(_kind: str, given: dict[str, Checkout], *_: object) -> Pairs:
        codes.update(given)
        return Pairs({"a": times})

    monkeypatch.setattr(two_codes, "PairMeasurer", pairs)
    said: list[str] = []
    observer = SimpleNamespace(say=said.append)
    cases = Cases((), {"base": jobs, "now": ()})
    sides = Sides({"base": base}, machine, cases, "", observer, measuring="changed")
    request = Request("main", (), SimpleNamespace(), margin=0.01)
    found = two_codes._measured_alike(request, sides, NOISE, 1).measuring
    assert found.startswith(doubt) if doubt else found == ""
    assert (codes["base"].root, codes["base"].own_root, codes["now"]) == (Path("/old"), None, base)
    assert said == ["the code that measures changed: the kernels of the base are measured by the old and the new"]


@pytest.mark.parametrize(
    ("base", "now", "alike"),
    [("unsupported", "unsupported", True), ("unsupported", "ok", False), ("skipped", "unsupported", True)],
)
def test_what_one_of_the_codes_measures_alone_is_not_measured_alike(base: Any, now: Any, alike: bool) -> None:
    case = Case("a", "v", "float32", (("N", 8),))
    pairs: Any = Pairs({})
    for side, status in (("base", base), ("now", now)):
        pairs.measurements[side][case.id] = [Measurement(case, status, samples=(1.0,) if status == "ok" else ())]
    assert _is_alike(pairs, case.id, 0.01, NOISE, 1) == alike
