"""A user's script under the profiler runs as it does without."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.cli import profile_program
from harness.errors import MachineError, UsageError
from harness.profile import _script
from harness.profile import torch as tool
from harness.profile._steps import Window

SEEN = "import os, sys, json; print(json.dumps([__name__, __file__, sys.argv, sys.path[0], os.environ.get('TOLD')]))\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and a recording that writes one word, since torch takes seconds to load."""

    @contextmanager
    def recorded(path: Path, window: Window) -> Iterator[None]:
        assert window == (7, 3)
        try:
            yield
        finally:
            path.write_text("written")

    monkeypatch.setattr(_script, "recording", recorded)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(here: Path, *words: str) -> int:
    code = _script.main([str(here / "trace"), "", "7", "3", *words])
    assert (here / "trace").read_text() == "written"
    return code


def test_a_script_sees_what_it_sees_without_us(here: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("TOLD", "ours")
    monkeypatch.setenv(_script.OWN, json.dumps({"TOLD": "the user's"}))
    (here / "part").mkdir()
    (here / "part" / "train.py").write_text("import beside\n" + SEEN)
    (here / "part" / "beside.py").write_text("")
    assert run(here, "part/train.py", "--epochs", "3") == 0
    file = str(here / "part" / "train.py")
    assert json.loads(capsys.readouterr().out) == [
        "__main__", file, [file, "--epochs", "3"], str(here / "part"), "the user's",
    ]  # fmt: skip
    assert _script.OWN not in os.environ


def test_a_module_sees_what_it_sees_without_us(here: Path, capsys) -> None:
    (here / "package_of_test").mkdir()
    (here / "package_of_test" / "__main__.py").write_text(SEEN)
    assert run(here, "-m", "package_of_test", "-x") == 0
    file = str(here / "package_of_test" / "__main__.py")
    assert json.loads(capsys.readouterr().out)[:4] == ["__main__", file, [file, "-x"], str(here)]


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
    ],
)
def test_exit_codes_are_pythons(here: Path, capsys, ending: str, code: int, said: str) -> None:
    (here / "train.py").write_text(f"import sys\n{ending}\n")
    assert run(here, "train.py") == code
    assert said in capsys.readouterr().err


def test_a_traceback_has_the_frames_of_the_script_alone(here: Path, capsys) -> None:
    (here / "train.py").write_text("def step():\n    raise ValueError('mine')\nstep()\n")
    assert run(here, "train.py") == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "Traceback (most recent call last):"
    assert told[1] == f'  File "{here / "train.py"}", line 3, in <module>'
    assert told[-1] == "ValueError: mine"
    assert not any("runpy" in line or "_script" in line for line in told)


def test_a_script_that_is_no_python_has_no_frames(here: Path, capsys) -> None:
    (here / "train.py").write_text("def :\n")
    assert run(here, "train.py") == 1
    told = capsys.readouterr().err
    assert "SyntaxError" in told
    assert "runpy" not in told


def test_a_trace_that_cant_be_written_hides_no_exit_code(here: Path, capsys) -> None:
    (here / "train.py").write_text("import sys; sys.exit(7)\n")
    assert _script.main([str(here / "no folder" / "trace"), "", "7", "3", "train.py"]) == 7
    assert "couldn't be written" in capsys.readouterr().err


# ---- The process that the command line starts.


def test_a_script_that_ctrl_c_ends_has_a_timeline(tmp_path: Path, capfd) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal, torch\n"
        "print([os.environ.get(name) for name in ('PYTHONSAFEPATH', 'HARNESS_OWN', 'HARNESS_IMPORTS')])\n"
        "x = torch.ones(64, 64)\n"
        "for _ in range(3): x = x @ x\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print('not here')\n"
    )
    found = tool.of_script(["python", str(tmp_path / "train.py")], tmp_path / "out")
    told = capfd.readouterr()
    assert found.exit_code == 130
    assert "KeyboardInterrupt" in told.err
    assert told.out == f"{[os.environ.get('PYTHONSAFEPATH'), None, None]}\n"
    assert found.traces == (tmp_path / "out" / tool.TRACE,)
    assert {kernel.name: kernel.count for kernel in tool.timeline(found.traces[0]).kernels}["aten::mm"] == 3


