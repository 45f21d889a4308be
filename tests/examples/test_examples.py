"""The examples, each run as its first lines say."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness import devices, store
from harness.cli import app
from harness.cuda.compile import compile_verbose
from harness.model import Attachment, Case, Job
from harness.ops import Catalogue
from harness.profile import tools
from harness.profile._procedure import profile
from harness.report.formats import csv as csv_format
from harness.session import Session

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PLUGINS = ROOT / "tests" / "plugins"
OPS = [f"--ops={EXAMPLES / name}.py" for name in ("own_op", "own_variant", "own_metric")]
QUICK = [f"--ops={PLUGINS / name}.py" for name in ("small", "limited")]
"""Limits and a cache that take no time: they have tests of their own."""
SCENARIO = """
title: Two kinds of plug-in
op: softmax
shapes: [{M: 4, N: 64}]
dtypes: [float32]
variants: [eager, mine]
---
title: With a metric of its own
op: shrink
shapes: [{N: 4096}]
"""
Harness = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario."""
    home = tmp_path_factory.mktemp("examples")
    (home / "mine.yaml").write_text(SCENARIO)
    return home


@pytest.fixture(scope="module")
def python(folder: Path) -> Harness:
    """Runs Python in the folder, and gives what it wrote to its standard output."""

    def run(*arguments: object) -> str:
        command = [sys.executable, *map(str, arguments)]
        more = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
        done = subprocess.run(command, cwd=folder, env=os.environ | more, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def measured(folder: Path, python: Harness) -> str:
    """What the console shows of a run of all examples of ops; the run lies in the folder's `run`."""
    scenarios = ["mine.yaml", EXAMPLES / "own_op.yaml"]
    few = ["--device=cpu", "--precision=0.5", "--max-time=0.02", "--variants=eager,mine", "--output=run"]
    small = [f"--only={cases}" for cases in ("softmax/*", "shrink/*", "silu_gate/*/M64-N257")]
    return python("-m", "harness", "run", *scenarios, *OPS, *QUICK, *few, *small)


def rows(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "run" / "results.csv").open(newline="") as file:
        return {row["case"]: row for row in csv.DictReader(file)}


@pytest.mark.slow
def test_ops_and_variants_are_measured(measured: str, folder: Path) -> None:
    status = {case: row["status"] for case, row in rows(folder).items()}
    assert status == dict.fromkeys(
        ("softmax/eager/float32/M4-N64", "softmax/mine/float32/M4-N64", "shrink/eager/float32/N4096",
         "silu_gate/eager/float32/M64-N257"),
        "ok",
    )  # fmt: skip


@pytest.mark.slow
def test_a_metric_of_one_s_own_is_a_column_and_makes_a_sentence(measured: str, folder: Path) -> None:
    assert "$/TB" in measured
    assert "eager is the cheapest" in measured
    row = rows(folder)["shrink/eager/float32/N4096"]
    assert float(row["cost"]) == pytest.approx(3 / 3600 * float(row["time"]) / (8 * 4096) * 1e12)
    assert rows(folder)["silu_gate/eager/float32/M64-N257"]["cost"] == ""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that offers the tool of own_tool.py, here and in processes that are started."""
    site = tmp_path / "site"
    (site / "mine-1.dist-info").mkdir(parents=True)
    (site / "mine-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (site / "mine-1.dist-info" / "entry_points.txt").write_text("[harness.tools]\noperators = own_tool\n")
    shutil.copy(EXAMPLES / "own_tool.py", site)
    monkeypatch.syspath_prepend(site)
    tools.cache_clear()
    yield
    tools.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_tool_of_one_s_own_counts_operators(tmp_path: Path) -> None:
    case = Case("silu_gate", "eager", "float32", (("M", 4), ("N", 8)), device="cpu")
    plugins = [EXAMPLES / "own_op.py", PLUGINS / "small.py"]
    found = profile(
        "operators", [Job(case)], device="cpu", plugins=plugins, folder=tmp_path, told=lambda *_: None
    )  # fmt: skip
    assert found.problems == ()
    assert found.attachments == (Attachment(case.id, "operators", (("count", 2.0),)),)


@pytest.mark.slow  # cli/test_runs.py has a run, the next test a script that reads a committed one
@pytest.mark.usefixtures("measured")
def test_the_results_are_read_in_the_units_that_the_table_says(folder: Path) -> None:
    table = example("read_results").table(folder / "run").set_index(["op", "shape"])
    row = rows(folder)["silu_gate/eager/float32/M64-N257"]
    read = table.loc[("silu_gate", "M64-N257")]
    assert read["fastest"] == "eager"
    assert read["time (us)"] == pytest.approx(float(row["time"]) * 1e6)
    assert read["GB/s"] == pytest.approx(3 * 4 * 64 * 257 / float(row["time"]) * 1e-9)


def test_the_fastest_variants_of_a_committed_run_are_those_of_its_samples(tmp_path: Path) -> None:
    run = store.load(ROOT / "reports" / "h200" / "prelu")
    csv_format.write(run, tmp_path)
    table = example("read_results").table(tmp_path).set_index(["shape", "dtype"])
    shape = "N128-C512-H7-W7"
    times = {r.case.variant: r.time for r in run.results if r.case.dtype == "float32" and r.case.shape_text == shape}
    assert table.loc[(shape, "float32")]["fastest"] == min(times, key=lambda name: times[name] or 1.0)


@pytest.mark.slow  # collection/nn/test_docs.py has the examples, test_models.py models that learn
def test_a_model_with_our_functions_learns(python: Harness) -> None:
    first, last = map(float, re.findall(r"\d+\.\d+", python(EXAMPLES / "in_a_model.py")))
    assert last < first / 2


def test_the_ladder_of_a_step_has_our_kernels_in_its_rungs() -> None:
    shown = CliRunner().invoke(app, ["ladder", str(EXAMPLES / "ladder_step.py"), "--device=cpu", "--dry-run"])
    assert shown.exit_code == 0, shown.output
    assert "ladder_step/patched_compile/bfloat16/B32" in shown.stdout


@pytest.mark.gpu
def test_a_model_with_our_kernels_learns() -> None:
    losses = example("in_a_model").train(50, "cuda")
    assert losses[-1] < losses[0] / 2


def test_the_kernel_compiles() -> None:
    code, log = compile_verbose(EXAMPLES / "own_op.cu", {}, "sm_90")
    assert code
    assert "0 bytes spill stores" in log


def test_plans_of_one_s_own_kernel_are_listed_with_what_the_compiler_says() -> None:
    asked = ["tune", "row_sum", f"--ops={EXAMPLES / 'tuned_op.py'}", "--sizes=M=64,N=64", "--arch=sm_90", "--dry-run"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "row_sum/tuned/float32/M64-N64: 6 plans to time, 18 refused, 0 left out"
    names = ["threads256.each1", *(f"threads32.each{each}" for each in (1, 2, 4, 8)), "threads64.each1"]
    assert [line.split()[0] for line in lines[2:8]] == names
    assert [int(line.split()[2]) for line in lines[2:8]] == [
        32,
        4,
        4,
        4,
        4,
        8,
    ]  # a float a warp


def test_what_triton_can_t_run_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    obstacle = example("triton_softmax").obstacle
    cases = [Case("softmax", "triton", "float32", (("M", 2), ("N", n))) for n in (2**16, 2**16 + 1)]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert list(map(obstacle, cases)) == [None, "rows of more than 65536 elements"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert obstacle(cases[0]) == "Triton isn't installed: pip install triton"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("length", [1, 49, 1000, 1024, 50257, 65536])
def test_the_kernel_in_triton_is_right(dtype: str, length: int) -> None:
    pytest.importorskip("triton")
    is_right(EXAMPLES / "triton_softmax.py", Case("softmax", "triton", dtype, (("M", 33), ("N", length))))


@pytest.mark.gpu
def test_the_kernel_in_cuda_is_right() -> None:
    is_right(EXAMPLES / "own_op.py", Case("silu_gate", "kernel", "float32", (("M", 33), ("N", 257))))


@pytest.mark.gpu
def test_plans_of_one_s_own_kernel_are_searched(tmp_path: Path) -> None:
    few = ["--sizes=M=4096,N=1024", "--max-time=0.05", f"--output={tmp_path / 'table.json'}"]
    found = CliRunner().invoke(app, ["tune", "row_sum", f"--ops={EXAMPLES / 'tuned_op.py'}", *few])
    assert found.exit_code == 0, found.output
    assert "row_sum/tuned/float32/M4096-N1024: " in found.output


def is_right(plugin: Path, case: Case) -> None:
    with Session(case, Catalogue((plugin,))[case.op], devices.kinds()["cuda"]) as session:
        session.prepare()
        assert session.check() is None


def test_every_example_is_listed_and_short() -> None:
    page = (EXAMPLES / "README.md").read_text()
    files = [file for file in EXAMPLES.iterdir() if file.is_file() and file.name != "README.md"]
    assert [file.name for file in files if f"({file.name})" not in page] == []
    assert {file.name: lines for file in files if (lines := len(file.read_text().splitlines())) > 75} == {}


def example(name: str) -> Any:
    """The module of an example."""
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
