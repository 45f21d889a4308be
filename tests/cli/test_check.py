"""`harness check`: correctness alone."""

from __future__ import annotations

import io
import math
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from harness import runner
from harness.cli import app, check, small_cases
from harness.cli.check_progress import Told
from harness.errors import UsageError
from harness.model import Case, Job, Measurement, Warning, Work
from harness.ops import Catalogue, Choice, Op, Tensor
from harness.scenario import find, load
from tests.one_test import one_test

Harness = Callable[..., subprocess.CompletedProcess[str]]
MINE = """
from harness.ops import Op, Tensor

OP = Op(
    "mine", "y = 2 x", symbols={"M": "rows", "N": "columns"}, dtypes=("float32",),
    inputs=(Tensor("x", ("M", "N")),), outputs=(Tensor("y", ("M", "N")),),
    reference=lambda _, t: {"y": 2 * t.x.double()},
)

@OP.variant("right", "doubles", devices=("cpu",))
def right(ctx):
    return lambda t: t.y.copy_(2 * t.x)

@OP.variant("wrong", "triples", devices=("cpu",))
def wrong(ctx):
    return lambda t: t.y.copy_(3 * t.x)

@OP.variant("broken", "raises", devices=("cpu",))
def broken(ctx):
    return lambda t: t.y.copy_(t.x[:, 1:])

@OP.variant("kernel", "needs a GPU")
def kernel(ctx): ...
"""


@pytest.fixture
def checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `harness check` in this process, which checks each case, however long that takes on a loaded machine."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(check, "_SECONDS", math.inf)
    return lambda *arguments: CliRunner().invoke(app, ["check", *arguments, "--device=cpu"])


def test_a_file_is_checked_without_a_scenario(checked: Callable[..., Result], folder: Path) -> None:
    (folder / "mine.py").write_text(MINE)
    done = checked("--ops=mine.py")
    assert done.exit_code == 5
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["ok", "mine/right/float32/M3-N7"]
    assert lines[1].split() == ["wrong", "mine/wrong/float32/M3-N7"]
    assert "21 of 21 elements are wrong" in lines[2]
    assert lines[3].split() == ["crashed", "mine/broken/float32/M3-N7"]
    assert lines[4].strip().startswith("RuntimeError: ")
    assert lines[4].endswith("(mine.py:20 in <lambda>: return lambda t: t.y.copy_(t.x[:, 1:]))")
    cases = {line.split()[1] for line in lines if "mine/right/" in line}
    assert cases == {f"mine/right/float32/{shape}" for shape in ("M3-N7", "M1-N7", "M16-N24")}
    assert lines[-1] == "3 ok, 3 wrong, 3 crashed"
    left_out, chosen, _ = done.stderr.splitlines()
    assert left_out == "left out on cpu: mine/kernel (needs cuda)"
    assert chosen.startswith("these sizes are chosen by 'harness check'. Where an op can't have some, it says so")


@pytest.mark.slow  # the test above has what is told of kernels that are left out
def test_of_kernels_that_nobody_asked_for_nothing_is_told(checked: Callable[..., Result], folder: Path) -> None:
    (folder / "mine.py").write_text(MINE)
    assert checked("--ops=mine.py", "mine", "--variants=right,wrong").stderr == ""


def told(*measurements: Measurement, ops: dict[str, Op]) -> tuple[Told, str]:
    drawn = io.StringIO()
    with Told(Console(file=drawn, width=200), Console(file=io.StringIO()), ops) as teller:
        for measurement in measurements:
            teller.finished(measurement)
    return teller, drawn.getvalue()


