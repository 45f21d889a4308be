"""`run`, `load`, `compare` and `op`: runs in Python, as the command line has them."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import harness as hb
from harness import metrics, runner, store
from harness.api import DeclaredOp, UsageError, progress
from harness.model import Case, DeviceFacts, Header, Limits, Machine, Measurement, Run, Scenario
from tests.one_test import one_test

ROOT = Path(hb.__file__).parents[1]
PLUGIN = ROOT / "tests" / "plugins" / "faults.py"
CASE = Case("mine", "eager", "float32", (("N", 8),))
SCENARIO = Scenario("mine", "Mine", "mine", (CASE.id,))
HEADER = Header("mine", Machine("cpu", "c0ffee", (DeviceFacts("A CPU", 1, 1),)), (SCENARIO,), (), "2026-01-01", "", 1)


def stored(folder: Path, micros: float) -> Path:
    with store.create(folder, HEADER) as writer:
        writer.append(Measurement(CASE, "ok", tuple(1e-6 * (micros + each / 100) for each in range(7))))
    return folder


def test_importing_loads_nothing_that_takes_long() -> None:
    program = (
        "import sys, harness; assert 'harness.api' not in sys.modules; harness.time;"
        "print(*sorted({'torch', 'matplotlib', 'pandas', 'IPython'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)})
    assert "matplotlib" not in done.stdout
    assert "pandas" not in done.stdout
    assert set(hb.__all__) <= set(dir(hb))
    with pytest.raises(AttributeError, match="no attribute 'tim'"):
        _ = hb.tim


def test_names_are_functions_and_no_modules() -> None:
    importlib.import_module("harness.differences")
    importlib.import_module("harness.interleaved")
    assert all(callable(getattr(hb, name)) for name in hb.__all__)
    assert {path.stem for path in Path(hb.__file__).parent.glob("*")} & set(hb.__all__) == set()


# ---- Stored runs.


def test_a_stored_run_is_a_frame_with_units() -> None:
    run = hb.load(ROOT / "reports" / "h200" / "bank_conflicts")
    frame = run.frame()
    assert len(frame) == len(run.run.results)
    assert frame.attrs["units"]["time"] == "s"
    assert frame.attrs["units"]["bandwidth"] == "B/s"
    assert frame.attrs["units"]["of_ceiling"] == ""
    assert {*metrics.COMMON} & {*frame.columns} <= {*frame.attrs["units"]}
    frame["time"] = 0.0
    assert (run.frame()["time"] > 0).all()
    assert "NVIDIA H200" in repr(run)


def test_a_run_is_a_table_and_plots() -> None:
    html = hb.load(ROOT / "reports" / "h200" / "bank_conflicts")._repr_html_()
    assert "<table>" in html
    assert html.count("<svg") >= 1


def test_a_frame_has_the_columns_of_results_csv(tmp_path: Path) -> None:
    from harness import report

    run = hb.load(stored(tmp_path / "a", 10))
    report.write(run.run, run.folder, ["csv"])
    assert list(pd.read_csv(run.folder / "results.csv").columns) == list(run.frame().columns)


def test_the_last_run_may_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored(tmp_path / "reports" / "a", 10)
    assert hb.load("@last").folder == Path("reports/a")


def test_runs_are_compared(tmp_path: Path) -> None:
    old, new, third = (stored(tmp_path / name, micros) for name, micros in (("old", 10), ("new", 20), ("third", 5)))
    differences = hb.compare(old, hb.load(new))
    assert isinstance(differences.geomean, float)
    assert differences.geomean == pytest.approx(0.5, rel=0.01)
    assert [each.case for each in differences.slower(by=0.01)] == [CASE]
    assert differences.slower(by=2.0) == []
    frame = differences.frame()
    assert frame.loc[0, "verdict"] == "slower"
    assert frame.loc[0, "time"] == pytest.approx(20.03e-6)
    assert frame.attrs["units"]["time"] == "s"
    assert repr(differences) == "against old: new: 0.501x"
    assert "geomean" in differences._repr_html_()
    several = hb.compare(old, new, third, baseline="new")
    assert isinstance(several.geomean, dict)
    assert list(several.geomean) == ["old", "third"]
    with pytest.raises(UsageError, match="1 runs can't be compared"):
        hb.compare(old)
    with pytest.raises(UsageError, match="no run is named 'x'"):
        hb.compare(old, new, baseline="x")


# ---- Runs.


def test_a_run_measures_in_processes_as_the_command_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.yaml").write_text("title: one\nop: copy\nshapes: [{N: 256}]\ndtypes: [float32]\n")
    asked: dict[str, object] = {}

    def run(plan: object, **request: object) -> Run:
        asked.update(request, plan=plan)
        return Run(HEADER, ())

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr("harness.api.runs.write_apart", lambda folder, plugins: asked.update(report=folder) or 0)
    hb.run(tmp_path / "one.yaml", variants="eager", device="cpu", max_time=0.5, output=tmp_path / "out", repeat=2)
    plan = asked["plan"]
    assert [(job.case.id, job.timing.max_time) for job in plan.jobs] == [("copy/eager/float32/N256", 0.5)]  # type: ignore[attr-defined]
    assert (asked["folder"], asked["report"], asked["repeat"]) == (tmp_path / "out", tmp_path / "out", 2)
    with pytest.raises(UsageError, match="resume=True needs output="):
        hb.run(tmp_path / "one.yaml", device="cpu", resume=True)


def test_progress_on_a_terminal_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress.Shown() as shown:
        shown.planned(2, 0)
        shown.started(hb.model.Job(CASE), 1)
        shown.finished(Measurement(CASE, "ok"))
        shown.note("streams", 0.5)
    said = capsys.readouterr().err
    assert "0 of 2: mine/eager/float32/N8, process 2" in said
    assert said.endswith("1 measurement done\n")


# ---- Ops in a cell.


@pytest.fixture
def twice() -> DeclaredOp:
    @hb.op(inputs={"x": "M N"}, reference=lambda x: 2 * x.double(), dtypes=("float32",))
    def twice(x: torch.Tensor) -> torch.Tensor:
        """Two times x."""
        return 2 * x

    assert isinstance(twice, DeclaredOp)
    return twice


@pytest.fixture(autouse=True)
def no_streams(slow_machine: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.limits.ready", lambda *_: slow_machine)
    monkeypatch.setattr("harness.limits.again", lambda _, start: start)


def test_an_op_in_a_cell_is_run_with_everything(twice: DeclaredOp) -> None:
    @twice.variant
    def added(x: torch.Tensor, M: int) -> torch.Tensor:  # noqa: N803 - the op's symbol
        return x + x if M == 8 else x + 1

    @twice.variant("into", role="published")
    def written(x: torch.Tensor, y: torch.Tensor) -> None:
        torch.add(x, x, out=y)

    assert torch.equal(twice(torch.ones(2)), torch.full((2,), 2.0))
    assert repr(twice) == "op twice: Two times x.; variants eager, added, into"
    run = twice.run({"M": [4, 8], "N": 16}, max_time=0.01)
    frame = run.frame().set_index(["M", "variant"])
    assert frame.loc[(8, "added"), "status"] == "ok"
    assert frame.loc[(4, "added"), "status"] == "wrong"
    assert "elements are wrong" in frame.loc[(4, "added"), "error"]
    assert frame.loc[(8, "into"), "speedup"] > 0
    assert (frame["moved_bytes"] == 2 * frame.index.get_level_values("M") * 16 * 4).all()


def test_a_variant_is_replaced_when_its_cell_runs_again(twice: DeclaredOp) -> None:
    for factor in (3, 2):

        @twice.variant
        def mine(x: torch.Tensor, factor: int = factor) -> torch.Tensor:
            return factor * x


def test_a_variant_that_raises_crashes_alone(twice: DeclaredOp) -> None:
    @twice.variant
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no")

    frame = twice.run([{"M": 2, "N": 3}], max_time=0.01).frame().set_index("variant")
    assert dict(frame["status"]) == {"eager": "ok", "broken": "crashed"}


def test_bytes_outputs_and_variants_are_declared_in_one_call() -> None:
    made = hb.op(
        "split",
        inputs={"x": ("N",)},
        outputs={"y": "N", "z": "N"},
        reference=lambda x: (x.double() + 1, x.double() - 1),
        bytes=lambda N, itemsize: 3 * N * itemsize,  # noqa: N803
        variants={"other": lambda x: [x + 1, x - 1]},
        dtypes=("float64",),
    )(lambda x: (x + 1, x - 1))
    frame = made.run({"N": [32]}, max_time=0.01).frame()
    assert list(frame["status"]) == ["ok", "ok"]
    assert list(frame["moved_bytes"]) == [3 * 32 * 8] * 2


@pytest.mark.slow
def test_a_bundled_op_gets_a_variant_for_this_handle_only() -> None:
    softmax = hb.op("softmax")

    @softmax.variant
    def mine(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    frame = softmax.run([{"M": 4, "N": 8}], dtypes="float32", variants=["eager", "mine"], max_time=0.01).frame()
    assert dict(zip(frame["variant"], frame["status"], strict=True)) == {"eager": "ok", "mine": "ok"}
    assert "mine" not in hb.op("softmax").op.variants
    with pytest.raises(UsageError, match="is a bundled op, no function"):
        softmax(torch.ones(2))


def test_what_an_op_cannot_be_is_refused(twice: DeclaredOp) -> None:
    with pytest.raises(UsageError, match="no op is named 'sofmax'"):
        hb.op("sofmax")
    with pytest.raises(UsageError, match="has a parameter 'z', op 'twice' not"):
        twice.variant(lambda z: z)
    with pytest.raises(UsageError, match="K"):
        twice.run([{"M": 2, "K": 3}])
    unchecked = hb.op("plain", inputs={"x": "N"})(lambda x: x + 1)
    with pytest.raises(UsageError, match="neither reference nor check"):
        unchecked.run({"N": [8]})
    short = hb.op("short", inputs={"x": "N"}, outputs={"y": "N", "z": "N"}, reference=lambda x: x + 1)(
        lambda x: (x + 1, x + 1)
    )
    assert "the reference returns 1 tensors" in short.run({"N": [8]}, dtypes="float32").frame().loc[0, "error"]


INPUT = {"x": "N"}


@one_test(
    ("declare", "said"),
    [
        (lambda: hb.op(lambda x: x), "inputs, outputs and variants of an op are dicts"),
        (lambda: hb.op("f", inputs="N"), "inputs, outputs and variants of an op are dicts"),
        (lambda: hb.op("f", inputs=INPUT, variants=[torch.exp]), "inputs, outputs and variants of an op are dicts"),
        (lambda: hb.op("f", inputs={}), "an op without inputs needs outputs="),
        (lambda: hb.op("f", inputs=dict[str, Any](x=3)), "the shape of 'x' is 3"),
        (lambda: hb.op("f", inputs=INPUT)(torch.exp), "isn't a function whose parameters are known"),
        (lambda: hb.op("f", inputs=INPUT, reference=torch.ones(2))(lambda x: x), "isn't a function whose parameters"),
        (lambda: hb.op("f", inputs=INPUT, bytes=100)(lambda x: x), "100 isn't a function whose parameters are known"),
    ],
)
def test_a_declaration_of_another_kind_is_refused_with_what_is_right(declare: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        declare()
    # A notebook shows the traceback, which has notes below the message.
    assert caught.value.__notes__ == [caught.value.advice]


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (1000, "shapes=1000 are no sizes by symbol"),
        ([(8, 8)], r"shapes=\[\(8, 8\)\] are no sizes by symbol"),
        (None, "no bundled scenario has sizes for op 'twice'"),
        ({"M": 4, "N": 1e3}, r"^shapes.product.N\[0\]: a size is an integer or .*, found 1000.0"),
    ],
)
def test_sizes_of_another_kind_are_refused(twice: DeclaredOp, shapes: object, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        twice.run(shapes)
    if shapes is None:
        assert caught.value.advice == "give them: run({'M': 1024, 'N': 1024})"


@pytest.mark.slow  # test_sizes_of_another_kind_are_refused has the kinds of sizes
def test_sizes_may_be_integers_of_numpy(twice: DeclaredOp) -> None:
    sizes: Any = np.array([4, 8])
    frames = twice.run({"M": sizes, "N": sizes[0]}, max_time=0.01).frame(), twice.run([{"M": sizes[1], "N": 2}]).frame()
    assert [list(frame["M"]) for frame in frames] == [[4, 8], [8]]


def test_a_misspelt_name_is_told_with_what_is_meant_below() -> None:
    with pytest.raises(UsageError) as caught:
        hb.run("sofmax", ops=str(PLUGIN))
    assert "did you mean 'softmax'?" in caught.value.__notes__


def test_a_run_in_this_process_may_have_a_folder(
    twice: DeclaredOp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "harness.api.runs.write_apart", lambda folder, plugins: (folder / "report.md").write_text("") and 0
    )
    run = twice.run({"M": [2], "N": [2]}, max_time=0.01, output=tmp_path / "mine")
    assert (tmp_path / "mine" / "report.md").is_file()
    assert hb.load(run.folder).run.measurements == replace(run.run).measurements


@pytest.mark.slow  # test_a_run_measures_in_processes_as_the_command_does has what is asked for
def test_a_run_in_processes_of_its_own(slow_machine: Limits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.yaml").write_text("title: one\nop: copy\nshapes: [{N: 256}]\ndtypes: [float32]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "_limits", lambda *_, **__: slow_machine)
    monkeypatch.setattr("harness.api.runs.write_apart", lambda folder, plugins: 0)
    asked = {"only": "*/float32/*", "variants": ["eager"], "ops": [PLUGIN], "device": "cpu"}
    run = hb.run("one.yaml", max_time=0.01, output="r", **asked)
    assert list(run.frame()["status"]) == ["ok"]
    assert run.run.limits == slow_machine
    assert hb.compare(run, run.folder).geomean == 1.0


@pytest.mark.slow  # a run of this process is above; what measures limits is tested in tests/test_limits.py
def test_a_run_from_a_script_of_a_user_measures_limits_too(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("title: one\nop: copy\nshapes: [{N: 256}]\ndtypes: [float32]\n")
    program = """
import sys, harness as hb, harness.api.runs as runs
runs.write_apart = lambda folder, plugins: 0
asked = {"only": "*/float32/*", "variants": ["eager"], "ops": sys.argv[1:], "device": "cpu"}
run = hb.run("one.yaml", max_time=0.01, output="r", **asked)
print(*run.frame()["status"], bool(run.run.limits), hb.compare(run, run.folder).geomean)
"""
    # The plug-in changes the process that loads it, so that limits take no time.
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "program.py", str(ROOT / "tests" / "plugins" / "small.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["ok", "True", "1.0"], done.stderr
