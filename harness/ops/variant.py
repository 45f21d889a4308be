"""Variants: the ways of doing an op.

Nothing here or at the top of an op's file imports torch: a listing of ops must stay instant. Functions do, when they
run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args

from harness.errors import shown, user_place
from harness.model import COMPUTE_KINDS, LIBRARY_ROLES, Case, Timer, Traffic
from harness.ops.declarations import (
    ANY_DEVICE,
    check_callable,
    check_devices,
    check_flag,
    check_name,
    check_one_of,
    check_text,
    check_tuple,
    refusal,
)
from harness.ops.tensors import Symbols, Tensor
from harness.ops.tuning import Tuning

Tensors = SimpleNamespace
Launch = Callable[[Tensors], Any]
# What stands for Any is a `harness.ops.Context`, which has the op, whose file imports this one.
Prepare = Callable[[Any], Launch]
Recode = Callable[[Any, Tensors], dict[str, Any]]
Arithmetic = Callable[[Symbols, int], tuple[tuple[str, int], ...]]
Role = Literal["baseline", "peer", "published", "ours", "control"]
"""What a variant is in a comparison.

baseline: what a good user would write in torch. peer: another library. published: a text's before or after. ours: what
this project adds. control: a library's copy, which no change of ours can slow down.
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of doing the op.

    summary: one line, what it does differently. role: what it is in a comparison. rows: techniques of public texts that
    it reproduces. devices: kinds of device that it runs on; ("any",) if it is plain torch. inputs, outputs: declared
    where they differ from the op's; then `encode(ctx, tensors)` gives this variant's inputs (a dict by name) from the
    op's inputs and its own empty outputs, for each set of buffers, and `decode(ctx, tensors)` gives the op's outputs (a
    dict by name) from what this variant wrote. What `encode` gives need not be declared, nor be a tensor: a table of
    addresses, for one, which no launch can make while a graph is captured. traffic(symbols, itemsize): bytes that it
    moves, where its declarations don't tell. arithmetic: the type in which it does the operations of the work, such as
    'tf32', where that isn't the work's type; for several types a function(symbols, itemsize) that gives each with its
    operations, such as (('int8', 10), ('case', 5)), together as many as the work has. This variant's ceiling has the
    peaks of these types; the work and the ceilings of other variants stay as they are. unsupported: a reason why it
    can't run a case, or None. timer: how it is timed; the op's unless told. returns: it makes its own outputs, as torch
    does, and returns them. tuning: its plans, which `harness tune` searches. place: the file and line of its
    declaration. Raises UsageError, with that place, for a field of another type, and for a role, a timer, a device or a
    type of operations that doesn't exist.
    """

    name: str
    summary: str
    prepare: Prepare
    role: Role = "ours"
    rows: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cuda",)
    inputs: tuple[Tensor, ...] | None = None
    outputs: tuple[Tensor, ...] | None = None
    encode: Recode | None = None
    decode: Recode | None = None
    traffic: Callable[[Symbols, int], Traffic] | None = None
    arithmetic: str | Arithmetic = ""
    unsupported: Callable[[Case], str | None] | None = None
    timer: Timer = ""
    returns: bool = False
    tuning: Tuning | None = None
    place: str = field(default_factory=user_place)

    def __post_init__(self) -> None:
        check_name("a variant", self.name)
        whose = f"variant '{self.name}'"
        check_text(whose, summary=self.summary, place=self.place)
        check_flag(whose, returns=self.returns)
        check_callable(whose, 1, function=self.prepare, unsupported=self.unsupported)
        check_callable(whose, 2, encode=self.encode, decode=self.decode, traffic=self.traffic)
        if not isinstance(self.arithmetic, str):
            check_callable(whose, 2, arithmetic=self.arithmetic)
        elif self.arithmetic:
            check_one_of(whose, self.arithmetic, "arithmetic", COMPUTE_KINDS)
        check_one_of(whose, self.role, "role", get_args(Role))
        check_tuple(whose, self.rows, "rows", str, "('R1', 'R2')")
        check_devices(whose, self.devices)
        for what, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            if tensors is not None:
                check_tuple(whose, tensors, what, Tensor, "(Tensor('x', ('N',)),)")
        if not isinstance(self.tuning, Tuning | None):
            raise refusal(f"tuning of {whose} is {shown(self.tuning)}", "for example Tuning(parameters=..., rule=...)")
        if self.timer != "":
            check_one_of(whose, self.timer, "timer", get_args(Timer))

    @property
    def file(self) -> Path | None:
        """The file that declares the variant."""
        return Path(self.place.rpartition(":")[0]) if self.place else None

    def runs_on(self, kind: str) -> bool:
        """Whether it can run on a kind of device."""
        return kind in self.devices or ANY_DEVICE in self.devices

    @property
    def is_library(self) -> bool:
        """Whether it is somebody else's code, which is the same whatever changes in ours."""
        return self.role in LIBRARY_ROLES
