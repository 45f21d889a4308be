"""Small ops, and scenario files written by a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import InputError, Problem
from harness.ops import Choice, Context, Launch, Op, Tensor
from harness.scenario import Definition, load


def _launch(_: Context) -> Launch:
    return lambda _: None


@pytest.fixture
def catalogue() -> dict[str, Op]:
    """`add`: M x N. `shrink`: one symbol, a default, CUDA only. `scale`: two choices."""
    add = Op(
        "add",
        "y = a + b",
        symbols={"M": "rows", "N": "columns"},
        inputs=(Tensor("a", ("M", "N")), Tensor("b", ("M", "N"))),
        outputs=(Tensor("y", ("M", "N")),),
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
        flops={"float32": "K * K"},
    )
    shrink.variant("first", "a kernel")(_launch)
    shrink.variant("second", "another kernel")(_launch)
    scale = Op(
        "scale",
        "y = x in another layout, times a factor",
        symbols={"N": "elements"},
        choices={
            "layout": Choice("order of the elements", values=("forward", "backward")),
            "keep": Choice("whether x is kept", values=("yes", "no")),
            "factor": Choice("what x is multiplied by", low=0.0, high=2.0, default=0.5),
        },
        inputs=(Tensor("x", lambda values: (values["N"] if values["keep"] == "no" else 2 * values["N"],)),),
        dtypes=("float32",),
    )
    scale.variant("eager", "torch", role="baseline", devices=("cuda", "cpu"))(_launch)
    return {"add": add, "shrink": shrink, "scale": scale}


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