def test_a_script_that_forks_has_a_timeline(tmp_path: Path, capfd) -> None:
    """The process that it forked ends as without a profiler: with its exit code, and what is registered to run then."""
    (tmp_path / "train.py").write_text(
        "import atexit, os, sys, torch\n"
        "torch.set_num_threads(1)\n"  # OpenMP's threads don't live on in a child, which would wait for them
        "x = torch.ones(64, 64) @ torch.ones(64, 64)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    atexit.register(print, 'the child ends')\n"
        "    x @ x\n"
        "    sys.exit(3)\n"
        "print('ended with', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    found = tool.of_script([str(tmp_path / "train.py")], tmp_path / "out")
    told = capfd.readouterr()
    assert told.out == "the child ends\nended with 3\n"
    assert "recorded: the whole program" in told.err
    assert found.exit_code == 0
    assert {kernel.name: kernel.count for kernel in tool.timeline(found.traces[0]).kernels}["aten::mm"] == 1


def test_a_script_that_leaves_no_trace_is_told(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / tool.TRACE).write_text("of an earlier run")
    monkeypatch.setattr(tool, "_exit_code", lambda started, environment: -9)
    with pytest.raises(MachineError, match="exit code -9"):
        tool.of_script([str(tmp_path / "train.py")], tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no script"),
        (["python"], "no script"),
        (["python", "-m"], "no script"),
        (["python", "-c", "print()"], "no script"),
        (["python", "-I", "train.py"], "no script"),
        (["python", "-W"], "no script"),
        (["bash", "run.sh"], "no script"),
        (["python", "absent.py"], "absent.py: no such file"),
        (["/elsewhere/bin/python3", "train.py"], "another Python"),
    ],
)
def test_what_is_no_script_of_this_python_is_refused(words: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        tool.of_script(words, tmp_path)
    assert raised.value.advice


@pytest.mark.parametrize(
    "options", [["-u"], ["-uB", "-O"], ["-W", "error", "-Xfaulthandler"], ["-X", "dev", "-Wignore::UserWarning"]]
)
@pytest.mark.parametrize("several", [False, True])
def test_a_script_keeps_pythons_options(options: list[str], several: bool, tmp_path: Path, monkeypatch) -> None:
    commands = []

    def failing(started, environment):
        commands.append(started)
        return 1

    monkeypatch.setattr(tool, "_exit_code", failing)
    (tmp_path / "train.py").write_text("")
    program = ["-m", "torch.distributed.run", "train.py"] if several else [str(tmp_path / "train.py")]
    with pytest.raises(MachineError):
        tool.of_script(["python", *options, *program, "-u"], tmp_path)
    (started,) = commands
    assert started[: 1 + len(options)] == [sys.executable, *options]
    assert started[-2:] == [program[-1], "-u"]


def test_a_program_that_calls_nothing_of_torch_is_told_of_ranks(tmp_path: Path, monkeypatch) -> None:
    trace = tmp_path / tool.TRACE
    trace.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    monkeypatch.setattr(tool, "of_script", lambda *_: tool.ScriptProfile((trace,), 0))
    with pytest.raises(MachineError, match=r"spawn\.py: ended with exit code 0 and called nothing of torch") as raised:
        profile_program.run("torch", ["python", "spawn.py"], tmp_path, (None, None, None), refused=False)
    assert "torchrun --nproc-per-node 2" in raised.value.advice
    monkeypatch.setattr(tool, "of_script", lambda *_: tool.ScriptProfile((trace,), 1))
    with pytest.raises(MachineError, match="ended with exit code 1") as raised:
        profile_program.run("torch", ["python", "spawn.py"], tmp_path, (None, None, None), refused=False)
    assert raised.value.advice == "try it first without the profiler"
