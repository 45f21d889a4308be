"""The base judges what the working tree computes, step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.devices.cpu import Cpu
from harness.errors import UsageError
from harness.gate.case_lists import Cases
from harness.gate.inquiry import _named, _to_judge, _unjudged
from harness.gate.judging import judged
from harness.gate.records import Revision
from harness.gate.worktree import Checkout
from harness.model import Case, Job
from harness.processes.supervisor import Workers
from tests.one_test import one_test

JOB = Job(Case("twice", "plain", "float32", (("N", 64),), device="cpu"))


class Answers:
    """Workers that answer each step as they are told, else that all is well."""

    def __init__(self, **answers: tuple[str, str]) -> None:
        self.answers = answers

    def exchange(self, step: str, job: Job, folder: Path) -> tuple[str, str]:
        assert folder.is_dir()
        return self.answers.get(step, ("", ""))


def test_cases_that_both_find_right_are_judged_and_what_several_ranks_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device says nothing of what several ranks find right. The machine has two."""
    monkeypatch.setattr(Cpu, "count", 2)
    worlds = zip("abcde", (1, 1, 2, 3, 2), strict=True)
    right, wrong, two, three, new = (replace(JOB, case=replace(JOB.case, op=op, world=world)) for op, world in worlds)
    jobs = [two, right, three, wrong, new]
    cases = Cases((), {"base": tuple(jobs[:-1]), "now": tuple(jobs)})
    found_right = frozenset({right.case.id, three.case.id})
    assert _to_judge(cases, found_right, "cpu") == [right, two]
    # It may have failed by chance, and be right by its own reference each time that it is timed.
    assert [found.case for found in _unjudged(cases, found_right)] == [wrong.case]


def test_code_of_the_base_that_cannot_be_loaded_is_told_as_the_base_s(tmp_path: Path) -> None:
    """Its worktree is gone when the user reads that."""
    code = Checkout(Revision("main", "0" * 40, False, "d" * 64), None, (), tmp_path)
    with pytest.raises(UsageError, match=r"^main can't be loaded: mine\.py:3: SyntaxError$") as caught, _named(code):
        raise UsageError(f"{tmp_path}/mine.py:3: SyntaxError", "the file isn't valid Python: correct that line")
    assert "name a base whose code can be loaded" in caught.value.advice


@one_test(
    ("base", "now", "wrong", "unable"),
    [
        ({}, {}, "", ""),
        ({"give": ("", "its inputs are too large")}, {}, "", "its inputs are too large"),
        ({}, {"work": ("y has another dtype", "")}, "y has another dtype", ""),
        ({"judge": ("y is off", "")}, {}, "", "the base finds its own result wrong, too: y is off"),
        ({}, {"own": ("x", "")}, "", "it is timed with another input x than the base's, which may take less time"),
        # Its measurements say that, too.
        ({"give": ("", "unsupported: needs 2 devices")}, {}, "", ""),
        ({}, {"work": ("", "unsupported: needs 2 devices")}, "", ""),
        # The base makes other inputs each time.
        ({"own": ("x", "")}, {"own": ("x", "")}, "", ""),
    ],
)
def test_what_is_wrong_is_told_and_why_it_cannot_be_judged(base: Any, now: Any, wrong: str, unable: str) -> None:
    found = judged(Answers(**base), Answers(**now), [JOB])
    assert [(each.wrong, each.unable) for each in found] == ([(wrong, unable)] if wrong or unable else [])


@pytest.mark.slow  # processes/test_exchange.py has that each rank judges what it holds
@pytest.mark.timeout(300)
def test_what_several_ranks_compute_is_judged_by_the_base(tmp_path: Path) -> None:
    """A commit whose sum lacks the second rank, in the variant and in the reference alike."""
    plugin = (Path(__file__).parents[1] / "plugins" / "ranks.py").read_text()
    base, now = tmp_path / "base.py", tmp_path / "now.py"
    base.write_text(plugin)
    assert plugin.count("if ctx.group.size > 1:") == 2
    now.write_text(plugin.replace("if ctx.group.size > 1:", "if False:"))
    job = Job(Case("rank_sum", "gloo", "float32", (("N", 64),), world=2, device="cpu"))
    with Workers("cpu", (base,)) as of_base, Workers("cpu", (now,)) as of_now:
        [found] = judged(of_base, of_now, [job])
        assert not judged(of_base, of_base, [job])
    assert (found.case, found.unable, found.wrong[:10]) == (job.case, "", "rank 0: y:")
