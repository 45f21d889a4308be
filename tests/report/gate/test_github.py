from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.gate.joining import Joined, JoinedPart
from harness.gate.records import Finding, GateRun, Revision, UsedCode
from harness.model import Case
from harness.report import gate as report
from harness.report.gate import github, joined

MakeGate = Callable[..., GateRun]


def test_failures_are_errors_and_what_is_undecided_a_warning(gate_run: GateRun) -> None:
    slower, missing, floor, undecided = github.lines(gate_run)
    assert slower.startswith("::error title=gate%2C slower::layer_norm_grad/tuned/float16/M65536-N1024: 3.20%25 slower")
    assert missing == (
        "::error title=gate%2C missing::bias_dropout_residual/tuned/float16/R32768-C1024/p=0.1: crashed: <k> [x](y) "
        "::error::| 100%25; use compute-sanitizer"
    )
    assert floor.startswith("::error title=gate%2C floor::softmax/tuned/float16/M65536-N1024: of_ceiling is 88.1%25,")
    assert undecided == (
        "::warning title=gate%2C slower::dropout/a|b/float16/N67108864: 20 pairs don't tell; let it measure 31 pairs"
    )


def test_whatever_a_text_holds_a_command_stays_one_line() -> None:
    assert github.command("error", "a:b,c\n%", "x: y, z\r\n%0A") == (
        "::error title=gate%2C a%3Ab%2Cc%0A%25::x: y, z%0D%0A%250A"
    )
    long = github.command("error", "a", "x" * 100_000)
    assert len(long) < 4100
    assert long.endswith("x…")


@pytest.mark.parametrize(("severity", "level"), [("failure", "error"), ("undecided", "warning")])
def test_github_takes_ten_of_a_level(severity: str, level: str, make_gate: MakeGate) -> None:
    def lines(count: int) -> list[str]:
        return github.lines(make_gate([], [Finding("floor", severity, f"nr. {i}") for i in range(count)]))

    assert len(lines(10)) == 10
    assert lines(10)[-1] == f"::{level} title=gate%2C floor::nr. 9"
    assert len(lines(25)) == 10
    assert lines(25)[-1] == f"::{level} title=gate%2C more::and 16 more: see the step's summary, or gate.md"


def test_each_level_has_its_own_ten(make_gate: MakeGate) -> None:
    findings = [Finding("r", severity, str(i)) for i in range(12) for severity in ("failure", "undecided")]
    assert len(github.lines(make_gate([], findings))) == 20


def test_an_advisory_run_only_warns(gate_run: GateRun) -> None:
    lines = github.lines(replace(gate_run, advisory=True, refused=("the machines differ",)))
    assert len(lines) == 5
    assert all(line.startswith("::warning ") for line in lines)
    assert lines[0].endswith("::the runs can't be compared: the machines differ")


@pytest.mark.parametrize(
    ("rule", "op", "file"),
    [
        ("slower", "prelu", "kernels/prelu.cu"),
        ("slower", "softmax", "a.py"),
        ("slower", "", "a.py"),
        ("software", "", "uv.lock"),
        ("code", "", "src/b.py"),
    ],
)
def test_an_annotation_names_the_changed_file_that_it_is_about(
    rule: str, op: str, file: str, make_gate: MakeGate, case: Callable[..., Case]
) -> None:
    changed = ("a.py", "kernels/prelu.cu")
    used = UsedCode(changed=changed, shared=("/kept/b.so", "src/b.py"), software=("uv.lock",))
    finding = Finding(rule, "failure", "found", case=case(op) if op else None)
    [line] = github.lines(make_gate([], [finding], used=used))
    assert line.startswith(f"::error file={file},title=gate%2C {rule}::")


@pytest.mark.parametrize(
    ("workspace", "file"),
    [("", "a.py"), ("{top}", "a.py"), ("{top}/..", "mine/a.py"), ("{top}/elsewhere", "a.py")],
)
def test_a_file_is_named_from_the_workspace_on(
    workspace: str, file: str, make_gate: MakeGate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GitHub shows it beside no file otherwise. A job may have the repository in a folder of the workspace."""
    top = tmp_path / "mine"
    top.mkdir()
    (top / "a.py").symlink_to("elsewhere.py")  # a link that changed is named itself
    now = Revision("the working tree", "f" * 40, False, "d" * 64, str(top))
    finding = Finding("slower", "failure", "found")
    run = make_gate([], [finding], used=UsedCode(changed=("a.py",)), now=now)
    environ = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": workspace.format(top=top)}
    report.publish(run, environ)
    joined.publish(Joined((JoinedPart("H100", run),)), environ)
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(",title")[0] for line in said] == [f"::error file={file}"] * 2
