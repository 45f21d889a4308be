"""A measuring process spoken to directly, without its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from harness import source, store
from harness.errors import Exit
from harness.limits import Needs
from harness.model import Case, Job, Limits, Scenario, StreamPoint
from harness.processes import child, messages, rank
from harness.processes.rank import Beginning, Meeting
from tests.one_test import one_test

ROOT = Path(store.__file__).parents[2]
PLUGINS = [ROOT / "tests" / "plugins" / name for name in ("faults.py", "small.py")]
READY = messages.Ready(messages.VERSION, str(ROOT), source.digest(PLUGINS))


class Bare:
    """A measuring process with its standard input and its pipe of replies."""

    def __init__(self, *arguments: str) -> None:
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "harness.processes.child", "--replies", str(writing), *arguments]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[writing]
        )
        os.close(writing)
        self._replies = os.fdopen(reading, "rb")

    def ask(self, question: messages.Question) -> None:
        assert self.process.stdin
        self.process.stdin.write(messages.encode(question))
        self.process.stdin.flush()

    def hear(self) -> messages.Reply:
        return messages.decode_reply(self._replies.readline())

    def silence(self) -> bool:
        return self._replies.read() == b""

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._replies.close()


@pytest.mark.parametrize(
    ("ends", "error"),
    # With its exit code the process would end as one that was told to.
    [(lambda: sys.exit(0), "SystemExit: 0"), (lambda: 1 / 0, "ZeroDivisionError: division by zero")],
)
def test_a_process_leaves_after_what_a_variant_raises(
    capsys: pytest.CaptureFixture[str], ends: Callable[[], object], error: str
) -> None:
    case = Case("fault", "quits", "float32", (("N", 8),), device="cpu")
    said: list[messages.Reply] = []

    class Quitting:
        def answer(self, _: messages.Question) -> messages.Reply:
            ends()
            raise AssertionError("the variant has returned")

    with pytest.raises(SystemExit) as caught:
        child._serve(Quitting(), messages.Measure(Job(case)), said.append)
    assert caught.value.code == 1
    [measured] = said
    assert (measured.leaving, measured.measurement.status) == (True, "crashed")
    assert error in measured.measurement.error
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("compiler", [True, False])
def test_a_process_loads_torchs_compiler_if_it_is_told_to_even_one_that_is_broken(
    monkeypatch: pytest.MonkeyPatch, compiler: bool
) -> None:
    loaded: list[str] = []

    def broken(name: str) -> None:
        loaded.append(name)
        raise RuntimeError("no triton here")

    monkeypatch.setattr(child, "importlib", SimpleNamespace(import_module=broken))
    for name in ("devices", "intact", "ranks", "Catalogue", "gc"):
        monkeypatch.setattr(child, name, MagicMock())
    child.Worker("cpu", (), lambda _: None, compiler=compiler)
    assert loaded == ["torch._inductor.compile_fx"] * compiler


def test_only_a_process_that_is_to_load_the_compiler_is_told_so() -> None:
    begin = Beginning("cpu", (Path("mine.py"),), Meeting(1, 1, "", 7, None))
    assert "--compiler" not in rank._command(begin, 3)
    assert rank._command(replace(begin, compiler=True), 3)[-3:] == ["--ops", "mine.py", "--compiler"]


def test_only_a_process_that_is_to_wait_is_told_so() -> None:
    """Another revision may not know the option."""
    begin = Beginning("cpu", (), Meeting(1, 1, "", 7, None))
    assert "--waits" not in rank._command(begin, 3)
    assert rank._command(replace(begin, waits=True), 3)[-1] == "--waits"


@pytest.mark.parametrize(("said", "goes_on"), [("\n", True), ("", False)])
def test_a_process_that_waits_goes_on_by_a_line_and_not_at_the_end_of_its_input(
    monkeypatch: pytest.MonkeyPatch, said: str, goes_on: bool
) -> None:
    """It does nothing before the line but load torch: no code of a side runs, and none is read for the digest."""
    log: list[object] = []
    fakes = {
        "_tie_to_parent": lambda: None,
        "gc": MagicMock(),
        "importlib": SimpleNamespace(import_module=log.append),
        "_Pipe": lambda _: SimpleNamespace(send=lambda reply: log.append(reply.kind), number=0),
        "source": SimpleNamespace(digest=lambda ops: log.append("digest")),
        "UsedFiles": lambda trees, before: log.append(("listens", child in before)),
        "Worker": lambda *_: log.append("worker"),
        "Ready": lambda *_: SimpleNamespace(kind="ready"),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(child, name, fake)
    monkeypatch.setattr(sys, "stdin", StringIO(said))
    assert child.main(["--device=cpu", "--replies=3", "--listen", "/tree", "--waits"]) == 0
    rest = ["digest", ("listens", True), "worker", "ready"]
    assert log == ["torch", "progress", *(rest if goes_on else [])]


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Bare]]:
    started: list[Bare] = []

    def make(*arguments: str) -> Bare:
        started.append(Bare(*arguments))
        return started[-1]

    yield make
    for worker in started:
        worker.end()


@pytest.fixture(scope="module")
def worker(start: Callable[..., Bare]) -> Iterator[Bare]:
    """A measuring process that is ready. It ends when its standard input is closed."""
    made = start("--device", "cpu", "--ops", *map(str, PLUGINS))
    assert made.hear() == READY
    yield made
    assert made.process.stdin
    made.process.stdin.close()
    assert made.process.wait(10) == 0


@pytest.mark.slow  # test_runner.py and test_team.py have such processes
def test_a_process_measures_one_question_after_the_other(worker: Bare, job: Callable[..., Job]) -> None:
    worker.process.send_signal(signal.SIGINT)  # Ctrl-C is the parent's affair
    worker.ask(messages.Measure(job("fine"), process=3, number=7))
    answer = worker.hear()
    assert answer.number == 7
    assert isinstance(answer, messages.Measured)
    assert (answer.measurement.status, answer.measurement.process, answer.leaving) == ("ok", 3, False)

    worker.ask(messages.Measure(job("uncompilable"), process=3))
    answer = worker.hear()
    assert isinstance(answer, messages.Measured)
    assert (answer.measurement.status, answer.measurement.process, answer.leaving) == ("crashed", 3, False)

    worker.ask(messages.MeasureLimits(Needs(), fresh=True, number=8))
    heard = [worker.hear()]
    while isinstance(heard[-1], messages.Progress):
        heard.append(worker.hear())
    *progress, measured = heard
    assert isinstance(measured, messages.LimitsMeasured)
    assert measured.limits.peak
    assert [p.share for p in progress if isinstance(p, messages.Progress)] == [0.0, 0.5]
    assert {reply.number for reply in heard} == {8}

    worker.ask(messages.MeasureLimitsAgain(measured.limits))
    again = worker.hear()
    assert isinstance(again, messages.LimitsMeasured)
    assert again.limits.points == measured.limits.points
    assert again.limits.end


@pytest.mark.slow  # the first test has that it leaves
def test_a_process_leaves_after_an_exception(start: Callable[..., Bare], job: Callable[..., Job]) -> None:
    worker = start("--device", "cpu", "--ops", *map(str, PLUGINS))
    assert worker.hear() == READY
    worker.ask(messages.Measure(job("raises")))
    answer = worker.hear()
    assert isinstance(answer, messages.Measured)
    assert (answer.measurement.status, answer.leaving) == ("crashed", True)
    assert worker.silence()
    assert worker.process.wait(10) == 1


def test_a_forked_copy_of_a_process_answers_nothing() -> None:
    """A variant may fork and let the copy go on. Its answer would be taken for the answer to the next question."""
    replies, sink = os.pipe()
    pipe = child._Pipe(sink)
    if (copy := os.fork()) == 0:
        pipe.send(messages.Ready(messages.VERSION, "the copy"))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 1
    pipe.send(messages.Ready(messages.VERSION, "the process"))
    assert messages.decode_reply(os.read(replies, 4096)) == messages.Ready(messages.VERSION, "the process")
    os.close(replies)
    pipe._file.close()


def test_a_process_tells_what_its_code_knows(worker: Bare, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("title: t\nop: copy\nshapes: [{N: 8}]\ndtypes: [float32]\n")
    bad.write_text("title: t\nop: gone\nshapes: [{N: 8}]\n")
    known = Job(Case("copy", "eager", "float32", (("N", 8),), device="cpu"))
    dropout = Job(Case("dropout", "eager", "float32", (("N", 8),), (("p", 0.5),), device="cpu"))
    others = [
        replace(known.case, op="gone"),
        replace(known.case, variant="gone"),
        replace(known.case, dtype="int8"),
        replace(known.case, shape=(("N", 8), ("M", 8))),
        replace(known.case, variant="memcpy"),  # not on a CPU
        replace(known.case, choices=(("p", 0.5),)),
        replace(dropout.case, choices=(("p", 1.5),)),
        replace(dropout.case, choices=(("p", 0.5), ("layout", "nhwc"))),
    ]
    whole = Job(replace(dropout.case, choices=()))  # of a code whose op had no choice yet: it is at its default
    together = Job(replace(known.case, world=2))
    worker.ask(messages.SurveyCode((str(good), str(bad)), (known, dropout, whole, together, *map(Job, others))))
    answer = worker.hear()
    assert isinstance(answer, messages.Surveyed)
    assert answer.known == (known.case.id, dropout.case.id, whole.case.id, together.case.id)
    [jobs, nothing] = answer.files
    assert nothing is None
    assert {job.case.variant for job in jobs} == {"eager", "compile"}
    [[scenario], none] = answer.scenarios
    assert (scenario.op, dict(scenario.roles)["eager"], none, answer.used) == ("copy", "control", (), ())


def test_a_file_that_asks_for_nothing_on_this_device_is_one_that_it_can_load(tmp_path: Path) -> None:
    file, bad = tmp_path / "gpu.yaml", tmp_path / "bad.yaml"
    file.write_text("title: t\nop: copy\nshapes: [{N: 8}]\nvariants: [memcpy]\nbaseline: memcpy\n")
    bad.write_text("title: t\nop: gone\nshapes: [{N: 8}]\n")
    answer = child.Worker("cpu", (), print).answer(messages.SurveyCode((str(file), str(bad))))
    assert isinstance(answer, messages.Surveyed)
    assert (answer.files, answer.scenarios, answer.checks) == (((), None), ((), ()), ())


@pytest.mark.slow  # what a process does before it is ready matters where a GPU is shared
def test_a_process_that_is_ready_has_left_the_device_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no GPU, whatever touched it would raise; where there is one, its context would be found."""
    program = (
        "import os, sys\n"
        "from harness.devices.cuda import Cuda\n"
        "from harness.processes.child import Worker\n"
        "Cuda.missing = lambda self: None\n"
        "Worker('cuda', (), print)\n"
        "import torch\n"
        "opened = [os.path.realpath(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')]\n"
        "sys.exit(torch.cuda.is_initialized() or any('nvidia' in name for name in opened))"
    )
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    subprocess.run([sys.executable, tmp_path / "program.py"], check=True)


