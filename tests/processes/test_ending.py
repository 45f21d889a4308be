"""A signal to a command ends all that the command has started, and its exit status tells of the signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.processes import descendants, ending
from harness.processes.ending import Ending

ROOT = Path(__file__).parents[2]
STARTS = """
import os, subprocess, sys, time
SLEEP = [sys.executable, '-c', 'import time; time.sleep(600)']
def starts():
    plain = subprocess.Popen(SLEEP)
    own_session = subprocess.Popen(SLEEP, start_new_session=True, env={}, cwd='/')
    if not os.fork():  # a daemon: it has a session of its own, and no parent
        os.setsid()
        if os.fork():
            os._exit(0)
        open('daemon', 'w').write(str(os.getpid()))
        time.sleep(600)
    os.wait()
    while not (os.path.exists('daemon') and open('daemon').read()):
        time.sleep(0.01)
    numbers = [os.getpid(), plain.pid, own_session.pid, int(open('daemon').read())]
    open('numbers.tmp', 'w').write(' '.join(map(str, numbers)))
    os.rename('numbers.tmp', 'numbers')
    time.sleep(600)
"""
"""Starts processes, and hangs."""
COMMAND = (
    STARTS
    + """
from harness.processes.ending import Ending
with Ending():
    starts()
"""
)
PLUGIN = (
    STARTS
    + """
from harness.ops import Op
OP = Op('mine', 'y = x', {'N': 'elements'}, reference=lambda ctx, t: {})
OP.variant('one', 'one', devices=('any',))(lambda ctx: None)
if '--replies' in sys.argv:
    starts()
"""
)
"""A plug-in that starts processes where it is to be measured."""

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere nothing tells of processes that have left their group"
)


def ended_by(
    signals: list[signal.Signals], command: list[str], folder: Path, watched: Callable[[int], Callable[..., bool]]
) -> tuple[int, bytes]:
    """The exit status of a command and what it said, after signals. All that it has started has ended, too."""
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        numbers = folder / "numbers"
        while not numbers.exists():
            assert process.poll() is None
            time.sleep(0.01)
        ended = [watched(int(number)) for number in numbers.read_text().split()]
        for number in signals:
            process.send_signal(number)
        _, said = process.communicate()
    # Killed before the command has ended; the kernel may take a moment.
    assert all(one(60.0) for one in ended)
    return process.returncode, said


@pytest.mark.cold
@on_linux
def test_all_below_a_command_ends_with_it(
    tmp_path: Path, watched: Callable[[int], Callable[..., bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert ended_by([signal.SIGTERM], [sys.executable, "-c", COMMAND], tmp_path, watched) == (143, b"")


@pytest.mark.slow  # the test above has the processes, the next one two signals, cli/test_runs.py a command
@pytest.mark.cold
@on_linux
@pytest.mark.parametrize("signals", [[signal.SIGINT] * 2, [signal.SIGTERM], [signal.SIGHUP]], ids=str)
def test_nothing_goes_on_after_a_signal(
    tmp_path: Path, watched: Callable[[int], Callable[..., bool]], signals: list[signal.Signals]
) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    command = [sys.executable, "-m", "harness", "check", "--ops=mine.py", "--device=cpu"]
    status, said = ended_by(signals, command, tmp_path, watched)
    assert status == 128 + signals[0]
    assert b"Traceback" not in said


LEAVES = """
import os, signal, subprocess, sys
from types import SimpleNamespace
from harness.processes import descendants, rank
SERVER = "subprocess.Popen(['sleep', '600'], start_new_session=True)"
CHILD = f"import subprocess, sys; print({SERVER}.pid, flush=True); sys.stdin.read()"
def started(begin, environment, log, sink):
    return subprocess.Popen([sys.executable, '-c', CHILD], stdin=-1, stdout=-1, bufsize=0, start_new_session=True)
descendants.adopt()
rank._started = started
meeting = SimpleNamespace(environment=dict)
made = rank.Rank(0, SimpleNamespace(local=None, root=None, around=None, meeting=meeting))
left = int(made._process.stdout.readline())
made.close_input()
made.wait(1e9)
assert left in descendants.below(os.getpid())
made.kill()
_, ended = os.waitpid(left, 0)
assert os.WTERMSIG(ended) == signal.SIGKILL
"""
"""A process that measures ends, and what it has started goes on."""


@pytest.mark.cold
@on_linux
def test_what_a_process_leaves_behind_ends_before_the_next_one_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server with a session of its own, which would make both sides of a gate slow alike."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    subprocess.run([sys.executable, "-c", LEAVES], check=True, timeout=60)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Signals are heard as they were before, after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class EndedError(Exception):
    """In place of the end of this process."""


def test_a_second_signal_kills_what_a_command_waits_for_and_a_third_one_the_command(
    handlers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []

    def leave(status: int) -> None:
        done.append(status)
        raise EndedError

    monkeypatch.setattr(descendants, "adopt", lambda: None)
    monkeypatch.setattr(descendants, "end", done.append)
    monkeypatch.setattr(ending, "_exit", leave)
    own = os.getpid()
    made = Ending().__enter__()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert done == []
    signal.raise_signal(signal.SIGINT)
    assert done == [own]
    with pytest.raises(EndedError):
        signal.raise_signal(signal.SIGHUP)
    assert done == [own, own, 143]
    with pytest.raises(SystemExit, match="143"):
        made.__exit__(None, None)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("raised", "status", "swept"),
    [
        (SystemExit(143), 143, True),
        (SystemExit(2), 2, False),
        (SystemExit(), None, False),
        (KeyboardInterrupt, 130, True),
    ],
)
def test_an_end_without_a_signal_keeps_its_status(
    handlers: None, monkeypatch: pytest.MonkeyPatch, raised: BaseException, status: int | None, swept: bool
) -> None:
    """Commands that hear SIGTERM themselves end with 143."""
    done: list[int] = []
    monkeypatch.setattr(descendants, "adopt", lambda: None)
    monkeypatch.setattr(descendants, "end", done.append)
    with pytest.raises(SystemExit) as ended, Ending():
        raise raised
    assert ended.value.code == status
    assert bool(done) == swept


def test_what_was_ignored_stays_ignored(handlers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As nohup and a shell's `&` have it."""
    monkeypatch.setattr(descendants, "adopt", lambda: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Ending() as made:
        signal.raise_signal(signal.SIGHUP)
    assert made.number == 0


def test_without_proc_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.getpid() in descendants.below(os.getppid())
    monkeypatch.setattr(sys, "platform", "darwin")
    assert descendants.below(os.getppid()) == set()
