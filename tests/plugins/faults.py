"""Ops whose variants go wrong on the CPU in every way that a run must survive."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

from harness.errors import CompileError
from harness.model import Work
from harness.ops import Context, Launch, Op, Tensor, Tensors

OP = Op(
    "fault",
    "copies, unless something goes wrong",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    reference=lambda _ctx, t: {"y": t.x.double()},
)


def copy(t: Tensors) -> None:
    t.y.copy_(t.x)


def prepared(ctx: Context) -> None:
    """Note the case and this process in $FAULT_LOG, where a test looks for what was measured, and by whom."""
    if log := os.environ.get("FAULT_LOG"):
        with Path(log).open("a") as file:
            file.write(f"{ctx.case.id} {os.getpid()}\n")


@OP.variant("fine", "nothing goes wrong", devices=("cpu",))
def fine(ctx: Context) -> Launch:
    prepared(ctx)
    return copy


@OP.variant("abort", "ends the process as a failed assertion of a library does", devices=("cpu",))
def abort(_ctx: Context) -> Launch:
    def launch(_t: Tensors) -> None:
        sys.stderr.write("assertion 'pigs can fly' failed\n")
        os.abort()

    return launch


@OP.variant("segfault", "reads address 0", devices=("cpu",))
def segfault(_ctx: Context) -> Launch:
    return lambda _t: ctypes.string_at(0)


@OP.variant("exit", "ends the process without a message", devices=("cpu",))
def leave(_ctx: Context) -> Launch:
    return lambda _t: os._exit(7)


@OP.variant("endless", "never returns", devices=("cpu",))
def endless(ctx: Context) -> Launch:
    def spin(_t: Tensors) -> None:
        prepared(ctx)
        while True:
            pass

    return spin


@OP.variant("killed", "is killed, as the kernel does when memory runs out", devices=("cpu",))
def killed(_ctx: Context) -> Launch:
    return lambda _t: os.kill(os.getpid(), 9)


@OP.variant("raises", "raises while it is prepared", devices=("cpu",))
def raises(_ctx: Context) -> Launch:
    raise ValueError("no such table")


@OP.variant("uncompilable", "has an error in its kernel", devices=("cpu",))
def uncompilable(_ctx: Context) -> Launch:
    raise CompileError("fault.cu(3): error: expected a ';'", "mend the kernel")


@OP.variant("greedy", "allocates more than there is", devices=("cpu",))
def greedy(_ctx: Context) -> Launch:
    import torch

    return lambda _t: torch.empty(2**55, dtype=torch.uint8)


@OP.variant("noisy", "prints what looks like a reply", devices=("cpu",))
def noisy(_ctx: Context) -> Launch:
    print('{"kind": "ready"}', flush=True)
    os.write(1, b'{"kind": "failed", "message": "no", "advice": "", "exit_code": 2}\n')
    return copy


@OP.variant("forks", "leaves a child behind that holds every file descriptor, and dies", devices=("cpu",))
def forks(_ctx: Context) -> Launch:
    if os.fork() == 0:
        time.sleep(600)
    return lambda _t: os._exit(3)


@OP.variant("waits", "returns once the file $FAULT_GATE exists", devices=("cpu",))
def waits(ctx: Context) -> Launch:
    prepared(ctx)

    def launch(t: Tensors) -> Any:
        while not Path(os.environ["FAULT_GATE"]).exists():
            time.sleep(0.01)
        copy(t)

    return launch


@OP.variant("slow", "takes a millisecond and more", devices=("cpu",))
def slow(_ctx: Context) -> Launch:
    def launch(t: Tensors) -> None:
        time.sleep(1e-3)
        copy(t)

    return launch


LIE = Op(
    "lie",
    "says that it moves 1 TB",
    symbols={"N": "elements"},
    inputs=OP.inputs,
    outputs=OP.outputs,
    reference=OP.reference,
    work=lambda _symbols, _itemsize: Work(read=10**12, written=0),
)
LIE.variant("fine", "moves a little", devices=("cpu",))(fine)
