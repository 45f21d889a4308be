"""An op whose variants write answers of their own to the process that asked for a measurement."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import FrameType
from typing import Any

from harness import intact
from harness.model import Measurement
from harness.ops import Context, Launch, Op, Tensor, Tensors
from harness.processes import messages

intact.remember()  # what small.py has let go
OP = Op(
    "forged",
    "y = x",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    reference=lambda _, t: {"y": t.x},
)


def honest(t: Tensors) -> None:
    t.y.copy_(t.x)


def pipe() -> Any:
    """The pipe of replies of this process, a variable of its main function."""
    frame: FrameType | None = sys._getframe()
    while frame and "pipe" not in frame.f_locals:
        frame = frame.f_back
    assert frame
    return frame.f_locals["pipe"]


def forged(ctx: Context) -> Measurement:
    """A measurement of this case with a time that is too good."""
    return Measurement(ctx.case, "ok", samples=(1e-12,) * 20, call_samples=(1e-12,), timer="host")


@OP.variant("honest", "does what it should", devices=("cpu",))
def honest_one(_: Context) -> Launch:
    return honest


@OP.variant("answers", "answers the question itself, and goes on", devices=("cpu",))
def answers(ctx: Context) -> Launch:
    os.write(pipe()._file.fileno(), messages.encode(messages.Measured(forged(ctx), number=pipe().number)))
    return honest


@OP.variant("replaces", "replaces the function that sends answers", devices=("cpu",))
def replaces(ctx: Context) -> Launch:
    owner = type(pipe())
    own, found = owner.send, forged(ctx)
    owner.send = lambda self, reply: own(self, replace(reply, measurement=found, leaving=False))
    return honest
