"""What a user may ask for, how it is told what there is, and how a wrong request is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness import __version__, cli, gate
from harness.cli import app, values
from tests.one_test import one_test
from tests.rare import rare

COMMANDS = [
    "run",
    "list",
    "env",
    "peak",
    "report",
    "view",
    "compare",
    "gate",
    "check",
    "profile",
    "explain",
    "judge",
    "ladder",
    "tune",
]
Harness = Callable[..., subprocess.CompletedProcess[str]]


def invoke(*arguments: object) -> Result:
    """Run a command in this process, for commands that load no plug-ins."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@one_test("command", COMMANDS)
@one_test("flag", ["--help", "-h"])
def test_help_shows_an_example(command: str, flag: str) -> None:
    result = invoke(command, flag)
    assert result.exit_code == 0
    assert f"\n    harness {command}" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_help_of_the_gate_names_what_may_be_accepted() -> None:
    option = " ".join(invoke("gate", "--help").stdout.partition("--accept RULE")[2].partition("--advisory")[0].split())
    named = re.findall(r"\w+", option.partition("pass: ")[2].partition(";")[0].replace(" or ", " "))
    assert sorted(named) == sorted(gate.acceptable())


def test_help_names_every_command() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    listed = result.stdout.partition("Commands:")[2].partition("First steps:")[0]
    assert sorted(re.findall(r"^  (\w+) {2,}\S", listed, re.MULTILINE)) == sorted([*COMMANDS, "launch"])
    assert max(map(len, result.stdout.splitlines())) <= 80


@one_test("group", [[], ["list"], ["launch"], ["gate"], ["profile"]])
def test_no_line_of_help_is_cut_and_no_value_is_named_by_its_type_in_python(group: list[str]) -> None:
    lines = invoke(*group, "--help").stdout.splitlines()
    assert [line for line in lines if line.startswith("  ") and line.endswith("..") and "reports/" not in line] == []
    assert [line for line in lines if line.startswith("  --") and "range>" in line] == []


def test_version() -> None:
    assert invoke("--version").stdout == f"harness {__version__}\n"


