"""The data sheet of an op: symbols, choices, tensors, a reference and variants.

Nothing here or at the top of an op's file imports torch: a listing of ops must stay instant. Functions do, when they
run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, get_args

from harness import metrics
from harness.errors import UsageError, nearest
from harness.expressions import evaluate, symbols_in
from harness.model import LIBRARY_ROLES, Case, KernelFacts, Timer, Traffic, Value, Work
from harness.ranks import Group

if TYPE_CHECKING:
    import torch

    from harness.cuda import Kernel
    from harness.ops.comparer import Expected

Tensors = SimpleNamespace
Launch = Callable[[Tensors], Any]
Symbols = Mapping[str, Any]
"""Sizes (integers) and choices (names or numbers) of a case by name, and `world`, its number of devices."""
Shape = tuple[int, ...]
Shapes = tuple[str | int, ...] | Callable[[Symbols], Shape | list[Shape]]
Role = Literal["baseline", "peer", "published", "ours", "control"]
"""What a variant is in a comparison.

baseline: what a good user would write in torch. peer: another library. published: a text's before or after. ours: what
this project adds. control: a library's copy, which no change of ours can slow down.
"""

ITEMSIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Choice:
    """A named option of an op that isn't a size: one of `values`, or a number from `low` to `high`.

    meaning: what it decides, in a few words. default: the first of `values`, or `low`, unless told. Raises UsageError
    where the default isn't allowed.
    """

    meaning: str
    values: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    default: Value | None = None

    def __post_init__(self) -> None:
        if not self.accepts(self.usual):
            raise UsageError(f"the default of a choice is {self.usual!r}, which it doesn't allow", self.allowed)

    @property
    def usual(self) -> Value:
        """The value where a scenario gives none."""
        if self.default is not None:
            return self.default
        return self.values[0] if self.values else self.low

    @property
    def allowed(self) -> str:
        """What may be chosen, in words."""
        if self.values:
            return ", ".join(map(str, self.values))
        return f"a number from {self.low:g} to {self.high:g}"

    def accepts(self, value: object) -> bool:
        """Whether the value may be chosen."""
        if isinstance(value, bool):
            return False  # Python takes True for 1
        if self.values:
            return value in self.values
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Tensor:
    """Declaration of a tensor, or of a list of tensors.

    shape: one expression of the op's symbols a dimension; or a function of sizes and choices that gives a shape (a
    tuple of integers), or a list of shapes, which declares a list of tensors. dtype: 'case' for the case's, or a name
    such as 'uint8'. inplace: an input that is updated: read once and written once. kept: an output that only the
    backward reads, such as a mask: a training step keeps its bytes.
    """

    name: str
    shape: Shapes
    dtype: str = "case"
    inplace: bool = False
    kept: bool = False

    def is_list(self, symbols: Symbols) -> bool:
        """Whether it is a list of tensors."""
        return callable(self.shape) and isinstance(self.shape(symbols), list)

    def shapes(self, symbols: Symbols) -> list[Shape]:
        """Sizes of each tensor declared."""
        if not callable(self.shape):
            return [tuple(evaluate(size, symbols) for size in self.shape)]
        given = self.shape(symbols)
        return [tuple(shape) for shape in given] if isinstance(given, list) else [tuple(given)]

    def dtype_of(self, case_dtype: str) -> str:
        return case_dtype if self.dtype == "case" else self.dtype

    def bytes(self, symbols: Symbols, case_dtype: str) -> int:
        """Bytes of all tensors declared."""
        elements = 0
        for shape in self.shapes(symbols):
            count = 1
            for extent in shape:
                count *= extent
            elements += count
        return elements * ITEMSIZE[self.dtype_of(case_dtype)]


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

        Raises CompileError with the compiler's log.
        """
        from harness import cuda

        loaded = cuda.load(self.op.find(file), entry, macros or {})
        self.kernels.append(loaded.facts)
        return loaded

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
    as torch does, and returns them. Raises UsageError for an unknown role.
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

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise UsageError(f"variant '{self.name}' has the role '{self.role}'", nearest(self.role, get_args(Role)))

    @property
    def is_library(self) -> bool:
        """Whether it is somebody else's code, which is the same whatever changes in ours."""
        return self.role in LIBRARY_ROLES


