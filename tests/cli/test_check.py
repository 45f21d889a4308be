"""`harness check`: correctness alone."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from harness.cli import check
from harness.cli.check_progress import Told
from harness.errors import UsageError
from harness.model import Measurement, Warning
from harness.ops import Catalogue, Choice, Op, Tensor

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


def test_a_file_is_checked_without_a_scenario(harness: Harness, folder: Path) -> None:
    (folder / "mine.py").write_text(MINE)
    done = harness("check", "--ops=mine.py", "--device=cpu")
    assert done.returncode == 5
    right, wrong, why, broken, where, summary = done.stdout.splitlines()
    assert right.split() == ["ok", "mine/right/float32/M16-N24"]
    assert wrong.split() == ["wrong", "mine/wrong/float32/M16-N24"]
    assert "384 of 384 elements are wrong" in why
    assert broken.split() == ["crashed", "mine/broken/float32/M16-N24"]
    assert where.strip().startswith("RuntimeError: ")
    assert where.endswith("(mine.py:20 in <lambda>: return lambda t: t.y.copy_(t.x[:, 1:]))")
    assert summary == "1 ok, 1 wrong, 1 crashed"
    assert done.stderr == "left out on cpu: mine/kernel (needs cuda)\n"


def told(*measurements: Measurement, ops: dict[str, Op]) -> tuple[Told, str]:
    drawn = io.StringIO()
    with Told(Console(file=drawn, width=200), Console(file=io.StringIO()), ops) as teller:
        for measurement in measurements:
            teller.finished(measurement)
    return teller, drawn.getvalue()


@pytest.mark.parametrize(
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
    [setting] = check._definition(op).settings
    assert setting.shape == (("M", 16), ("N", 24), ("K", 384))
    assert setting.choices == (("p", "a"),)
    alone = Op("o", "", {"N": ""}, inputs=(Tensor("x", ("N",)),))
    alone.variant("v", "")(lambda _: print)
    assert check._definition(alone).settings[0].shape == (("N", 4096),)


def test_a_file_without_variants_is_nothing_to_check(tmp_path: Path) -> None:
    file = tmp_path / "empty.py"
    file.write_text('from harness.ops import Op\nOP = Op("empty", "", symbols={})\n')
    with pytest.raises(UsageError, match="no op has a variant"):
        check._chosen(Catalogue((file,)), (file,))
