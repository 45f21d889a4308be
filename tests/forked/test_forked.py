"""A forked process is to its parent what a process that Python has started is, but has most modules loaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

import harness.report
from tests.forked import preloaded
from tests.forked.client import WORKER
from tests.rare import rare

TELLS = """
import atexit, json, os, signal, sys
atexit.register(print, "at the end")
pipe = int(sys.argv[1])
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "folder": os.getcwd(), "variables": dict(os.environ), "mask": os.umask(0),
    "given": sys.stdin.read(), "name": __name__, "file": __file__, "main": list(sys.modules["__main__"].__dict__) != [],
    "signals": [str(signal.getsignal(number)) for number in range(1, signal.SIGSYS + 1)],
    "out": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.write_through],
    "err": [sys.stderr.encoding, sys.stderr.line_buffering, sys.stderr.write_through],
    "inheritable": os.get_inheritable(pipe), "files": sorted(map(int, os.listdir("/proc/self/fd"))),
}))
os.write(pipe, b"by another pipe")
print("wrong", file=sys.stderr)
"""
HERE = Path(__file__).parent
HAS_TORCH = "import sys; print('torch' in sys.modules, 'harness' in sys.modules)"


@pytest.fixture
def script(tmp_path):
    return tmp_path / "script.py"


def ran(arguments, **options):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def real(script):
    return ran([script], env=os.environ | {"FORKED_COLD": "1"})


@pytest.mark.parametrize(
    ("by", "options"),
    [
        ("module", ["-u"]), rare("script", ["-P"]),
        rare("script", []), rare("script", ["-u"]), rare("module", []), rare("module", ["-P"]),
    ],
)  # fmt: skip
def test_it_finds_all_as_a_real_one_does(script, tmp_path, options, by):
    script.write_text(TELLS)
    (tmp_path / "elsewhere").mkdir()
    named = ["-m", "script"] if by == "module" else ["../script.py"]
    paths = os.pathsep.join(["relative", str(tmp_path)])
    found = []
    for how in ({}, {"FORKED_COLD": "1"}):
        reading, writing = os.pipe()
        done = ran(
            [*options, *named, writing, "-x", "ä"],
            cwd=tmp_path / "elsewhere",
            env=os.environ | {"PYTHONPATH": paths, "MINE": "ü"} | how,
            input="given\n",
            pass_fds=[writing],
            umask=0o27,
        )
        os.close(writing)
        assert done.returncode == 0, done.stderr
        told, last = done.stdout.splitlines()
        with os.fdopen(reading) as pipe:
            found.append(json.loads(told) | {"last": last, "errors": done.stderr, "pipe": pipe.read()})
    assert found[1]["variables"].pop("FORKED_COLD")
    assert found[0] == found[1]
    assert [found[0][name] for name in ("last", "errors", "pipe")] == ["at the end", "wrong\n", "by another pipe"]


def test_it_has_torch_loaded_and_nothing_of_the_harness(script):
    script.write_text(HAS_TORCH)
    assert ran([script]).stdout == "True False\n"
    assert real(script).stdout == "False False\n"
    assert ran(["-c", HAS_TORCH]).stdout == "False False\n"


@pytest.mark.parametrize(
    "code",
    [
        rare("raise SystemExit('no luck')"),
        rare("raise KeyboardInterrupt"),
        "import os; os.abort()",
        rare("raise SystemExit"),
        rare("raise SystemExit(7)"),
        rare("raise ValueError('no luck')"),
        rare("import os; os._exit(3)"),
        rare("import os; os.kill(os.getpid(), 9)"),
        rare("import ctypes; ctypes.string_at(0)"),
        "import threading; threading.Timer(0, print, ['in the end']).start()",
    ],
)
def test_it_ends_as_a_real_one_does(script, code):
    script.write_text(code)
    found, wanted = ran([script]), real(script)
    assert (found.returncode, found.stdout) == (wanted.returncode, wanted.stdout)
    assert found.stderr.splitlines()[-1:] == wanted.stderr.splitlines()[-1:]


WAITS = """
woken, wakes = os.pipe()
os.set_blocking(wakes, False)
signal.set_wakeup_fd(wakes)
print(os.getpid(), flush=True)
while True:
    select.select([woken], [], [])
    os.read(woken, 1)
"""


def waiting(script, code=""):
    """A process that says its number and waits for a signal.

    A signal wakes it by a pipe. In signal.pause() it would sleep on if the signal came just before.
    """
    script.write_text(f"import os, select, signal, sys\n{code}\n{WAITS}\n")
    return subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_a_signal_reaches_it(script):
    with waiting(script, "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))") as process:
        assert int(process.stdout.readline()) != process.pid
        process.terminate()
        assert process.wait() == 5
    with waiting(script) as process:
        process.stdout.readline()
        process.terminate()
        assert process.wait() == -signal.SIGTERM


def test_it_dies_with_what_stands_for_it(script):
    children = "os.fork()"
    with waiting(script, children) as process:
        assert process.stdout.readline()
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.read()  # ends when it and its child have: they hold the pipe open
        assert process.wait() == -signal.SIGKILL


@pytest.mark.slow  # most tests of commands start processes that start others
def test_it_starts_others_like_itself(script, tmp_path):
    (tmp_path / "inner.py").write_text(HAS_TORCH)
    script.write_text("import subprocess, sys; subprocess.run([sys.executable, sys.argv[1]], check=True)")
    assert ran([script, tmp_path / "inner.py"]).stdout == "True False\n"


def test_the_server_ends_with_the_session_and_takes_all_along(script, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    script.write_text("import os, signal\nos.fork()\nprint(end='.', flush=True)\nwhile True: signal.pause()\n")
    code = f"""if True:
        import sys, types
        sys.path.insert(0, {str(HERE)!r})
        import server
        server.load = lambda: types.SimpleNamespace(install=lambda run: None)  # what takes seconds
        sys.argv = ["server.py", {str(home)!r}]
        server.main()
    """
    own = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}  # which torch would be told
    server = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout.readline() == b"ready\n"
    command = [sys.executable, "-I", HERE / "client.py", home, script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=own) as process:
        assert process.stdout.read(2) == b".."
        server.communicate()
        assert process.stdout.read() == b""  # both have ended
        assert process.wait() == 255
    assert server.returncode == 0


@pytest.mark.slow  # server.py's is_alone() is asked for every process
def test_a_server_with_threads_forks_nothing(script, tmp_path):
    """A process with several threads can't be forked: a lock that another thread holds would never be free."""
    home = tmp_path / "home"
    home.mkdir()
    script.write_text(HAS_TORCH)
    code = f"""if True:
        import runpy, sys, threading, time
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        sys.argv = ["server.py", {str(home)!r}]
        runpy.run_path({str(HERE / "server.py")!r}, run_name="__main__")
    """
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout.readline() == b"ready\n"
        assert ran(["-I", HERE / "client.py", home, script]).stdout == "False False\n"
        server.communicate()


