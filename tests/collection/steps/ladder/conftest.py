"""What the tests of users' steps share: a survey of a step, its op, and a session of one of its rungs on the CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from harness.collection.steps import ladder
from harness.collection.steps.ladder._trainer import StepTrainer
from harness.devices.cpu import Cpu
from harness.model import Case
from harness.ops import Op
from harness.session import Session
from tests.collection.conftest import traced_only

STEPS = Path(__file__).parents[3] / "plugins" / "steps"
Ready = Callable[..., AbstractContextManager[Session]]


@cache
def answered(name: str) -> dict[str, Any]:
    """What the survey finds of a step of tests/plugins/steps."""
    request = {"source": str(STEPS / f"{name}.py"), "device": "cpu", "size": 4, "prefix": "ladder_", "world": 1}
    return ladder.survey(request)


@cache
def op_of(name: str, world: int = 1) -> Op:
    """The op of a step. world: the most devices that it is measured on."""
    known = answered(name)
    return ladder.op(**{**known, "world": world})


@pytest.fixture(autouse=True)
def one(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test here has one thread, and gives back what loading a step and compiling it change in the process."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    with patch.dict(os.environ):
        yield


@pytest.fixture
def ready() -> Ready:
    """ready(step, rung, dtype): a session of a rung, prepared on the CPU. Compiled rungs are traced only."""

    @contextmanager
    def session(name: str, rung: str, dtype: str = "bfloat16") -> Iterator[Session]:
        op = op_of(name)
        case = Case(op.name, rung, dtype, (("B", answered(name)["size"]),), device="cpu")
        with traced_only(torch.device("cpu")), Session(case, op, Cpu()) as made:
            made.prepare()
            yield made

    return session


@pytest.fixture
def patched_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[StepTrainer], object]], None]:
    """patched_to(change): the model of a rung with our kernels is changed once more."""

    def put(change: Callable[[StepTrainer], object]) -> None:
        real = StepTrainer._patch

        def patched(trainer: StepTrainer) -> None:
            real(trainer)
            change(trainer)

        monkeypatch.setattr(StepTrainer, "_patch", patched)

    return put
