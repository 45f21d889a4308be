"""`harness explain` on the committed runs, which have no counters, and on a run that has."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import store
from harness.cli import app, completion
from harness.model import Attachment, Header, KernelProfile, Limits, Measurement, Scenario, StreamPoint
from tests.rare import rare

H200 = Path(__file__).parents[2] / "reports" / "h200"


def explained(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["explain", *map(str, arguments)], env={"COLUMNS": "80"})
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def reference(tmp_path: Path) -> Callable[[str], Path]:
    """A committed run, without what tools found of it."""

    def copy(name: str) -> Path:
        folder = tmp_path / "reports" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in (store.HEADER, store.RESULTS):
            shutil.copy(H200 / name / file, folder / file)
        return folder

    return copy


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("case", "run", "said"),
    [
        ("bias_add/index64/float32/outer131072-bias1024-inner1", "bias", "Not known: "),
        rare("prelu/naive/float32/N134217728-C1-H1-W1", "prelu", "Not known: "),
        ("softmax/unfused/float32/M131072-N1024", "softmax", "Perhaps at least two kernels in place of one"),
        ("softmax/unfused/float32/M131072-N1024", "softmax", "Bytes beyond need"),
        (
            "local_array/runtime_index/float32/G16777216",
            "compiler",
            "Perhaps local memory: each thread of local_array_runtime",
        ),
        ("strided_copy/scalar/float32/N33554432-R32", "access", "Bytes beyond need: it moves 4.50 times"),
    ],
)
def test_a_case_without_counters_is_explained_by_count(
    case: str, run: str, said: str, reference: Callable[[str], Path]
) -> None:
    text = explained(case, "--run", reference(run))
    assert said in words(text)
    assert f"--only '{case}'" in text
    assert "counters: none" in words(text)
    # A command is one line, so that it can be pasted, and a path has no place to be broken at.
    assert max(len(line) for line in text.splitlines() if "/" not in line) <= 80


def test_the_commands_name_the_scenario_that_has_the_case(reference):
    assert "    harness profile ncu strided_read --only '" in explained(
        "strided_copy/scalar/float32/N33554432-R32-W1", "--run", reference("access")
    )
    assert "    harness profile ncu bias_add --only '" in explained(
        "bias_add/index64/float32/outer131072-bias1024-inner1", "--run", reference("bias")
    )


def test_a_case_of_several_devices_is_told_the_tool_that_takes_it(reference):
    folder, case = reference("scaling"), "resnet50_scaling/ddp/float16/B256/world=2"
    text = explained(case, "--run", folder)
    assert "    harness profile torch scaling --only 'resnet50_scaling/ddp/" in text
    assert "they tell more" not in text
    store.attach(folder, [Attachment(case, "torch", kernels=(KernelProfile("k", 1.0, (("time", 1e-3),)),))])
    assert "harness profile" not in explained(case, "--run", folder), "the traces are there"


def test_a_case_at_its_ceiling_needs_no_counters(reference):
    text = explained("softmax/tuned/float32/M131072-N1024", "--run", reference("softmax"))
    assert "At the ceiling: 99" in text
    assert "harness profile" not in text


def test_a_slow_host_is_told_besides(reference):
    slow = words(explained("bias_residual/scalar/float16/R4096-C1024", "--run", reference("bias")))
    assert slow.index("Not known: ") < slow.index("Besides: Host-bound outside of a graph")
    near = words(explained("copy/evict_first/float32/N1048576", "--run", reference("copy")))
    assert near.index("At the ceiling: 99.4%") < near.index("Besides: Host-bound outside of a graph")


def test_a_glob_explains_every_case_that_it_matches(reference):
    text = explained("local_array/*/float32/G524288-K3", "--run", reference("compiler"))
    assert [line.split("/")[1] for line in text.splitlines() if line.startswith("local_array/")] == [
        "eager", "compile", "compile_autotune", "runtime_index", "constant_index", "tuned",
    ]  # fmt: skip
    # Some of them ended without a time, which isn't an error where a glob names them.
    some = explained("bias_add/*/float32/outer131072-bias1024-inner1", "--run", reference("bias"))
    assert "bias_add/outer1/float32/outer131072-bias1024-inner1 has no time" in words(some)


def test_the_newest_run_below_reports_is_the_default(reference, tmp_path, monkeypatch):
    reference("prelu")
    reference("trust")
    monkeypatch.chdir(tmp_path)
    # The run trust is older.
    assert "run: reports/prelu;" in explained("prelu/tuned/float32/N134217728-C1-H1-W1")


def test_what_is_refused(tmp_path, monkeypatch, reference):
    text = explained("prelu/naiv/float32/N134217728-C1-H1-W1", "--run", reference("prelu"), code=2)
    assert "did you mean prelu/naive/float32/N134217728-C1-H1-W1" in text
    unsupported = "bias_add/outer1/float32/outer131072-bias1024-inner1"
    assert f"error: {unsupported} has no time, it is unsupported" in explained(
        unsupported, "--run", reference("bias"), code=2
    )
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert "no run lies in reports\n" in explained("prelu/naive", code=2)


def test_counters_decide(tmp_path: Path, header: Header, measurement: Callable[[int], Measurement]) -> None:
    """A copy of 2^20 floats in four times its ceiling, of which a profiler tells that it has one block."""
    made = measurement(2**20)
    made = replace(made, case=replace(made.case, device="cuda"), samples=(8e-6,) * 20)
    device = replace(header.machine.device, multiprocessors=100)
    limits = Limits(tuple(StreamPoint(n, n, n / 2e12, "kernel") for n in (2**20, 2**26)))
    full = replace(
        header,
        machine=replace(header.machine, devices=(device,)),
        limits=limits,
        scenarios=(Scenario("copy", "", "copy", (made.case.id,)),),
    )
    with store.create(tmp_path / "run", full) as writer:
        writer.append(made)
    values = (("time", 8e-6), ("grid", 1.0), ("load_requests", 1.0))
    store.attach(tmp_path / "run", [Attachment(made.case.id, "ncu", kernels=(KernelProfile("alone", 1.0, values),))])
    text = words(explained(made.case.id, "--run", tmp_path / "run"))
    # The ceiling is 2^22 B / 2e12 B/s = 2.097 us; 99% of 8 us would be less than that.
    assert "8.000 us, 26.2% of the ceiling: 2.097 us, by memory" in text
    assert "Too small a grid: 1 block for 100 multiprocessors, so 99% of the device is idle." in text
    assert "saves at most 5.903 us of 8.000 us: 99% of it" in text
    assert "counters: ncu, 1 kernel" in text
    assert "harness profile" not in text


def test_a_later_run_without_counters_names_the_older_one(
    tmp_path: Path, header: Header, measurement: Callable[[int], Measurement], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = measurement(2**20)
    made = replace(made, case=replace(made.case, device="cuda"))
    kernels = {
        "old": ("ncu", KernelProfile("copy", 1.0, (("time", 8e-6), ("read_bytes", 2.0**22)))),
        "timed": ("nsys", KernelProfile("copy", 1.0, (("time", 8e-6),))),
        "plain": None,
    }
    monkeypatch.chdir(tmp_path)
    for day, (name, found) in enumerate(kernels.items(), 1):
        folder = Path("reports") / name
        with store.create(folder, replace(header, started=f"2026-01-0{day}T00:00:00+00:00")) as writer:
            writer.append(made)
        if found:
            store.attach(folder, [Attachment(made.case.id, found[0], kernels=(found[1],))])
        text = words(explained(made.case.id))
        assert f"run: reports/{name};" in text
        assert ("an older run, reports/old, has counters: name it by --run" in text) == (name != "old")
        assert ("harness profile ncu" in text) == (name != "old")
        if name == "timed":
            assert "counters: none (of nsys, 1 kernel, only times)" in text


def test_ids_are_completed(tmp_path, monkeypatch, reference):
    reference("prelu")
    monkeypatch.chdir(tmp_path)
    assert "prelu/naive/float32/N134217728-C1-H1-W1" in list(completion.cases("prelu/naive/float32"))
    (tmp_path / "reports" / "prelu" / "run.json").write_text("[1]")
    assert list(completion.cases("")) == []


@pytest.mark.parametrize(("pattern", "parts"), [("softmax/tuned", "2 parts"), ("softmax", "1 part")])
def test_a_part_of_an_id_is_told_from_an_id(pattern: str, parts: str, reference: Callable[[str], Path]) -> None:
    said = words(explained(pattern, "--run", reference("softmax"), code=2))
    assert f"'{pattern}' has {parts}; an id has 4 or more: op/variant/type/size" in said
    assert f"'{pattern}/*'" in said
