"""Processes that are forked from one that has torch loaded, and when they aren't."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from harness.processes import descendants, hatchery, nursery, python
from harness.processes.nursery import Forked, Nursery
from tests.one_test import one_test
from tests.rare import rare

pytestmark = pytest.mark.cold
ECHO = """
import json, os, sys
torch = sys.modules.get("torch")
said = {"torch": torch is not None, "compiler": "torch._inductor.compile_fx" in sys.modules,
        "harness": "harness.measure" in sys.modules,
        "path": sys.path, "arguments": sys.argv, "folder": os.getcwd(),
        "mine": os.environ.get("MINE"), "session": os.getsid(0) == os.getpid(), "read": sys.stdin.readline()}
with os.fdopen(int(sys.argv[1]), "w") as replies:
    json.dump(said, replies)
print("printed")
sys.exit(3)
"""


@pytest.fixture(scope="module", autouse=True)
def adopting() -> None:
    descendants.adopt()  # as every command does


@pytest.fixture
def made() -> Iterator[Nursery]:
    with Nursery(python.own_root()) as one:
        yield one


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nurseries load nothing that takes seconds: what stands for torch touches no device."""
    compiler = tmp_path / "of_torch" / "_inductor" / "compile_fx.py"
    compiler.parent.mkdir(parents=True)
    compiler.touch()
    (tmp_path / "hatchery.py").write_text(
        "import runpy, sys, types\n"
        "sys.modules['torch'] = torch = types.ModuleType('torch')\n"
        f"torch.__path__ = [{str(tmp_path / 'of_torch')!r}]\n"
        "torch.cuda = types.SimpleNamespace(is_initialized=lambda: False)\n"
        f"runpy.run_path({hatchery.__file__!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(hatchery, "__file__", str(tmp_path / "hatchery.py"))


@pytest.fixture
def light_with_numpy(light: None) -> None:
    file = Path(hatchery.__file__)
    file.write_text(f"import numpy\n{file.read_text()}")


class Asked:
    """A process that is asked for: what it is given, and what it says."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        (folder / "echo.py").write_text(ECHO)
        self.folder = folder
        self.environment = dict(environment or python.environment())
        self.environment["PYTHONPATH"] = os.pathsep.join([str(folder), self.environment["PYTHONPATH"]])
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.read, self.write = os.pipe()

    def start(self, made: Nursery, module: str = "echo") -> Forked | None:
        command = python.command(module, [str(self.write)])
        started = made.start(command, self.environment, str(self.folder), self.log.fileno(), self.write)
        os.close(self.write)
        return started

    def said(self) -> str:
        with os.fdopen(self.read) as replies:
            return replies.read()


@pytest.mark.slow  # the tests below have what is forked and how it ends
def test_a_forked_process_is_as_python_would_start_it_with_torch_loaded(made: Nursery, tmp_path: Path) -> None:
    asked = Asked(tmp_path, {**python.environment(), "HARNESS_CACHE": str(tmp_path)})
    forked = asked.start(made)
    assert forked
    forked.stdin.write(b"hello\n")
    said = json.loads(asked.said())
    assert forked.wait(60) == 3
    assert (said["torch"], said["harness"], said["read"], said["session"]) == (True, True, "hello\n", True)
    assert (said["folder"], said["arguments"][1:]) == (str(tmp_path), [str(asked.write)])
    command = [sys.executable, "-P", "-c", "import sys; print(sys.path)"]
    plain = subprocess.run(command, env=asked.environment, capture_output=True, text=True, check=True).stdout
    assert {*eval(plain)} <= {*said["path"]}
    asked.log.seek(0)
    assert asked.log.read() == b"printed\n"
    assert forked.poll() == 3


@pytest.mark.usefixtures("light")
@one_test("compiler", [False, True])
def test_the_compiler_of_torch_is_loaded_where_it_is_asked_for(tmp_path: Path, compiler: bool) -> None:
    asked = Asked(tmp_path)
    with Nursery(None, compiler=compiler) as made:
        forked = asked.start(made)
        assert forked
        forked.stdin.close()
        assert json.loads(asked.said())["compiler"] is compiler
        forked.wait(60)


@pytest.mark.usefixtures("light")
def test_a_renewed_nursery_forks_from_another_process(tmp_path: Path) -> None:
    with Nursery(None) as made:
        forked = Asked(tmp_path).start(made)
        assert forked
        first = made._process
        made.renew()
        assert first
        assert first.returncode is not None, "it ends by itself where its socket is closed, or is killed"
        assert forked.poll() is None, "what was forked goes on"
        forked.stdin.close()
        assert forked.wait(60) == 3
        assert Asked(tmp_path).start(made)
        assert made._process not in (None, first)


@pytest.mark.usefixtures("light_with_numpy")
def test_a_process_that_would_find_another_module_is_not_forked(made: Nursery, tmp_path: Path) -> None:
    """Such as a numpy of one side's packages: the forked process would have the numpy that torch was loaded with."""
    (tmp_path / "numpy").mkdir()
    asked = Asked(tmp_path)
    assert asked.start(made) is None
    assert asked.said() == ""
    (tmp_path / "numpy").rmdir()
    assert Asked(tmp_path).start(made)
    (tmp_path / "sitecustomize.py").touch()
    assert Asked(tmp_path).start(made) is None


@pytest.mark.usefixtures("light")
def test_a_process_of_another_harness_is_not_forked_from_one_that_has_loaded_this(
    made: Nursery, tmp_path: Path
) -> None:
    assert Asked(tmp_path, python.environment(tmp_path)).start(made) is None


@pytest.mark.slow  # the tests above have other modules and another harness
@pytest.mark.usefixtures("light")
def test_a_process_with_other_variables_is_not_forked(made: Nursery, tmp_path: Path) -> None:
    """The loader of libraries and torch have read theirs when the nursery began. Others are read by nobody so early."""
    environment = python.environment()
    assert Asked(tmp_path, {**environment, "PWD": "/of/the/base", "TORCH_EXTENSIONS_DIR": "/of/the/base"}).start(made)
    for name in ("LD_LIBRARY_PATH", "OMP_NUM_THREADS", "PYTHONUSERBASE"):
        assert Asked(tmp_path, {**environment, name: "7"}).start(made) is None


@pytest.mark.usefixtures("light")
def test_what_was_forked_goes_on_without_the_nursery_and_ends_as_a_started_process(tmp_path: Path) -> None:
    with Nursery(None) as made:
        forked = Asked(tmp_path).start(made)
        assert forked
        assert made._process
        made._process.kill()
        made._process.wait()
        assert Asked(tmp_path).start(made) is None
    assert forked.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        forked.wait(0.01)
    forked.send_signal(signal.SIGTERM)
    assert forked.wait(60) == -signal.SIGTERM
    forked.send_signal(signal.SIGTERM)


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(
    ("closing", "end"), [rare("", 0), rare("sys.stdout.close()", 0), rare("sys.exit(None)", 0), ("1 / 0", 1)]
)
def test_what_a_process_registers_for_its_end_is_called(tmp_path: Path, closing: str, end: int) -> None:
    """Also where Python's own end, which takes long with torch loaded, is left out."""
    (tmp_path / "script.py").write_text(
        "import atexit, os, sys, threading, time\n"
        "write = os.fdopen(int(sys.argv[1]), 'w')\n"
        "atexit.register(lambda: write.write('at exit') and write.flush())\n"
        "thread = threading.Thread(target=lambda: time.sleep(0.1) or write.write('thread, '))\n"
        "thread.start()\n"
        f"print('printed')\n{closing}\n"
    )
    asked = Asked(tmp_path)
    with Nursery(None) as made:
        forked = asked.start(made, "script")
        assert forked
        assert asked.said() == "thread, at exit"
        assert forked.wait(60) == end
    asked.log.seek(0)
    assert b"printed" in asked.log.read() or closing == "sys.stdout.close()"


@pytest.mark.usefixtures("light")
def test_what_was_loaded_before_the_fork_is_not_taken_apart_in_each_process(tmp_path: Path) -> None:
    """Torch's libraries of operators would be: the forked process would copy the memory that they share, for 50 ms."""
    file = Path(hatchery.__file__)
    loaded = "import weakref\nkept = type('Library', (), {})()\nweakref.finalize(kept, print, 'apart')\n"
    file.write_text(loaded + file.read_text())
    (tmp_path / "script.py").write_text("print('printed')")
    asked = Asked(tmp_path)
    with Nursery(None) as made:
        forked = asked.start(made, "script")
        assert forked
        assert forked.wait(60) == 0
    asked.log.seek(0)
    assert asked.log.read() == b"printed\n"


@pytest.mark.usefixtures("light")
def test_a_process_that_nobody_here_adopts_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Nursery(None) as made:
        assert Asked(tmp_path).start(made)
        asked = Asked(tmp_path)
        monkeypatch.setattr(nursery, "_parent", lambda _: 1)
        assert asked.start(made) is None
        assert asked.said() == ""
        assert Asked(tmp_path).start(made) is None


@pytest.mark.usefixtures("light")
def test_a_program_that_adopts_nothing_starts_no_nursery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a notebook: it couldn't wait for what is forked."""
    program = "from harness.processes import descendants as d; a = d.adopts(); d.adopt(); print(a, d.adopts())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"
    monkeypatch.setattr(descendants, "adopts", lambda: False)
    with Nursery(None) as made:
        assert Asked(tmp_path).start(made) is None
        assert not made._process


def test_on_a_system_that_tells_of_no_process_nothing_is_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", unknown)
    with Nursery(None) as made:
        assert Asked(tmp_path).start(made) is None
        assert not made._process


def test_without_torch_nothing_is_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hatchery.py").write_text("raise SystemExit(1)\n")
    monkeypatch.setattr(hatchery, "__file__", str(tmp_path / "hatchery.py"))
    with Nursery(None) as made:
        assert Asked(tmp_path).start(made) is None
