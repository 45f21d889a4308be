"""Variants: the ways of doing an op, and what a variant is prepared with.

Nothing here or at the top of an op's file imports torch: a listing of ops must stay instant. Functions do, when they
run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, get_args

from harness import metrics
from harness.errors import UsageError, nearest, user_place
from harness.model import LIBRARY_ROLES, Case, KernelFacts, Timer, Traffic
from harness.ops.declarations import (
    check_callable,
    check_devices,
    check_name,
    check_one_of,
    check_text,
    check_tuple,
    refusal,
)
from harness.ops.tensors import Symbols, Tensor
from harness.ranks import Group

if TYPE_CHECKING:
    import torch

    from harness.cuda import Kernel
    from harness.ops.sheet import Op

Tensors = SimpleNamespace
Launch = Callable[[Tensors], Any]
Role = Literal["baseline", "peer", "published", "ours", "control"]
"""What a variant is in a comparison.

baseline: what a good user would write in torch. peer: another library. published: a text's before or after. ours: what
this project adds. control: a library's copy, which no change of ours can slow down.
"""


@dataclass(slots=True)
class Context:
    """What a variant is prepared with.

    case, s: the case, and its sizes and choices as attributes (`ctx.s.N`, `ctx.s.layout`). dtype, device: torch's.
    generator: seeded by the group of cases, so that every variant gets the same data. group: the ranks of the case;
    where it has several, torch.distributed has a default group of them, gloo's.
    """

    case: Case
    dtype: torch.dtype
    device: torch.device
    generator: torch.Generator
    op: Op
    group: Group = field(default_factory=Group)
    kernels: list[KernelFacts] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    closing: ExitStack = field(default_factory=ExitStack)
    later: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        variant = self.op.variants.get(self.case.variant)
        if variant and (kept := self.op.kept_by(variant, self.case.values, self.case.dtype)):
            self.facts[metrics.KEPT] = float(kept)

    @property
    def s(self) -> SimpleNamespace:
        return SimpleNamespace(**self.case.values)

    def kernel(self, file: str, entry: str, macros: Mapping[str, str | int] | None = None) -> Kernel:
        """Compile and load the kernel `entry` of kernels/<family>/`file`; a plug-in's own folder is searched first.

        Raises UsageError where there is no such file, and CompileError with the compiler's log.
        """
        from harness import cuda

        loaded = cuda.load(self._source(file), entry, macros or {})
        self.kernels.append(loaded.facts)
        return loaded

    def _source(self, file: str) -> Path:
        variant = self.op.variants.get(self.case.variant)
        found = self.op.find(file, variant.file if variant else None)
        if not found.is_file():
            there = {path.name for path in (*found.parent.glob("*.cu"), *found.parent.glob("*/*.cu"))}
            beside = self.op.file.parent if self.op.file else found.parent
            there |= {path.name for path in beside.glob("*.cu")}
            raise refusal(f"there is no kernel source '{file}' in {beside} or {found.parent}", nearest(file, there))
        return found

    def defer(self, close: Callable[[], object]) -> None:
        """Call `close` when the case is over, however it ends; what was deferred last is called first."""
        self.closing.callback(close)

    def afterwards(self, call: Callable[[], object]) -> None:
        """Call `call` once the case has been timed and nothing was wrong, on every rank: there it may report figures.

        Unlike what is deferred, it may make calls in which ranks wait for each other.
        """
        self.later.append(call)

    def report(self, name: str, value: float) -> None:
        """Report a figure that only the variant knows, such as the share of time that a queue was empty.

        name: a metric made with `metrics.fact`. Raises UsageError for any other name.
        """
        known = [metric.name for metric in metrics.METRICS.values() if metric.reported]
        if name not in known:
            advice = f"metrics.fact(...) adds one; {nearest(name, known)}"
            raise UsageError(f"'{name}' can't be reported: no fact has this name", advice)
        self.facts[name] = float(value)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of doing the op.

    summary: one line, what it does differently. role: what it is in a comparison. rows: techniques of public texts that
    it reproduces. inputs, outputs: declared where they differ from the op's; then `encode(ctx, tensors)` gives this
    variant's inputs (a dict by name) from the op's inputs and its own empty outputs, for each set of buffers, and
    `decode(ctx, tensors)` gives the op's outputs (a dict by name) from what this variant wrote. What `encode` gives
    need not be declared, nor be a tensor: a table of addresses, for one, which no launch can make while a graph is
    captured. traffic(symbols, itemsize): bytes that it moves, where its declarations don't tell. unsupported: a reason
    why it can't run a case, or None. timer: how it is timed; the op's unless told. returns: it makes its own outputs,
    as torch does, and returns them. place: the file and line of its declaration. Raises UsageError, with that place,
    for a field of another type, and for a role, a timer or a device that doesn't exist.
    """

    name: str
    summary: str
    prepare: Callable[[Context], Launch]
    role: Role = "ours"
    rows: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cuda",)
    inputs: tuple[Tensor, ...] | None = None
    outputs: tuple[Tensor, ...] | None = None
    encode: Callable[[Context, Tensors], dict[str, Any]] | None = None
    decode: Callable[[Context, Tensors], dict[str, Any]] | None = None
    traffic: Callable[[Symbols, int], Traffic] | None = None
    unsupported: Callable[[Case], str | None] | None = None
    timer: Timer = ""
    returns: bool = False
    place: str = field(default_factory=user_place)

    def __post_init__(self) -> None:
        check_name("a variant", self.name)
        whose = f"variant '{self.name}'"
        check_text(whose, summary=self.summary)
        check_callable(whose, 1, function=self.prepare, unsupported=self.unsupported)
        check_callable(whose, 2, encode=self.encode, decode=self.decode, traffic=self.traffic)
        check_one_of(whose, self.role, "role", get_args(Role))
        check_tuple(whose, self.rows, "rows", str, "('R1', 'R2')")
        check_devices(whose, self.devices)
        for what, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            if tensors is not None:
                check_tuple(whose, tensors, what, Tensor, "(Tensor('x', ('N',)),)")
        if self.timer:
            check_one_of(whose, self.timer, "timer", get_args(Timer))

    @property
    def file(self) -> Path | None:
        """The file that declares the variant."""
        return Path(self.place.rpartition(":")[0]) if self.place else None

    @property
    def is_library(self) -> bool:
        """Whether it is somebody else's code, which is the same whatever changes in ours."""
        return self.role in LIBRARY_ROLES
