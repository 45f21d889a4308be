"""The data sheet of an op: symbols, choices, tensors, a reference and variants; and what a variant is prepared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

from harness import metrics
from harness.errors import UsageError, nearest, shown, shown_place, user_place
from harness.expressions import ExpressionError, MalformedError, evaluate, symbols_in
from harness.model import COMPUTE_KINDS, Case, KernelFacts, Timer, Traffic, Warning, Work
from harness.ops import loading
from harness.ops.amounts import done_by, of_types, whole
from harness.ops.declarations import (
    at,
    check_callable,
    check_fields,
    check_mapping,
    check_name,
    check_numbers,
    check_one_of,
    check_text,
    check_tuple,
    refusal,
)
from harness.ops.extremes import Extremes
from harness.ops.tensors import FLOATS, ITEMSIZE, Choice, Symbols, Tensor, moved_by
from harness.ops.tuning import declare_facts, plan_of
from harness.ops.variant import Launch, Tensors, Variant
from harness.plans import Plan
from harness.ranks import Group

if TYPE_CHECKING:
    import torch

    from harness.cuda import Kernel
    from harness.ops.comparer import Expected

RENAME = "rename one of them"


@dataclass(slots=True)
class Context:
    """What a variant is prepared with.

    case, s: the case, and its sizes and choices as attributes (`ctx.s.N`, `ctx.s.layout`). dtype, device: torch's.
    generator: seeded by the group of cases, so that every variant gets the same data, and anew for each set of inputs.
    seed: what `generator` began with, the same for all sets. group: the ranks of the case; where it has several,
    torch.distributed has a default group of them, gloo's. notes: warnings for readers of the time. tried: the plan that
    a search tries.
    """

    case: Case
    dtype: torch.dtype
    device: torch.device
    generator: torch.Generator
    op: Op
    group: Group = field(default_factory=Group)
    notes: list[Warning] = field(default_factory=list)
    tried: Plan | None = None
    kernels: list[KernelFacts] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    closing: ExitStack = field(default_factory=ExitStack)
    later: list[Callable[[], object]] = field(default_factory=list)
    seed: int = field(init=False)
    s: SimpleNamespace = field(init=False)

    def __post_init__(self) -> None:
        # Once, since torch 2.11 can't compile a function that makes one.
        self.s = SimpleNamespace(**self.case.values)
        self.seed = int(self.generator.initial_seed()) if self.generator else 0
        variant = self.op.variants.get(self.case.variant)
        if variant and (kept := self.op.kept_by(variant, self.case.values, self.case.dtype)):
            self.facts[metrics.KEPT] = float(kept)

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

    def plan(self) -> Plan | None:
        """The values of the variant's parameters for this case, as its `tuning` has them; None if there is no plan."""
        return plan_of(self)

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


@dataclass(slots=True)
class Addition:
    """The variants that one load of a plug-in file added to an op. load: the number of that load."""

    load: int
    variants: dict[str, Variant] = field(default_factory=dict)


def _origin() -> Path | None:
    load = loading.now()
    return load.file if load else None