@pytest.mark.parametrize(("forked", "has"), [({"FORKED_WORKERS": "1"}, "True False\n"), ({}, "False False\n")])
def test_workers_are_forked_where_no_gpu_is_used(monkeypatch, forked, has):
    monkeypatch.delenv("FORKED_WORKERS", raising=False)
    given = repr(HAS_TORCH) + "\n"
    assert ran(WORKER, input=given, env=os.environ | forked).stdout == has


def test_workers_have_what_they_collect(tmp_path):
    home, tests = tmp_path / "home", tmp_path / "tests"
    home.mkdir()
    tests.mkdir()
    for name, text in (("a", "import nothing_such"), ("b", "import pytest\npytest.skip(allow_module_level=True)")):
        (tests / f"test_{name}.py").write_text(text)
    (tests / "test_given.py").write_text("print('nobody reads this')")
    options = ["--import-mode=importlib", f"--rootdir={tests}", f"--confcutdir={tests}"]
    command = [sys.executable, "-P", HERE / "nest.py", home, tests, *options]
    given = repr("import sys; print('test_given' in sys.modules)") + "\n"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as nest:
        assert nest.stdout.readline() == b"ready\n"
        worker = ["-I", HERE / "client.py", home, *WORKER]
        assert ran(worker, input=given, env=os.environ | {"FORKED_WORKERS": "1"}).stdout == "True\n"
        assert nest.communicate() == (b"", None)


@pytest.mark.parametrize(
    ("asked", "left_out"),
    [
        ("not gpu and not slow", {"gpu", "slow"}),
        ("not gpu and slow", {"gpu"}),
        ("not gpu", {"gpu"}),
        ("gpu and not alone", set()),
    ],
)
def test_by_what_is_asked_of_marks_tests_that_need_a_gpu_or_are_slow_are_left_out(pytestconfig, asked, left_out):
    """Their making, and torch in each worker, would take a minute of make test's time."""
    conftest = pytestconfig.pluginmanager.get_plugin(str(HERE.parent / "conftest.py"))
    assert conftest._left_out(types.SimpleNamespace(getoption={"markexpr": asked}.get)) == left_out


def test_make_asks_for_tests_in_a_way_that_is_known():
    makefile = (HERE.parents[1] / "Makefile").read_text(encoding="utf-8")
    assert '-m "not gpu and $(SLOW)"' in makefile


@pytest.mark.cold
def test_a_test_that_is_marked_starts_real_ones(script):
    script.write_text(HAS_TORCH)
    assert ran([script]).stdout == "False False\n"


SAYS = """
import sys
import types
print("harness.processes.child" in sys.modules)
import harness.report
print("harness.processes.child" in sys.modules, "harness.report.charts" in sys.modules, harness.report.__file__)
"""


def test_it_has_the_harness_loaded_where_it_would_load_the_same_files(script, tmp_path):
    script.write_text(SAYS)
    for real_or_not, loaded in (({}, "True"), ({"FORKED_COLD": "1"}, "False")):
        said = ran([script], env=os.environ | real_or_not).stdout.split()
        assert said == ["False", loaded, "False", harness.report.__file__]
    other = tmp_path / "harness" / "report.py"
    other.parent.mkdir()
    other.touch()
    (tmp_path / "harness" / "__init__.py").touch()
    assert ran([script]).stdout.split() == ["False", "False", "False", str(other)]


def test_it_has_read_the_files_of_the_harness(script):
    script.write_text(
        "from harness import comments, source\nprint(comments.without_comments.cache_info().currsize > 30)"
    )
    assert ran([script]).stdout == "True\n"
    assert real(script).stdout == "False\n"


@pytest.mark.slow  # many tests run harness.processes.child
def test_a_loaded_module_that_is_run_runs_anew():
    done = ran(["-m", "harness.processes.child"], input="")
    assert "RuntimeWarning" not in done.stderr
    assert done.returncode == ran(["-c", "import harness.processes.child as c; c.main()"], input="").returncode


def test_what_loaded_modules_have_cached_is_forgotten():
    module = types.ModuleType("module")
    exec("from functools import cache\n@cache\ndef f(x): return x\nclass C:\n f = cache(lambda self: 1)", vars(module))
    module.f(1), module.C().f()
    preloaded.forget([module])
    assert [function.cache_info().currsize for function in (module.f, module.C.f)] == [0, 0]
