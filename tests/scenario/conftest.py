"""Small ops, and scenario files written by a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import InputError, Problem
from harness.ops import Context, Launch, Op, Tensor
from harness.scenario import Definition, load


def _launch(_: Context) -> Launch:
    return lambda _: None


@pytest.fixture
def catalogue() -> dict[str, Op]:
    """`add`: M x N, two ranks where M is 2. `shrink`: one symbol, a default, CUDA only."""
    add = Op(
        "add",
        "y = a + b",
        symbols={"M": "rows", "N": "columns"},
        inputs=(Tensor("a", ("M", "N")), Tensor("b", ("M", "N"))),
        outputs=(Tensor("y", ("M", "N")),),
        ranks="min(M, 2)",
    )
    add.variant("fast", "a kernel")(_launch)
    add.variant("eager", "torch", devices=("cuda", "cpu"))(_launch)
    add.variant("slow", "another kernel")(_launch)
    shrink = Op(
        "shrink",
        "y = x[::2]",
        symbols={"N": "elements", "K": "elements kept"},
        defaults={"K": "N // 2"},
        inputs=(Tensor("x", ("N",)),),
        outputs=(Tensor("y", ("K - 2",)),),
        dtypes=("float32",),
        flops="K * K",
    )
    shrink.variant("first", "a kernel")(_launch)
    shrink.variant("second", "another kernel")(_launch)
    return {"add": add, "shrink": shrink}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a scenario and gives its path, relative to the current folder."""
    monkeypatch.chdir(tmp_path)

    def write_(text: str, name: str = "s.yaml") -> Path:
        Path(name).write_text(text, encoding="utf-8")
        return Path(name)

    return write_


@pytest.fixture
def loaded(write: Callable[..., Path], catalogue: dict[str, Op]) -> Callable[..., Definition]:
    """The definition that a text gives. `title` and `op: add` are added in front."""

    def load_(text: str, name: str = "s.yaml", op: str = "add") -> Definition:
        [definition] = load([write(f"title: t\nop: {op}\n{text}", name)], catalogue)
        return definition

    return load_


@pytest.fixture
def refused(write: Callable[..., Path], catalogue: dict[str, Op]) -> Callable[[str], list[tuple[str, str]]]:
    """What is wrong with a text: (place in the file, message and advice) of each problem."""

    def refused_(text: str) -> list[tuple[str, str]]:
        with pytest.raises(InputError) as caught:
            load([write(text)], catalogue)
        return [told(problem) for problem in caught.value.problems]

    return refused_


def told(problem: Problem) -> tuple[str, str]:
    """Place without the file's name, and all that is said."""
    return problem.where.removeprefix("s.yaml:"), f"{problem.message}; {problem.advice}".removesuffix("; ")
