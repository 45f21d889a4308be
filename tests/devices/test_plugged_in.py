"""A device of a package: it lists, plans, measures, reports, explains and gates, and each mistake in it is named.

Its clock is simulated, so that every time is exact: bytes over a bandwidth.
"""

from __future__ import annotations

import csv
import fcntl
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness import devices, measure, runner, scenario, store
from harness.cli import app
from harness.errors import UsageError
from harness.limits import Needs
from harness.model import Code, Job, Run, Timing
from harness.ops import Catalogue, Variant, declarations
from harness.ops.codes import codes
from harness.processes import lock

PACKAGE = Path(__file__).parents[1] / "plugins" / "simulated"
OPS = f"--ops={PACKAGE / 'doubled.py'}"
N = 2**14
SCENARIO = f"title: Doubled\nop: doubled\nshapes: [{{N: {N}}}]\n"
BANDWIDTH = 1e12
SECONDS = {"eager": 8 * N / BANDWIDTH, "twice": 16 * N / BANDWIDTH}


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    """The package, as pip would install it. What variants may name is looked up once, so that is forgotten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PACKAGE)
        declarations._kinds_of_device.cache_clear()
        yield
    declarations._kinds_of_device.cache_clear()


def harness(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "160"})
    assert result.exit_code == code, result.output
    return result.output


@dataclass(frozen=True)
class Measured:
    """A run of the simulated device, by `harness run`. console: what the command wrote."""

    folder: Path
    console: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("simulated")
    (folder / "doubled.yaml").write_text(SCENARIO)
    done = subprocess.run(
        [sys.executable, "-m", "harness", "run", "doubled.yaml", OPS, "--device=simulated", "--output=run"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(PACKAGE), "COLUMNS": "160"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Measured(folder / "run", done.stdout)


class Entered:
    """Measuring processes that can't be had while another one holds the device."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> Entered:
        with self._file.open("w") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self

    def __exit__(self, *_: object) -> None: ...


def test_who_measures_on_the_device_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Callable[..., Job], run_jobs: Callable[..., Run], watcher: Any
) -> None:
    name = f"simulated-{os.getpid()}"
    file = lock.folder() / f"harness-{name}.lock"
    monkeypatch.setattr(importlib.import_module("simulated_device").Simulated, "hardware", (name,))
    monkeypatch.setattr(runner, "Workers", lambda *_, **__: Entered(file))
    try:
        with pytest.raises(BlockingIOError):
            runner.measure_limits("simulated", Needs(), watcher)
        with pytest.raises(BlockingIOError):
            run_jobs(tmp_path / "run", job("eager", op="doubled", device="simulated"), device="simulated", plugins=())
    finally:
        file.unlink(missing_ok=True)


@pytest.mark.slow  # the test above has that the device is held, processes/test_lock.py who waits
def test_a_command_waits_for_whoever_measures_on_the_device(tmp_path: Path) -> None:
    name = f"simulated-{os.getpid()}"
    file = lock.folder() / f"harness-{name}.lock"
    command = [sys.executable, "-m", "harness", "peak", "--device=simulated"]
    path = os.pathsep.join(map(str, (PACKAGE, Path(devices.__file__).parents[2])))
    environment = os.environ | {"PYTHONPATH": path, "SIMULATED_HARDWARE": name}
    try:
        with file.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
                assert process.stderr
                lines = iter(process.stderr.readline, "")
                assert any(line.startswith(f"waiting for {name}: another command measures on it") for line in lines)
                fcntl.flock(held, fcntl.LOCK_UN)
                process.communicate(timeout=240)
        assert process.returncode == 0
    finally:
        file.unlink(missing_ok=True)


def test_it_is_listed_ahead_of_the_host_s_processor_and_surveyed() -> None:
    assert list(devices.kinds()) == ["cuda", "simulated", "cpu"]
    assert "simulated  A device that streams as fast as SIMULATED_BANDWIDTH says." in harness("list", "devices")
    survey = harness("env")
    assert "A simulated device, 8.590 GB memory" in survey
    assert "software for simulated\n  simulator  1e+12 bytes a second" in survey


def test_it_is_refused_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("simulated_device"), "BANDWIDTH", 0.0)
    with pytest.raises(UsageError, match="device 'simulated' can't be used: SIMULATED_BANDWIDTH is 0"):
        devices.choose("simulated")


def test_plain_torch_of_the_collection_is_planned_for_it_and_kernels_are_left_out() -> None:
    catalogue = Catalogue()
    definitions = scenario.load(scenario.find(["prelu"]), catalogue)
    found = scenario.plan(definitions, catalogue, scenario.Selection("simulated"))
    assert {job.case.variant for job in found.jobs} == {"eager", "compile"}
    assert {job.case.device for job in found.jobs} == {"simulated"}
    assert found.left_out.startswith("left out on simulated: prelu/")
    assert "tuned (need cuda)" in found.left_out


def test_a_variant_may_name_it() -> None:
    assert Variant("mine", "", print, devices=("simulated",)).runs_on("simulated")
    with pytest.raises(UsageError, match="variant 'mine' has the device 'simulatd'") as caught:
        Variant("mine", "", print, devices=("simulatd",))
    assert caught.value.advice == "did you mean 'simulated'?"


