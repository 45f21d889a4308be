"""What all tests share: a cache folder of their own, records to start from, and plans for the tests' plug-in ops."""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import pytest

from harness import devices, intact
from harness.devices.cpu import Cpu
from harness.model import Case, DeviceFacts, Header, Job, Limits, Machine, Measurement, Run, Timing, Work
from harness.scenario import Plan
from tests import serving, told, workers

PLUGINS = tuple(
    Path(__file__).parent / "plugins" / f"{name}.py" for name in ("cuda_faults", "faults", "ranks", "small")
)
LONGEST = (
    "test_many_ranks.py", "test_emulated_kernels.py", "test_runs.py", "test_every_op.py", "test_make_rows.py",
    "test_runner.py", "test_kernelbench.py", "test_plots.py", "test_image_pipeline.py", "test_support.py",
    "test_ranks.py", "test_sharded.py",
    # These have more tests that are slow than others.
    "test_end_to_end.py", "test_ladder.py", "test_workflows.py",
)  # fmt: skip
"""Files that take longest. One that began last would run alone in the end."""


def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Where `-m` leaves out tests that need a GPU or are slow, they aren't made: they would be half of all tests."""
    marks = {mark.name for mark in (*collector.iter_markers(), *getattr(obj, "pytestmark", []))}
    return [] if marks & _left_out(collector.config) else None


def _left_out(config: pytest.Config) -> set[str]:
    """Marks of tests that `-m` leaves out, whatever else they have."""
    terms = str(config.getoption("markexpr")).split(" and ")
    return {name for name in ("gpu", "slow") if f"not {name}" in terms}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("gpu"):
            item.fixturenames.insert(item.fixturenames.index("process_put_back"), "turn_on_the_gpu")


_SET_BY_US = ("HARNESS_", "CUDA_CACHE_DISABLE")  # variables that code under test may set

# Few users set it. Where it is set, a process whose output comes too late isn't noticed.
os.environ.pop("PYTHONUNBUFFERED", None)
# Nor this one. Where it is set, every process compiles the harness anew, and pytest every test.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A shell has what it starts in the background ignore Ctrl-C, nohup has it ignore the end of its terminal, and so would
# the processes that tests send these signals.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    workers.make_ready()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # Nearly all that collecting makes stays, torch and thousands of tests: a search for garbage would only take time.
    gc.disable()
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(told)
        workers.share_processors()
    if sys.platform == "linux":
        serving.serve(config, uses_a_gpu="gpu" not in _left_out(config))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test marked `cold` starts processes as users do. So does one that needs a GPU: profilers follow no fork."""
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("cold") or item.get_closest_marker("gpu"):
            patch.setenv("FORKED_COLD", "1")
        return (yield)


def pytest_collection_finish() -> None:
    """What was collected stays to the end, so the garbage collector needn't go through it again."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 50, 100)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := devices.kinds()["cuda"].missing()):
        pytest.skip(reason)


_LARGE = 64 * 2**30
"""Bytes of GPU memory that are set aside for a test marked `large`."""


@cache
def _large_at_once() -> int:
    """Tests marked `large` that the GPU has room for."""
    return devices.kinds()["cuda"].machine().devices[0].memory_bytes // _LARGE


