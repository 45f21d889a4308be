"""What an op is: a data sheet of symbols, tensors, a reference and variants, found by its file's name.

`harness/ops/activation/prelu.py` defines `OP = Op("prelu", ...)` and adds variants with `@OP.variant(...)`. Nothing
here or at the top of an op's file imports torch: a listing of ops must stay instant. Functions do, when they run.

A variant is a function `prepare(ctx: Context) -> launch`. It does what need not be timed (compile a kernel, compute
its grid) and returns `launch(t)`, which is timed. `t` has the declared tensors as attributes (`t.x`, `t.y`; a list
where the declaration gives several shapes). Our kernels write into the declared outputs; a variant with
`returns=True` makes its own outputs, as torch does, and returns them as a tuple in the declared order.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness.discover import discover
from harness.errors import UsageError, nearest
from harness.expressions import evaluate
from harness.model import Case, KernelFacts, Work
from harness.ranks import Group

if TYPE_CHECKING:
    import torch

    from harness.cuda import Kernel

Tensors = SimpleNamespace
Launch = Callable[[Tensors], Any]
Symbols = Mapping[str, int]
Shapes = tuple[str | int, ...] | Callable[[Symbols], Sequence[Sequence[int]]]

ITEMSIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Tensor:
    """Declaration of a tensor, or of a list of tensors.

    shape: one expression of the op's symbols a dimension, or a function of the symbols that gives a list of shapes,
    which declares a list of tensors. dtype: 'case' for the case's, or a name such as 'uint8'.
    inplace: an input that is updated: read once and written once.
    """

    name: str
    shape: Shapes
    dtype: str = "case"
    inplace: bool = False

    @property
    def is_list(self) -> bool:
        return callable(self.shape)

    def shapes(self, symbols: Symbols) -> list[tuple[int, ...]]:
        """Sizes of each tensor declared."""
        if callable(self.shape):
            return [tuple(shape) for shape in self.shape(symbols)]
        return [tuple(evaluate(size, symbols) for size in self.shape)]

    def dtype_of(self, case_dtype: str) -> str:
        return case_dtype if self.dtype == "case" else self.dtype

    def bytes(self, symbols: Symbols, case_dtype: str) -> int:
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

    case, s: the case, and its sizes as attributes (`ctx.s.N`). dtype, device: torch's. generator: seeded per group of
    cases, so every variant sees the same data. `kernel(file, entry, macros)` compiles and loads one of our kernels.
    """

    case: Case
    dtype: torch.dtype
    device: torch.device
    generator: torch.Generator
    op: Op
    group: Group = field(default_factory=Group)
    kernels: list[KernelFacts] = field(default_factory=list)

    @property
    def s(self) -> SimpleNamespace:
        return SimpleNamespace(**self.case.symbols)

    def kernel(self, file: str, entry: str, macros: Mapping[str, str | int] | None = None) -> Kernel:
        """The kernel `entry` of kernels/`file`; a plug-in's own folder is searched first.

        Raises CompileError with the compiler's log.
        """
        from harness import cuda

        loaded = cuda.load(self.op.find(file), entry, macros or {})
        self.kernels.append(loaded.facts)
        return loaded


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of doing the op.

    summary: one line, what it does differently. rows: techniques of public texts that it reproduces. inputs, outputs:
    declared where they differ from the op's; then `encode(ctx, tensors)` gives this variant's inputs (a dict by name)
    from the op's inputs, and `decode(ctx, tensors)` gives the op's outputs (a dict by name) from what this variant
    wrote. traffic: bytes that it really moves, if more than it declares. unsupported: a reason why it can't run a case,
    or None. capture: False for what must be timed call by call rather than from a CUDA graph.
    """

    name: str
    summary: str
    prepare: Callable[[Context], Launch]
    rows: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cuda",)
    inputs: tuple[Tensor, ...] | None = None
    outputs: tuple[Tensor, ...] | None = None
    encode: Callable[[Context, Tensors], dict[str, Any]] | None = None
    decode: Callable[[Context, Tensors], dict[str, Any]] | None = None
    traffic: Callable[[Symbols, int], Work] | None = None
    unsupported: Callable[[Case], str | None] | None = None
    returns: bool = False
    capture: bool = True


@dataclass(slots=True)
class Op:
    """The data sheet of an operator.

    symbols: meaning of each size, in the order of ids; defaults: expressions for symbols that a scenario may leave
    out (sizes are 1 or more, but where a default is '0', 0 is one too). reference(ctx, t): the declared outputs by
    name, in higher precision. make(ctx): inputs by name, where normal random numbers won't do. check(ctx, t): a
    complaint or None, in place of the comparison with the reference, for outputs that are random. tolerance: relative
    and absolute, by dtype. flops, items: expressions, what one call does and what a user counts of it (`item` names the
    unit). work: overrides the essential traffic where the tensors' sizes don't give it. ranks: an expression, the
    processes that one case takes.
    """

    name: str
    summary: str
    symbols: dict[str, str]
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    defaults: dict[str, str] = field(default_factory=dict)
    dtypes: tuple[str, ...] = FLOATS
    reference: Callable[[Context, Tensors], dict[str, Any]] | None = None
    make: Callable[[Context], dict[str, Any]] | None = None
    check: Callable[[Context, Tensors], str | None] | None = None
    tolerance: dict[str, tuple[float, float]] = field(default_factory=dict)
    flops: str = "0"
    items: str = "0"
    item: str = ""
    work: Callable[[Symbols, int], Work] | None = None
    ranks: str = "1"
    file: Path | None = None
    variants: dict[str, Variant] = field(default_factory=dict)

    def variant(self, name: str, summary: str, **options: Any) -> Callable[[Callable[[Context], Launch]], Any]:
        """Decorator that adds a variant; `options` are Variant's fields. Raises UsageError if the name is taken."""

        def add(prepare: Callable[[Context], Launch]) -> Callable[[Context], Launch]:
            if name in self.variants:
                raise UsageError(f"op '{self.name}' has two variants named '{name}'", "rename one of them")
            self.variants[name] = Variant(name, summary, prepare, **options)
            return prepare

        return add

    def tensors(self, variant: Variant) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Inputs and outputs as this variant declares them."""
        inputs = self.inputs if variant.inputs is None else variant.inputs
        outputs = self.outputs if variant.outputs is None else variant.outputs
        return inputs, outputs

    def essential(self, symbols: Symbols, dtype: str) -> Work:
        """The op's essential traffic: each input read once, each output written once, in the leanest variant's form."""
        if self.work is not None:
            return self.work(symbols, ITEMSIZE[dtype])
        forms = [self.declared(variant, symbols, dtype) for variant in self.variants.values()]
        return min(forms, key=lambda work: work.moved)

    def declared(self, variant: Variant, symbols: Symbols, dtype: str) -> Work:
        """Traffic of the tensors that `variant` declares."""
        inputs, outputs = self.tensors(variant)
        updated = sum(t.bytes(symbols, dtype) for t in inputs if t.inplace)
        return Work(
            read=sum(t.bytes(symbols, dtype) for t in inputs),
            written=sum(t.bytes(symbols, dtype) for t in outputs) + updated,
            flops=evaluate(self.flops, symbols),
            items=evaluate(self.items, symbols),
            item=self.item,
        )

    def traffic(self, variant: Variant, symbols: Symbols, dtype: str) -> Work:
        """What `variant` really moves."""
        if variant.traffic is not None:
            return variant.traffic(symbols, ITEMSIZE[dtype])
        if self.work is not None:
            return self.work(symbols, ITEMSIZE[dtype])
        return self.declared(variant, symbols, dtype)

    def find(self, file: str) -> Path:
        """Path of a kernel source: beside a plug-in op's file, or in the bundled kernels."""
        from harness.paths import data

        own = self.file.parent / file if self.file else None
        if own is not None and own.is_file():
            return own
        bundled = data("kernels")
        return next(bundled.glob(f"*/{file}"), bundled / file)