@pytest.mark.slow  # the tests around have the device, test_timing.py clocks
def test_times_are_exactly_what_its_clock_makes(run: Measured) -> None:
    rows = {row["variant"]: row for row in csv.DictReader((run.folder / "results.csv").open(newline=""))}
    assert {name: float(row["time"]) for name, row in rows.items()} == pytest.approx(SECONDS, rel=1e-9)
    for name, passes in {"eager": 1, "twice": 2}.items():
        figures = [float(rows[name][key]) for key in ("bandwidth", "of_ceiling", "noise")]
        assert figures == pytest.approx([BANDWIDTH / passes, 1 / passes, 0.0], rel=1e-9, abs=1e-9)
    assert {row["device"] for row in rows.values()} == {"simulated"}


@pytest.mark.slow  # the tests around have the device, report/ what is told of one
def test_the_report_and_the_console_have_it(run: Measured) -> None:
    page = (run.folder / "report.md").read_text()
    assert page.startswith("# doubled\n\nA simulated device, ")
    assert "| library copy (the peak) | 1000 GB/s at 262 kB        |" in page
    assert "| eager   |" in page
    assert "A simulated device: 2 ok" in run.console


@pytest.mark.slow  # explain/ has what is told of tools
def test_the_tool_that_counts_on_it_is_named_where_a_case_is_explained(run: Measured) -> None:
    text = harness("explain", "doubled/twice/*", f"--run={run.folder}")
    assert f"harness profile stopwatch doubled --only 'doubled/twice/float32/N{N}'" in text


def code(kind: str) -> Code:
    """The code of the eager variant's numbers on a device of that kind."""
    op = Catalogue([PACKAGE / "doubled.py"])["doubled"]
    return codes([op], kind)["doubled", "eager"]


def test_the_code_of_its_numbers_has_its_module_and_no_other_device_s(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, cpu = code("simulated"), code("cpu")
    read, changed = Path.read_bytes, PACKAGE / "simulated_device.py"
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"\nchanged = 1\n" if path == changed else b""))
    assert (code("simulated") == mine, code("cpu") == cpu) == (False, True)


@pytest.mark.slow  # the test above has that code, test_source.py which code a run has
def test_a_run_has_the_code_of_its_device(run: Measured) -> None:
    assert {m.code for m in store.load(run.folder).measurements} == {code("simulated")}


@pytest.fixture(scope="module")
def repeated(run: Measured) -> Callable[[str, float], Path]:
    """repeated(name, bandwidth): the run again ten times over, on a device of that bandwidth."""
    module = importlib.import_module("simulated_device")
    # Runs of code that isn't committed aren't compared, and this test may run in the middle of a change.
    header = replace(store.load(run.folder).header, git_revision="", git_dirty=False)
    op = Catalogue([PACKAGE / "doubled.py"])["doubled"]
    made: list[str] = []
    jobs = [Job(result.case, Timing(max_time=0.1)) for result in store.load(run.folder).results]

    def make(name: str, bandwidth: float) -> Path:
        folder = run.folder.with_name(name)
        began = {"name": name, "started": f"2099-01-01T00:00:{len(made):02}+00:00", "repeat": 10}
        made.append(name)
        with pytest.MonkeyPatch.context() as patch, store.create(folder, replace(header, **began)) as writer:
            patch.setattr(module, "BANDWIDTH", bandwidth)
            patch.setattr(measure, "_WARM_SECONDS", 0.0)
            patch.setattr(measure, "_BATCH_SECONDS", 1e-4)
            for process in range(10):
                for job in jobs:
                    writer.append(measure.measure(job, op, devices.kinds()["simulated"], process=process))
        return folder

    return make


@pytest.mark.slow
def test_the_gate_passes_an_equal_run_and_fails_a_slower_one(
    repeated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.report.pictures.drawn", lambda *_: [])
    base, same = repeated("base", BANDWIDTH), repeated("same", BANDWIDTH)
    slower = repeated("slower", 0.9 * BANDWIDTH)
    assert "2 cases: 2 ok; 10 pairs" in harness("gate", base, same, OPS, f"--output={tmp_path / 'passed'}")
    failed = harness("gate", base, slower, OPS, f"--output={tmp_path / 'failed'}", code=1)
    assert "2 cases: 2 regressed" in failed
    changes = [line.split()[1:5] for line in failed.splitlines() if line.endswith("regressed")]
    assert changes == [["-10.00%", "-10.00%", "to", "-10.00%"]] * 2


MODULE = """
from harness.devices.cpu import Cpu
class Mine(Cpu):
    kind = "mine"
KIND = Mine
"""


@pytest.mark.parametrize(
    ("name", "text", "message", "advice"),
    [
        (
            "mine",
            "",
            r"\(mine_device\): AttributeError: module 'mine_device' has no attribute 'KIND'",
            "README.md says",
        ),
        ("mine", "import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'", "README.md says"),
        ("mine", "KIND = lambda: 1 / 0", r"ZeroDivisionError: .* \(.*mine_device.py:1", "README.md says"),
        ("mine", "raise SystemExit(0)", r"SystemExit: 0 \(.*mine_device.py:1", "sys.exit"),
        ("mine", "class KIND: kind = 'mine'", "KIND has no stream_sizes and no .* and no rings$", "README.md says"),
        ("mien", MODULE, "entry point 'mien' .*: KIND.kind is 'mine'", "give both the same name"),
        ("cpu", MODULE, "entry point 'cpu' .*: there is a device named 'cpu' already", "rename the entry point"),
    ],
)
def test_a_mistake_is_named_with_its_entry_point(
    name: str, text: str, message: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_device.py").write_text(text)
    information = tmp_path / "mine_device-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mine-device\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[harness.devices]\n{name} = mine_device\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_device", raising=False)
    with pytest.raises(UsageError, match=message) as caught:
        devices.kinds()
    assert "entry point" in caught.value.message
    assert advice in caught.value.advice