@one_test(
    ("statuses", "passed"),
    [
        (["ok"], True),
        (["ok", "unsupported", "out_of_memory"], True),
        (["ok", "timeout"], False),
        (["unsupported"], False),
        ([], False),
    ],
)
def test_some_case_must_be_right_and_none_may_fail(
    statuses: list[str], passed: bool, measurement: Callable[[int], Measurement]
) -> None:
    case = measurement(8).case
    ops = {"copy": Op("copy", "", {}, reference=lambda *_: {})}
    teller, _ = told(*(Measurement(case, status) for status in statuses), ops=ops)
    assert teller.passed is passed


def test_a_result_that_is_a_little_off_is_marked(measurement: Callable[[int], Measurement]) -> None:
    off = Measurement(measurement(8).case, "ok", warnings=(Warning("inexact", "y is off", "compare with care"),))
    _, drawn = told(off, ops={"copy": Op("copy", "", {}, reference=lambda *_: {})})
    assert drawn.splitlines()[0].split() == ["ok", "copy/eager/float32/N8", "[inexact]"]


def test_an_op_without_a_reference_is_not_said_to_be_right(measurement: Callable[[int], Measurement]) -> None:
    teller, drawn = told(Measurement(measurement(8).case, "ok"), ops={"copy": Op("copy", "", {})})
    assert drawn.splitlines()[0].split() == ["unchecked", "copy/eager/float32/N8"]
    assert not teller.passed
    assert teller.summary == "1 unchecked: no result was found right"


def test_sizes_differ_and_follow_defaults() -> None:
    op = Op("o", "", {"M": "", "N": "", "K": ""}, defaults={"K": "M * N"}, choices={"p": Choice("", ("a", "b"))})
    op.variant("v", "")(lambda _: print)
    made = small_cases.definition(op)
    assert made
    assert [setting.shape for setting in made.settings] == [
        (("M", 3), ("N", 7), ("K", 21)),
        (("M", 1), ("N", 7), ("K", 7)),
        (("M", 16), ("N", 24), ("K", 384)),
    ]
    assert made.settings[0].choices == (("p", "a"),)
    alone = Op("o", "", {"N": ""}, inputs=(Tensor("x", ("N",)),))
    alone.variant("v", "")(lambda _: print)
    found = small_cases.definition(alone)
    assert found
    assert [dict(setting.shape)["N"] for setting in found.settings] == [1023, 1, 4096]


def test_sizes_that_an_op_refuses_are_left_out() -> None:
    op = Op("o", "", {"M": "", "N": ""}, inputs=(Tensor("x", ("M", "N")),))

    def even(symbols: Mapping[str, int], _: int) -> Work:
        if symbols["N"] % 8:
            raise UsageError("N is no multiple of 8")
        return Work(1, 1)

    op.work = even
    op.variant("v", "")(lambda _: print)
    made = small_cases.definition(op)
    assert made
    assert [dict(setting.shape) for setting in made.settings] == [{"M": 16, "N": 24}]


def test_an_op_with_inputs_of_its_own_has_the_smallest_sizes_of_its_scenario() -> None:
    catalogue = Catalogue()
    [scenario] = load(find(["softmax_grad"]), catalogue)
    own = catalogue["softmax_grad"]
    assert own.make is not None
    made = small_cases.definition(own, [scenario])
    assert made
    assert set(made.settings) < set(scenario.settings)
    assert len(made.settings) == 2


def test_each_variant_comes_first_and_libraries_last() -> None:
    op = Op("o", "", {"N": ""})
    op.variant("eager", "", role="baseline")(lambda _: print)
    op.variant("ours", "")(lambda _: print)
    cases = [Case("o", name, "float32", (("N", n),)) for n in (1, 2) for name in ("eager", "ours")]
    jobs, always = small_cases.ordered([Job(case) for case in cases], {"o": op})
    assert [job.case.id.split("/", 1)[1] for job in jobs] == [
        "eager/float32/N1",
        "ours/float32/N1",
        "ours/float32/N2",
        "eager/float32/N2",
    ]
    assert always == 2