@pytest.fixture
def turn_on_the_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests of several processes share the GPU, but tests marked `alone` have it for themselves.

    A lock on a file says who uses the GPU: shared by most tests, exclusive for `alone`. Tests come to it one by one, so
    that a test which waits for other tests to end isn't overtaken. Tests marked `large` run beside others where the GPU
    has room for two of them or more; elsewhere they are alone. Afterwards the memory that torch keeps for later goes
    back to the device, for the tests of other processes.
    """
    large = request.node.get_closest_marker("large") is not None
    beside = large and _large_at_once() > 1
    alone = request.node.get_closest_marker("alone") or (large and not beside)
    home, name = Path(tempfile.gettempdir()), f"harness-gpu-tests-{os.getuid()}"
    with ExitStack() as stack:

        def locked(what: str, how: int) -> TextIO:
            file = stack.enter_context((home / f"{name}.{what}").open("w"))
            fcntl.flock(file, how)
            return file

        queue = locked("queue", fcntl.LOCK_EX)
        locked("gpu", fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)
        if beside:
            locked(f"large-{os.getpid() % _large_at_once()}", fcntl.LOCK_EX)
        yield
        if "torch" in sys.modules:
            import torch

            gc.collect()
            torch.cuda.empty_cache()


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiled kernels and remembered ceilings stay out of the user's cache, here and in every child process.

    Children of tests that run side by side get one thread each: with more, kernels wait for each other's processors.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "PYTEST_XDIST_WORKER" in os.environ:
            patch.setenv("OMP_NUM_THREADS", "1")
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("HARNESS_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def process_put_back() -> Iterator[None]:
    """What code under test leaves changed in its process would decide by the order of tests which later test fails.

    Functions are not remembered: tests replace them, which a worker in this process would take for a variant's
    doing. All of this is one fixture, since each one takes 0.2 ms of each of thousands of tests.
    """
    hook, path, folder = sys.excepthook, [*sys.path], Path.cwd()
    ours = {name: os.environ[name] for name in os.environ if name.startswith(_SET_BY_US)}
    torch = sys.modules.get("torch")
    precision = torch.get_float32_matmul_precision() if torch else ""
    noted = {name: getattr(intact, name) for name in ("_remembered", "_others", "_watched")}
    for name in noted:
        setattr(intact, name, {})
    yield
    for name, value in noted.items():
        setattr(intact, name, value)
    sys.excepthook = hook
    sys.path[:] = path
    os.chdir(folder)
    for name in [name for name in os.environ if name.startswith(_SET_BY_US) and name not in ours]:
        del os.environ[name]
    os.environ.update(ours)
    if torch and torch.get_float32_matmul_precision() != precision:
        torch.set_float32_matmul_precision(precision)
    # Later tests would measure with short times and a small cache.
    assert isinstance(vars(Cpu)["cache_bytes"], property), "plugins/small.py was loaded here: start a process for it"


@pytest.fixture
def guarded(process_put_back: None) -> None:
    """What a measuring process remembers before it loads plug-ins."""
    intact.remember()


@pytest.fixture(scope="module", autouse=True)
def keep_what_is_there() -> None:
    """What earlier files have imported stays too: many cases of training begin with a search for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What a profiler is told of ranges: ('push', name) and ('pop', '')."""
    told: list[tuple[str, str]] = []

    class Domain:
        def push_range(self, attributes: str) -> None:
            told.append(("push", attributes))

        def pop_range(self) -> None:
            told.append(("pop", ""))

    monkeypatch.setattr("harness.ranges._of", lambda name: (Domain(), name))
    return told


@pytest.fixture(scope="session")
def watched() -> Callable[[int], Callable[..., bool]]:
    """watched(process)(seconds): whether the process with this number has ended, or ends within so many seconds.

    The limit is for a process that never ends, which is an error.
    """

    def watch(process: int) -> Callable[..., bool]:
        try:
            file = os.pidfd_open(process)
        except ProcessLookupError:
            return lambda seconds=0.0: True
        return lambda seconds=0.0: bool(select.select([file], [], [], seconds)[0])

    return watch


@pytest.fixture
def machine() -> Machine:
    return Machine(kind="cpu", fingerprint="f00d", devices=(DeviceFacts("A processor", 2**34, 2**25),))


@pytest.fixture
def header(machine: Machine) -> Header:
    return Header(
        name="a-run",
        machine=machine,
        scenarios=(),
        command=("harness", "run", "quick"),
        started="2026-01-01T00:00:00+00:00",
        plan="9" * 64,
        jobs=2,
    )


@pytest.fixture
def measurement() -> Callable[[int], Measurement]:
    """Measurements that differ by their size N."""

    def make(n: int) -> Measurement:
        return Measurement(
            Case("copy", "eager", "float32", (("N", n),), device="cpu"),
            "ok",
            samples=tuple(1e-5 + i * 1.23456789e-9 for i in range(50)),
            work=Work(read=4 * n, written=4 * n),
            timer="host",
        )

    return make


@pytest.fixture(scope="session")
def job() -> Callable[..., Job]:
    """Jobs for the variants of the plug-in op `fault`, or of another one, sampled no longer than a test can wait."""

    def make(variant: str, op: str = "fault", n: int = 4096, timeout: float = 60.0, device: str = "cpu") -> Job:
        timing = Timing(precision=0.5, max_time=0.02, timeout=timeout)
        world = 2 if op == "rank_sum" else 1
        return Job(Case(op, variant, "float32", (("N", n),), world=world, device=device), timing)

    return make


@pytest.fixture
def short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are timed in blocks of a hundredth of the usual length, and aren't repeated until they are warm.

    For tests of what else is measured of a case: none of them may ask how long its calls took.
    """
    monkeypatch.setattr("harness.measure._BATCH_SECONDS", 5e-5)
    monkeypatch.setattr("harness.measure._WARM_SECONDS", 0.0)
    monkeypatch.setattr("harness.devices._timing._MOST_SETTLING", 0.0)


@dataclass
class Watcher:
    """An observer that keeps what it is told."""

    plan: tuple[int, int] | None = None
    notes: list[str] = field(default_factory=list)
    limits: Limits | None = None
    begun: list[tuple[str, int]] = field(default_factory=list)
    ended: list[Measurement] = field(default_factory=list)

    def planned(self, total: int, done: int) -> None:
        self.plan = (total, done)

    def note(self, text: str, share: float | None = None) -> None:
        self.notes.append(text)

    def limited(self, limits: Limits) -> None:
        self.limits = limits

    def started(self, job: Job, process: int) -> None:
        self.begun.append((job.case.id, process))

    def finished(self, measurement: Measurement) -> None:
        self.ended.append(measurement)


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture(scope="session")
def make_watcher() -> type[Watcher]:
    return Watcher


@pytest.fixture(scope="session")
def run_jobs() -> Callable[..., Run]:
    """Runs jobs into a folder as `harness run` does, on a CPU that looks small to the worker."""
    from harness import runner

    def run(folder: Path, *jobs: Job, device: str = "cpu", watcher: Watcher | None = None, **options: Any) -> Run:
        return runner.run(
            Plan(scenarios=(), jobs=jobs, ops=options.pop("ops", {})),
            name="test",
            folder=folder,
            device=device,
            plugins=options.pop("plugins", PLUGINS),
            command=("/home/somebody/bin/harness", "run", "test"),
            observer=watcher or Watcher(),
            **options,
        )

    return run


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread for torch. Small models gain nothing by more, and these wait for each other in tests side by side."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