class Catalogue(Mapping[str, Op]):
    """Ops by name: the bundled ones, those of installed entry points, and plug-in files. Loaded when asked for."""

    def __init__(self, plugins: Sequence[Path] = ()) -> None:
        self._ops: dict[str, Op] = {}
        for module in discover(__name__, ["OP"], nested=True).values():
            self._add(module, Path(module.__file__ or ""))
        for entry in importlib.metadata.entry_points(group="harness.ops"):
            module = entry.load()
            self._add(module, Path(module.__file__ or entry.value))
        for file in plugins:
            self._add(_load_file(file), file)

    def _add(self, module: ModuleType, file: Path) -> None:
        found = [value for value in vars(module).values() if isinstance(value, Op)]
        if not found:
            raise UsageError(f"{file}: defines no op", "assign an Op to a name at the top level, e.g. OP = Op(...)")
        for op in found:
            if op.name in self._ops:
                raise UsageError(f"{file}: there is an op named '{op.name}' already ({self._ops[op.name].file})")
            op.file = file.resolve()
            self._ops[op.name] = op

    def __getitem__(self, name: str) -> Op:
        try:
            return self._ops[name]
        except KeyError:
            raise KeyError(f"no op named '{name}': {nearest(name, self._ops)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)


def _load_file(file: Path) -> ModuleType:
    """The module in a plug-in file. Whatever it raises is reported with the file's name."""
    name = f"harness_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"{file}: not a Python file", "--ops takes a .py file that defines an op")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{file}: {type(error).__name__}: {error}", "the plug-in raised while being loaded") from error
    return module