def test_python_m_harness_is_the_same(harness: Harness) -> None:
    done = harness("--version")
    assert (done.returncode, done.stdout) == (0, f"harness {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["rnu"], "Did you mean 'run'?"),
        (["ops"], "Did you mean 'list ops'?"),
        (["run", "quick", "--varaints=eager"], "--variants"),
        (["list", "scenarois"], "Did you mean 'scenarios'"),
        (["run"], "Missing argument"),
        (["run", "quick", "--repeat=0"], "--repeat"),
        (["run", "quick", "--precision=2"], "'2' isn't between 0 and 1; write 0.002 or 0.2%."),
        (["run", "quick", "--precision=high"], "'high' isn't a number."),
        (["run", "quick", "--max-time=nan"], "'nan' isn't a positive number of seconds."),
        (["run", "quick", "--resume"], "error: --resume needs a folder"),
        (["run", "--resume"], "error: --resume needs a folder"),
        (["run", "--resume", "gone"], "error: gone: holds no run"),
        (["run", "--resume=one", "quick", "--output=two"], "--resume=one and --output=two name two folders"),
        (["run", "quick", "--device=cpu", "--variants=tuned"], "nothing to run on cpu: prelu/tuned (needs cuda)"),
        (
            ["run", "quick", "--device=cpu", "--only=*/tuned/*"],
            "only cases on another device: prelu/tuned (needs cuda)",
        ),
        (["check"], "error: nothing to check"),
        (["check", "quikc"], "did you mean 'quick'?"),
        (["check", "quick", "--device=cpu", "--variants=tuned"], "prelu/tuned (needs cuda)"),
        (["run", "quick", "--json=gone/results.json"], "error: --json gone/results.json: there is no folder gone"),
        (["run", "quikc"], "did you mean 'quick'?"),
        (["run", "missing.yaml"], "missing.yaml"),
        (["run", "quick", "--device=tpu"], "error: no device named 'tpu'"),
        (["run", "quick", "--device=cpu", "--variants=eagre"], "eager"),
        (["run", "quick", "--device=cpu", "--only=nothing/*"], "nothing/*"),
        (["list", "op", "sofmax"], "did you mean 'softmax'?"),
        (["list", "scenario", "quikc"], "did you mean 'quick'?"),
        (["run", "quick", "--ops=missing.py"], "missing.py: not a Python file"),
        (["report", "missing"], "missing: holds no run"),
        (["compare", "missing", "gone"], "missing: holds no run"),
        (["gate"], "Missing argument"),
        (["gate", "missing", "gone"], "missing: holds no run"),
        (["gate", "quick"], "name a revision: harness gate --base main SCENARIO..., or two folders of runs"),
        (["gate", "before", "after", "--seed=0", "--only=prelu/*"], "nothing is measured, so --only, --seed can't be"),
        (["gate", "--base=nowhere", "quick", "--device=cpu"], "git knows no revision 'nowhere'"),
        (["gate", "--base=HEAD", "quick", "--ops=tests"], "error: --ops tests: a folder, and no file"),
        (["gate", "--base=HEAD", "quick", "--output=README.md"], "README.md is no folder"),
        (["gate", "--base=HEAD", "quick", "--output=README.md/a/b"], "README.md is no folder"),
        (["gate", "--base=HEAD", "quikc"], "did you mean 'quick'?"),
        (["gate", "--base=HEAD", "quick", "--device=tpu"], "error: no device named 'tpu'"),
        rare(["gate", "--base=HEAD", "quick", "--device=cpu", "--only=nothing/*"], "nothing/*"),
        (["gate", "--base=HEAD", "quick", "--margin=2"], "'2' isn't between 0 and 1"),
        (["gate", "--base=HEAD", "quick", "--accept=flor"], "did you mean 'floor'?"),
        (["gate", "before", "after", "--accept=slower"], "--accept slower: what this rule finds can't be accepted"),
        (["gate", "calibrate", "quick", "--blocks=0"], "--blocks"),
    ],
    ids=" ".join,
)
def test_a_wrong_request_is_refused_with_what_is_right(arguments: list[str], hint: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert hint in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_all_problems_of_all_files_are_printed_at_once(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("title: t\nop: prelu\nshapes: [{N: 0, C: 1, H: 1, W: 1}]\ndtypes: [flaot32]\ncolour: blue\n")
    second.write_text("title: [unclosed\n")
    result = invoke("run", first, second)
    assert result.exit_code == 2
    heading, *lines = result.stderr.splitlines()
    assert heading == f"error: {len(lines)} problems:"
    assert [re.match(r"  (\S+?):(\d+)", line).groups() for line in lines[:3]] == [
        (str(first), "3"),
        (str(first), "4"),
        (str(first), "5"),
    ]
    assert "did you mean 'float32'?" in result.stderr
    assert str(second) in lines[3]


def test_a_plugin_that_raises_is_named(tmp_path: Path) -> None:
    plugin = tmp_path / "broken.py"
    plugin.write_text("1 / 0\n")
    result = invoke("run", "quick", "--ops", plugin)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {plugin}: ZeroDivisionError: division by zero ({plugin}:1 in <module>")


# The gate takes a worktree. That SystemExit is no success of any command, the next test has.
@pytest.mark.parametrize("command", [["run", "quick"], rare(["gate", "quick", "--base=HEAD"])], ids="".join)
def test_a_plugin_that_calls_sys_exit_does_not_end_the_command_with_its_code(
    tmp_path: Path, command: list[str]
) -> None:
    plugin = tmp_path / "leaving.py"
    plugin.write_text("import sys\nsys.exit(0)\n")
    result = invoke(*command, "--device=cpu", "--ops", plugin)
    assert result.exit_code == 2, result.output
    assert f"{plugin}: SystemExit: 0" in result.stderr


@pytest.mark.parametrize(("raised", "code"), [(SystemExit(0), 2), (GeneratorExit(), 70)])
def test_whatever_a_command_calls_its_end_is_never_taken_for_success(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(_: object) -> None:
        raise raised

    monkeypatch.setattr("harness.cli.listing._ops", leave)
    monkeypatch.setattr("sys.argv", ["harness", "list", "ops"])
    monkeypatch.setattr("sys.path", [*sys.path])  # main() takes the working folder out
    monkeypatch.setattr("os._exit", os._exit)  # main() replaces it
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == code
    assert type(raised).__name__ in capsys.readouterr().err


@pytest.mark.slow  # the test of env has that nothing is found, and what to do
def test_a_device_that_is_not_there_is_refused(harness: Harness) -> None:
    done = harness("run", "quick", "--device=cuda", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert "CUDA_VISIBLE_DEVICES='' hides every GPU" in done.stderr
    assert "Traceback" not in done.stderr


def test_gpu_means_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness import devices
    from harness.devices.cuda import Cuda

    monkeypatch.setattr(Cuda, "missing", lambda _: None)
    assert devices.choose("gpu") == "cuda"


@one_test(("text", "value"), [("0.002", 0.002), ("0.2%", 0.002), ("1e-3", 0.001), ("50%", 0.5)])
def test_a_share_is_a_number_or_a_percentage(text: str, value: float) -> None:
    assert values.share(text) == pytest.approx(value, rel=1e-15)


def test_names_may_be_repeated_or_given_with_commas() -> None:
    assert values.names(["eager,naive", " tuned , "]) == ("eager", "naive", "tuned")
    assert values.names(None) == ()


def test_list_shows_what_there_is() -> None:
    everything = {word.strip(",") for word in invoke("list").stdout.split()}
    for kind in ("ops", "scenarios", "formats", "devices"):
        lines = invoke("list", kind).stdout.splitlines()
        assert {line.split()[0] for line in lines if line[2:3].strip()} <= everything
    names = {line.split()[0] for line in invoke("list", "scenarios").stdout.splitlines()}
    assert {"quick", "copy", "prelu"} <= names
    assert re.search(r"^  +naive +published +cuda +R1 +\S", invoke("list", "op", "prelu").stdout, re.MULTILINE)


def test_env_tells_what_is_missing_and_what_to_do(harness: Harness) -> None:
    done = harness("env", CUDA_VISIBLE_DEVICES="", PATH="/nowhere", HARNESS_CACHE="/dev/null/cache")
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[lines.index("cuda  not usable") + 1] == "-> CUDA_VISIBLE_DEVICES='' hides every GPU"
    assert any(re.fullmatch(r"torch +2\.\d+\.\d+\S*", line) for line in lines)
    [cache] = [index for index, line in enumerate(lines) if line.startswith("cache ")]
    assert lines[cache + 1] == "-> can't be written; name another folder in HARNESS_CACHE"
    [ncu] = [index for index, line in enumerate(lines) if line.startswith("ncu ")]
    assert lines[ncu].endswith("not on PATH")
    assert lines[ncu + 1].startswith("-> only 'harness profile ncu' needs it; Nsight Compute")


def test_a_bug_is_not_taken_for_a_gate_that_failed(monkeypatch, capsys):
    def broken(**_):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setattr("sys.path", [*sys.path])  # main() takes the working folder out
    monkeypatch.setattr("os._exit", os._exit)  # main() replaces it
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 70
    said = capsys.readouterr().err
    assert "ZeroDivisionError: of ours" in said
    assert "error: this is a bug in harness" in said