@dataclass(slots=True)
class Op:
    """The data sheet of an operator.

    symbols: meaning of each size, in the order of ids. defaults: expressions for symbols that a scenario may leave out
    (sizes are 1 or more; 0 too where a default is '0'). choices: named options that aren't sizes, in the order of ids.
    reference(ctx, t): all declared outputs, and the inputs that are updated in place, by name, in higher precision.
    make(ctx): inputs by name, where random numbers won't do. check(ctx, t): what each output must be and how far off it
    may be, or a complaint, where the comparison with the reference won't do; `t.before` has the inputs as they were.
    recheck(ctx, t, call): the same for the calls that were timed, where the op declares no inputs that could be drawn
    anew: it puts new data in place, makes a timed call by `call`, and says what must have come of it.
    tolerance: relative and absolute, by dtype. extremes: which extreme values the inputs may have, such as NaN; each
    kind in each input of floats unless told, and none where `make` gives the inputs.
    work(symbols, itemsize): what one call has to do, where the declared tensors (each input read once, each output
    written once) don't tell. It names the leanest form that is known, since no variant changes it. flops: expressions,
    by the type that the operations are done in, 'case' for the case's. items: an expression, what a user counts of a
    call; `item` names it. `work` may give both itself. timer: how variants are timed unless they say. pages: what
    reports have of the op beside the table of its cases, as the name of a module, or a function that gives it;
    harness.report.sections says what it may have.

    works_ahead: what calls leave for the device to do when they have ended, such as 'the next batch'; steady samples
    have it in their time. Calls of other ops may leave nothing.
    unchecked: why an op without `reference` and `check` may be timed all the same; each of its cases says so.
    origin: the plug-in file that defines the op, None for an op of an installed package. added: the variants that
    plug-in files add to the op, by file; a catalogue shows the variants of the files that it has loaded.

    Raises UsageError, with the file and line of the declaration, for a field of another type, a name that two things
    share, and an unknown timer, dtype, or name in an expression.
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
    recheck: Callable[[Context, Tensors, Callable[[], object]], Iterable[Expected | str]] | None = None
    tolerance: dict[str, tuple[float, float]] = field(default_factory=dict)
    extremes: Extremes | None = None
    work: Callable[[Symbols, int], Work] | None = None
    flops: dict[str, str] = field(default_factory=dict)
    items: str = "0"
    item: str = ""
    timer: Timer = "graph"
    unchecked: str = ""
    works_ahead: str = ""
    pages: str | Callable[[], object] = ""
    file: Path | None = None
    variants: dict[str, Variant] = field(default_factory=dict)
    place: str = field(default_factory=user_place)
    origin: Path | None = field(default_factory=_origin)
    added: dict[Path, Addition] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_name("an op", self.name)
        self._check_types(f"op '{self.name}'")
        if both := ", ".join(self.symbols.keys() & self.choices.keys()):
            raise refusal(f"op '{self.name}' has a symbol and a choice named {both}", "rename one of them")
        if "world" in {*self.symbols, *self.choices}:
            advice = "rename it: 'world' is the number of devices of a case"
            raise refusal(f"op '{self.name}' has a symbol or a choice named world", advice)
        for name in self.defaults:
            check_one_of(f"the defaults of op '{self.name}'", name, "symbol", self.symbols)
        for kind in self.flops:
            check_one_of(f"flops of op '{self.name}'", kind, "type", ("case", *COMPUTE_KINDS))
        self._check_names([*self.defaults.values(), *self.flops.values(), self.items])
        self._check_shapes(*self.inputs, *self.outputs)
        if self.extremes is not None:
            self.extremes.refuse_unknown(self.name, self.inputs)

    def _check_types(self, whose: str) -> None:
        check_text(whose, summary=self.summary, items=self.items, item=self.item, unchecked=self.unchecked)
        check_text(whose, works_ahead=self.works_ahead)
        check_text(whose, place=self.place)
        check_mapping(whose, self.symbols, "symbols", str, "{'N': 'elements'}")
        check_mapping(whose, self.defaults, "defaults", str, "{'K': '3'}")
        check_mapping(whose, self.choices, "choices", Choice, "{'layout': Choice('the layout', ('nchw', 'nhwc'))}")
        check_mapping(whose, self.flops, "flops", str, "{'case': '2 * M * N * K'}")
        check_mapping(whose, self.tolerance, "tolerance", tuple, "{'float16': (1e-3, 1e-5)}")
        check_mapping(whose, self.variants, "variants", Variant, "none, and @OP.variant(...) adds them")
        for what, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            check_tuple(whose, tensors, what, Tensor, "(Tensor('x', ('N',)),)")
        check_tuple(whose, self.dtypes, "dtypes", str, "('float32', 'float16')")
        for part in (*self.symbols, *self.choices):
            check_name(f"a symbol or a choice of {whose}", part)
        for errors in self.tolerance.values():
            check_numbers(whose, "tolerance", *errors, least=0.0)
            if len(errors) != 2:
                raise refusal(
                    f"tolerance of {whose} has {shown(errors)}", "a relative and an absolute error are allowed"
                )
        for dtype in (*self.dtypes, *self.tolerance):
            check_one_of(whose, dtype, "dtype", ITEMSIZE)
        check_one_of(whose, self.timer, "timer", get_args(Timer))
        check_callable(whose, 2, reference=self.reference, check=self.check, work=self.work)
        check_callable(whose, 1, make=self.make)
        check_callable(whose, 3, recheck=self.recheck)
        if not isinstance(self.pages, str):
            check_callable(whose, 0, pages=self.pages)
        if not isinstance(self.extremes, Extremes | None):
            raise refusal(
                f"extremes of {whose} is {shown(self.extremes)}", "for example Extremes(exempt={'nan': 'why'})"
            )

    def variant(self, name: str, summary: str, **options: Any) -> Callable[[Callable[[Context], Launch]], Any]:
        """Decorator that adds a variant; `options` are Variant's fields.

        Raises UsageError, with the file and line, for what Variant refuses, and for a name that is taken.
        """
        check_name("a variant", name)
        check_fields(f"variant '{name}' of op '{self.name}'", options, {each.name for each in fields(Variant)})

        def add(prepare: Callable[[Context], Launch]) -> Callable[[Context], Launch]:
            made = Variant(name, summary, prepare, **options)
            self._check_shapes(*(made.inputs or ()), *(made.outputs or ()))
            declare_facts(self.symbols if made.tuning else ())
            taken = self._own_variants()
            if name in taken:
                there = shown_place(taken[name].place)
                raise refusal(f"op '{self.name}' has a variant named '{name}' already ({there})", RENAME)
            taken[name] = made
            return prepare

        return add

    def _own_variants(self) -> dict[str, Variant]:
        """Where a variant belongs that is declared now: to the op, or to the plug-in file that is being loaded."""
        load = loading.now()
        if load is None or load.file == self.origin:
            return self.variants
        found = self.added.get(load.file)
        if found is None or found.load != load.number:
            found = self.added[load.file] = Addition(load.number)
        return found.variants

    def with_added(self, files: Iterable[Path]) -> Op:
        """The op with the variants that plug-in files added; the op itself if they added none.

        Raises UsageError for two variants of one name.
        """
        variants = dict(self.variants)
        for file in files:
            for name, variant in (self.added[file].variants if file in self.added else {}).items():
                if name in variants:
                    places = " and ".join(shown_place(each.place) for each in (variants[name], variant))
                    raise UsageError(f"op '{self.name}' has two variants named '{name}': {places}", RENAME)
                variants[name] = variant
        return replace(self, variants=variants) if len(variants) > len(self.variants) else self

    def files_of(self, variant: str) -> tuple[Path, ...]:
        """The files that declare the op and the variant."""
        return tuple(dict.fromkeys(filter(None, (self.file, self.variants[variant].file))))

    def refuse(self, case: Case) -> None:
        """Raise UsageError for a case that isn't one of this op: an unknown variant, dtype, size or choice."""
        whose = f"case {case.id}"
        check_one_of(whose, case.variant, "variant", self.variants)
        check_one_of(whose, case.dtype, "dtype", self.dtypes)
        given: dict[str, list[str]] = {"sizes": list(case.symbols), "choices": list(dict(case.choices))}
        for what, known in (("sizes", self.symbols), ("choices", self.choices)):
            if given[what] != list(known):
                found = ", ".join(given[what]) or "none"
                raise refusal(f"{whose} has the {what} {found}", f"op '{self.name}' has {', '.join(known) or 'none'}")
        for name, value in case.choices:
            if not self.choices[name].accepts(value):
                raise refusal(
                    f"{whose}: {shown(value)} isn't a value of '{name}'", f"allowed: {self.choices[name].allowed}"
                )

    def refuse_unchecked(self) -> None:
        """Raise UsageError if nothing says whether a result of the op is right."""
        if self.variants and self.reference is None and self.check is None and not self.unchecked:
            message = f"op '{self.name}' has neither reference nor check, so a wrong result would get a time"
            raise at(self.place, message, "give one of the two, or unchecked='why no result can be checked'")

    def _check_shapes(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            if not callable(tensor.shape):
                self._check_names(tensor.shape)

    def _check_names(self, expressions: Iterable[str | int]) -> None:
        allowed = ("world", *self.symbols, *self.choices)
        for expression in expressions:
            used = symbols_in(expression)
            if unknown := min(used - {*allowed}, default=None):
                message = f"op '{self.name}' has no symbol '{unknown}', which its {shown(expression)} uses"
                raise refusal(message, nearest(unknown, allowed))
            with suppress(ExpressionError):  # what only some sizes break is said of the case that has them
                _refuse_malformed(self.name, expression, used)

    def tensors(self, variant: Variant) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Inputs and outputs as this variant declares them."""
        inputs = self.inputs if variant.inputs is None else variant.inputs
        outputs = self.outputs if variant.outputs is None else variant.outputs
        return inputs, outputs

    def work_of(self, symbols: Symbols, dtype: str) -> Work:
        """What one call has to do, whichever variant does it."""
        if self.work is not None:
            work = whole(self.work(symbols, ITEMSIZE[dtype]), Work, self.work)
        else:
            moved = moved_by(self.inputs, self.outputs, symbols, dtype)
            work = Work(moved.read, moved.written)
        flops = work.flops or tuple((kind, evaluate(text, symbols)) for kind, text in self.flops.items())
        return replace(
            work,
            flops=of_types(flops, dtype),
            items=work.items or evaluate(self.items, symbols),
            item=work.item or self.item,
        )

    def work_done_by(self, variant: Variant, symbols: Symbols, dtype: str) -> Work:
        """The work, with its operations in the types in which `variant` does them: its limit is computed from it."""
        return done_by(variant, self.work_of(symbols, dtype), symbols, dtype)

    def traffic_of(self, variant: Variant, symbols: Symbols, dtype: str) -> Traffic:
        """Bytes that `variant` moves by its own account.

        The bytes that the variant gives; else the bytes of the tensors that it declares; else the bytes of the work.
        """
        if variant.traffic is not None:
            return whole(variant.traffic(symbols, ITEMSIZE[dtype]), Traffic, variant.traffic)
        if variant.inputs is None and variant.outputs is None:
            work = self.work_of(symbols, dtype)
            return Traffic(work.read, work.written)
        return moved_by(*self.tensors(variant), symbols, dtype)

    def kept_by(self, variant: Variant, symbols: Symbols, dtype: str) -> int:
        """Bytes of the outputs of `variant` that a training step keeps for its backward."""
        _, outputs = self.tensors(variant)
        return sum(tensor.bytes(symbols, dtype) for tensor in outputs if tensor.kept)

    def find(self, file: str, beside: Path | None = None) -> Path:
        """Path of a kernel source: beside a plug-in's file, or in a family's folder of the bundled kernels.

        beside: the file of the plug-in that declares the variant, where that isn't the op's file.
        """
        from harness.paths import data

        for own in filter(None, (beside, self.file)):
            if (own.parent / file).is_file():
                return own.parent / file
        bundled = data("kernels")
        return next(bundled.glob(f"*/{file}"), bundled / file)


def _refuse_malformed(op: str, expression: str | int, used: Iterable[str]) -> None:
    """Raise UsageError for what is no integer arithmetic, and ExpressionError for what sizes of 1 break."""
    try:
        evaluate(expression, dict.fromkeys(used, 1))
    except MalformedError as error:
        raise refusal(f"the expression {shown(expression)} of op '{op}' {error}") from None
