"""The rule about code that both sides shared."""

from __future__ import annotations

from dataclasses import replace

from harness.gate import Evidence
from harness.gate.case_lists import Broken
from harness.gate.records import UsedCode
from harness.gate.rules import code

FILES = (("mine.py", "d" * 64),)


def test_shared_code_is_named_and_undecided() -> None:
    used = UsedCode(FILES, FILES, shared=("mykern/a.py", "b.so", "c.py", "d.py"))
    [finding] = code.judge(Evidence("main", (), (), used=used))
    assert (finding.severity, finding.case) == ("undecided", None)
    assert finding.message.startswith("this code was not compared, since main used the same files")
    assert finding.message.endswith("mykern/a.py, b.so, c.py and 1 more")
    [finding] = code.judge(Evidence("main", (), (), used=UsedCode(FILES, FILES, shared=used.shared[:3])))
    assert finding.message.endswith(": mykern/a.py, b.so, c.py")
    assert not list(code.judge(Evidence("main", (), ())))
    assert not list(code.judge(Evidence("main", (), (), used=UsedCode(FILES, FILES))))


def test_a_gate_that_used_no_file_of_the_repository_is_undecided() -> None:
    [finding] = code.judge(Evidence("main", (), (), used=UsedCode()))
    assert (finding.severity, "--ops mine.py" in finding.advice) == ("undecided", True)
    broken = Broken("ci.yaml", ())
    assert not list(code.judge(Evidence("main", (), (), used=UsedCode(), broken=(broken,)))), "nothing was run"


def test_changed_files_that_nothing_used_are_listed() -> None:
    unused = tuple(f"part{i}.py" for i in range(22))
    [finding] = code.judge(Evidence("main", (), (), used=UsedCode(FILES, FILES, unused=unused)))
    assert finding.severity == "note"
    assert "part0.py, part1.py" in finding.message
    assert finding.message.endswith("part19.py and 2 more")


def test_what_may_be_older_than_its_source_leaves_it_undecided() -> None:
    used = UsedCode(FILES, FILES, complete=True, older=("build/libk.so",))
    [found] = code.judge(Evidence("main", (), (), used=used))
    assert (found.severity, found.message.endswith(": build/libk.so")) == ("undecided", True)
    assert "build it anew" in found.advice
    assert not used.same
    assert replace(used, older=()).same


def test_what_the_base_does_not_have_leaves_it_undecided() -> None:
    used = UsedCode(FILES, FILES, unmatched=("mykern/_fast.so",))
    [finding] = code.judge(Evidence("main", (), (), used=used))
    assert (finding.severity, finding.message.endswith(": mykern/_fast.so")) == ("undecided", True)
    assert "--prepare" in finding.advice
    assert "commit it if nothing builds it" in finding.advice


def test_what_only_the_place_of_a_side_or_a_filter_of_git_decides_leaves_it_undecided() -> None:
    """As a plan beside the repository, which the base's worktree lacks, and a pointer in place of a large file."""
    [found] = code.judge(Evidence("main", (), (), used=UsedCode(FILES, FILES, outside=("/w/plan.json",))))
    assert (found.severity, found.message.endswith(": /w/plan.json")) == ("undecided", True)
    assert "full path" in found.advice
    [found] = code.judge(Evidence("main", (), (), used=UsedCode(FILES, FILES, filtered=("plan.bin",))))
    assert (found.severity, found.message.endswith(": plan.bin")) == ("undecided", True)
    assert "git-lfs" in found.advice


def test_files_that_were_edited_meanwhile_leave_it_undecided() -> None:
    [finding] = code.judge(Evidence("main", (), (), used=UsedCode(FILES, FILES), edited=("lib/helper.py",)))
    assert (finding.severity, finding.message) == ("undecided", "edited while the gate ran: lib/helper.py")


def test_it_is_the_same_code_only_if_no_file_that_a_side_used_or_asked_about_changed() -> None:
    assert UsedCode(FILES, FILES, complete=True, unused=("README.md",)).same
    assert not UsedCode(FILES, FILES, complete=True, changed=("mine.py",)).same, "its mode may be another one"