def test_time_that_is_up_leaves_cases_out(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "mine.py").write_text(MINE)
    monkeypatch.setattr(check, "_SECONDS", 0.0)
    done = CliRunner().invoke(app, ["check", f"--ops={folder / 'mine.py'}", "--device=cpu", "--variants=right"])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "1 ok; 2 not checked in 0 s"


AWKWARD = """
import torch
from harness.ops import Op, Tensor

OP = Op(
    "row", "softmax", symbols={"M": "rows", "N": "columns"}, dtypes=("float32",),
    inputs=(Tensor("x", ("M", "N")),), outputs=(Tensor("y", ("M", "N")),),
    reference=lambda _, t: {"y": torch.softmax(t.x.double(), 1)}, tolerance={"float32": (1e-5, 1e-7)},
)

@OP.variant("right", "softmax", devices=("cpu",))
def right(ctx):
    return lambda t: t.y.copy_(torch.softmax(t.x, 1))

@OP.variant("overflows", "without the maximum", devices=("cpu",))
def overflows(ctx):
    def launch(t):
        powers = torch.exp(t.x)
        t.y.copy_(powers / powers.sum(1, keepdim=True))
    return launch

@OP.variant("aligned", "needs addresses that 16 divides", devices=("cpu",))
def aligned(ctx):
    return lambda t: t.y.copy_(torch.softmax(t.x, 1)) if t.x.data_ptr() % 16 == 0 else t.y.zero_()
"""


@pytest.mark.slow
def test_extreme_values_and_unaligned_tensors_are_tried(checked: Callable[..., Result], folder: Path) -> None:
    (folder / "awkward.py").write_text(AWKWARD)
    done = checked("--ops=awkward.py")
    assert done.exit_code == 5
    text = done.stdout
    assert text.count("where inputs have ") == 3
    assert text.count("with tensors at addresses that 16 doesn't divide, y: ") == 3
    assert not any(line.startswith("wrong") and "row/right" in line for line in text.splitlines())


@pytest.mark.parametrize(
    ("arguments", "cases"),
    [
        (["softmax", "quick"], ["softmax/eager/float32/M3-N7", "prelu/eager/float32/N3-C7-H13-W19"]),
        (["quick", "--all"], ["prelu/eager/float32/N8-C512-H7-W7"]),
    ],
)
def test_what_is_named_says_which_cases_are_checked(
    checked: Callable[..., Result], arguments: list[str], cases: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def right(jobs: Sequence[Job], _device: str, _plugins: object, told: Told, **_: object) -> list[Measurement]:
        found = [Measurement(job.case, "ok") for job in jobs]
        for measurement in found:
            told.finished(measurement)
        return found

    monkeypatch.setattr(runner, "check", right)
    done = checked(*arguments, "--variants=eager")
    assert done.exit_code == 0, done.output
    assert {*cases} <= {*done.stdout.split()}
    assert {case.split("/")[1] for case in done.stdout.split() if case.count("/") > 1} == {"eager"}


# The test above has which cases are meant, test_a_file_is_checked_without_a_scenario that such cases are checked.
@pytest.mark.slow
def test_ops_and_scenarios_are_checked(harness: Harness) -> None:
    done = harness("check", "softmax", "quick", "--device=cpu", "--variants=eager")
    assert done.returncode == 0, done.stdout
    assert "softmax/eager/float32/M3-N7" in done.stdout
    assert "prelu/eager/float32/N3-C7-H13-W19" in done.stdout
    whole = harness("check", "quick", "--all", "--device=cpu", "--variants=eager")
    assert "prelu/eager/float32/N8-C512-H7-W7" in whole.stdout


def test_a_file_without_variants_is_nothing_to_check(tmp_path: Path) -> None:
    file = tmp_path / "empty.py"
    file.write_text('from harness.ops import Op\nOP = Op("empty", "", symbols={})\n')
    with pytest.raises(UsageError, match="no op has a variant"):
        check._chosen(Catalogue((file,)), (file,))