def test_a_device_that_does_not_exist_is_reported(start: Callable[..., Bare]) -> None:
    worker = start("--device", "cpo")
    failed = worker.hear()
    assert failed == messages.Failed("no device named 'cpo'", "did you mean 'cpu'?", Exit.USAGE)
    assert worker.process.wait(10) == Exit.USAGE


@pytest.mark.parametrize(
    "message",
    [
        messages.MeasureLimits(Needs(kinds=("float16",), worlds=(2, 4)), number=3),
        messages.SurveyCode(("a.yaml",), (Job(Case("copy", "eager", "float32", (("N", 8),), (("p", 0.1),), 2)),)),
        messages.MeasureLimitsAgain(Limits((StreamPoint(3, 1, 1e-6, "add"),))),
    ],
)
def test_a_question_is_one_line_and_comes_back_equal(message: messages.Question) -> None:
    line = messages.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert messages.decode_question(line) == message


@one_test(
    "message",
    [
        READY,
        messages.Surveyed((None, ()), ("copy/eager/float32/N8",)),
        messages.Surveyed(
            (), (), ((Scenario("s", "t", "copy", ("copy/eager/float32/N8",)),),), (("src/mykern.py", "d" * 64),)
        ),
        messages.Exchanged("y is wrong", ""),
        messages.Progress("16 MB", 0.25),
        messages.Failed("several\nlines", "do this", Exit.ENVIRONMENT),
        messages.LimitsMeasured(Limits(), number=4),
    ],
)
def test_a_reply_is_one_line_and_comes_back_equal(message: messages.Reply) -> None:
    line = messages.encode(message)
    assert line.count(b"\n") == 1
    decoded: Any = messages.decode_reply(line)
    assert decoded == message
    assert type(decoded) is type(message)
    assert json.loads(line)["kind"] == message.kind