@dataclass(slots=True)
class Op:
    """The data sheet of an operator.

    symbols: meaning of each size, in the order of ids. defaults: expressions for symbols that a scenario may leave out
    (sizes are 1 or more; 0 too where a default is '0'). choices: named options that aren't sizes, in the order of ids.
    reference(ctx, t): all declared outputs, and the inputs that are updated in place, by name, in higher precision.
    make(ctx): inputs by name, where random numbers won't do. check(ctx, t): what each output must be and how far off it
    may be, or a complaint, where the comparison with the reference won't do; `t.before` has the inputs as they were.
    tolerance: relative and absolute, by dtype.
    work(symbols, itemsize): what one call has to do, where the declared tensors (each input read once, each output
    written once) don't tell. It names the leanest form that is known, since no variant changes it. flops: expressions,
    by the type that the operations are done in, 'case' for the case's. items: an expression, what a user counts of a
    call; `item` names it. `work` may give both itself. timer: how variants are timed unless they say. pages: what
    reports have of the op beside the table of its cases, as the name of a module, or a function that gives it;
    harness.report.sections says what it may have.

    Raises UsageError where a symbol and a choice share a name, and where a dtype or a name in an expression is unknown.
    """

    name: str
    summary: str
    symbols: dict[str, str]
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    defaults: dict[str, str] = field(default_factory=dict)
    choices: dict[str, Choice] = field(default_factory=dict)
    dtypes: tuple[str, ...] = FLOATS
    reference: Callable[[Context, Tensors], dict[str, Any]] | None = None
    make: Callable[[Context], dict[str, Any]] | None = None
    check: Callable[[Context, Tensors], Iterable[Expected | str]] | None = None
    tolerance: dict[str, tuple[float, float]] = field(default_factory=dict)
    work: Callable[[Symbols, int], Work] | None = None
    flops: dict[str, str] = field(default_factory=dict)
    items: str = "0"
    item: str = ""
    timer: Timer = "graph"
    pages: str | Callable[[], object] = ""
    file: Path | None = None
    variants: dict[str, Variant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if both := ", ".join(self.symbols.keys() & self.choices.keys()):
            raise UsageError(f"op '{self.name}' has a symbol and a choice named {both}", "rename one of them")
        if "world" in {*self.symbols, *self.choices}:
            advice = "rename it: 'world' is the number of devices of a case"
            raise UsageError(f"op '{self.name}' has a symbol or a choice named world", advice)
        _known_dtypes(f"op '{self.name}'", {*self.dtypes, *self.tolerance})
        self._check_names([*self.defaults.values(), *self.flops.values(), self.items])
        self._check(*self.inputs, *self.outputs)

    def variant(self, name: str, summary: str, **options: Any) -> Callable[[Callable[[Context], Launch]], Any]:
        """Decorator that adds a variant; `options` are Variant's fields. Raises UsageError if the name is taken."""

        def add(prepare: Callable[[Context], Launch]) -> Callable[[Context], Launch]:
            if name in self.variants:
                raise UsageError(f"op '{self.name}' has two variants named '{name}'", "rename one of them")
            made = Variant(name, summary, prepare, **options)
            self._check(*(made.inputs or ()), *(made.outputs or ()))
            self.variants[name] = made
            return prepare

        return add

    def _check(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            _known_dtypes(f"tensor '{tensor.name}' of op '{self.name}'", {tensor.dtype} - {"case"})
            if not callable(tensor.shape):
                self._check_names(tensor.shape)

    def _check_names(self, expressions: Iterable[str | int]) -> None:
        allowed = ("world", *self.symbols, *self.choices)
        for expression in expressions:
            if unknown := min(symbols_in(expression) - {*allowed}, default=None):
                message = f"op '{self.name}' has no symbol '{unknown}', which its '{expression}' uses"
                raise UsageError(message, nearest(unknown, allowed))

    def tensors(self, variant: Variant) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Inputs and outputs as this variant declares them."""
        inputs = self.inputs if variant.inputs is None else variant.inputs
        outputs = self.outputs if variant.outputs is None else variant.outputs
        return inputs, outputs

    def work_of(self, symbols: Symbols, dtype: str) -> Work:
        """What one call has to do, whichever variant does it."""
        if self.work is not None:
            work = self.work(symbols, ITEMSIZE[dtype])
        else:
            moved = moved_by(self.inputs, self.outputs, symbols, dtype)
            work = Work(moved.read, moved.written)
        flops = work.flops or tuple((kind, evaluate(text, symbols)) for kind, text in self.flops.items())
        return replace(
            work,
            flops=tuple((dtype if kind == "case" else kind, count) for kind, count in flops),
            items=work.items or evaluate(self.items, symbols),
            item=work.item or self.item,
        )

    def traffic_of(self, variant: Variant, symbols: Symbols, dtype: str) -> Traffic:
        """Bytes that `variant` moves by its own account.

        Those that it gives; else of the tensors that it declares; else, where it declares none, those of the work.
        """
        if variant.traffic is not None:
            return variant.traffic(symbols, ITEMSIZE[dtype])
        if variant.inputs is None and variant.outputs is None:
            work = self.work_of(symbols, dtype)
            return Traffic(work.read, work.written)
        return moved_by(*self.tensors(variant), symbols, dtype)

    def kept_by(self, variant: Variant, symbols: Symbols, dtype: str) -> int:
        """Bytes of the outputs of `variant` that a training step keeps for its backward."""
        _, outputs = self.tensors(variant)
        return sum(tensor.bytes(symbols, dtype) for tensor in outputs if tensor.kept)

    def find(self, file: str) -> Path:
        """Path of a kernel source: beside a plug-in op's file, or in a family's folder of the bundled kernels."""
        from harness.paths import data

        own = self.file.parent / file if self.file else None
        if own is not None and own.is_file():
            return own
        bundled = data("kernels")
        return next(bundled.glob(f"*/{file}"), bundled / file)


def _known_dtypes(whose: str, dtypes: Iterable[str]) -> None:
    for dtype in dtypes:
        if dtype not in ITEMSIZE:
            raise UsageError(f"{whose} has the dtype '{dtype}', which isn't known", nearest(dtype, ITEMSIZE))


def moved_by(inputs: Sequence[Tensor], outputs: Sequence[Tensor], symbols: Symbols, dtype: str) -> Traffic:
    """Each input read once, each output written once; what is updated in place is both."""
    updated = sum(t.bytes(symbols, dtype) for t in inputs if t.inplace)
    return Traffic(
        read=sum(t.bytes(symbols, dtype) for t in inputs),
        written=sum(t.bytes(symbols, dtype) for t in outputs) + updated,
    )
