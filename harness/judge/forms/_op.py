"""The op of a reference of another project: the reference as torch's baselines, and the candidate."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import check, intact
from harness.errors import UsageError
from harness.judge import data, isolated, loading
from harness.judge.forms._reference import NAME, Function, Loads, Makes, Reference, compared, copied, exactly
from harness.judge.records import CANDIDATE, IN_PARTS, STRIDES, Sheet, Sized, TensorForm
from harness.model import Warning, Work
from harness.ops import ANY_DEVICE, ITEMSIZE, MODES, Choice, Context, Expected, Launch, Op, Symbols, Tensor

_SEEDS = 2**31


class _Loaded:
    """The reference of an op, loaded when it is first needed, before the candidate is."""

    def __init__(self, sheet: Sheet, loads: Loads) -> None:
        self._sheet, self._loads = sheet, loads
        self.cases = {tuple(case.sizes.items()): case for case in sheet.cases}

    @cached_property
    def reference(self) -> Reference:
        reference = self._loads(self._sheet)
        # No candidate may replace functions of the reference, nor of the files beside it that it imports.
        intact.remember(self._beside())
        return reference

    def _beside(self) -> Iterator[ModuleType]:
        """The modules that lie in one of the reference's folders."""
        folders = {*self._sheet.folders, str(Path(self._sheet.reference).parent)}
        for module in list(sys.modules.values()):
            place = os.path.dirname(getattr(module, "__file__", None) or "")  # noqa: PTH120 - of thousands of modules
            if place in folders and module.__name__ not in (loading.REFERENCE, loading.CANDIDATE):
                yield module

    def case(self, symbols: Symbols) -> Sized:
        """The case with these sizes and choices."""
        return self.cases[tuple((name, symbols[name]) for name in self._sheet.cases[0].sizes)]

    def filler(self, ctx: Context) -> Callable[[Any], Any]:
        """Gives a form's data for a set of buffers. What isn't a tensor of the device is the same for all of them."""
        case = self.case(ctx.case.values)
        values = self.reference.inputs(case.arguments, self._sheet.seed)
        there = data.tensors(values)
        inputs = {one.place: number for number, one in enumerate(case.inputs)}
        buffers = {one.place: number for number, one in enumerate(case.buffers)}
        kept = [None if at in inputs or at in buffers else tensor for at, tensor in enumerate(there)]
        template = data.replaced(values, [tensor.new_empty(0) for tensor in there])

        def fill(t: Any) -> Any:
            own = vars(t)
            found = [
                own[f"x{inputs[at]}"] if at in inputs else own["buffers"][buffers[at]] if at in buffers else other
                for at, other in enumerate(kept)
            ]
            return data.replaced(template, found)

        return fill


def op(sheet: Sheet, loads: Loads, makes: Makes) -> Op:
    """The op, with the reference as torch's baselines, and the candidate."""
    loaded, first = _Loaded(sheet, loads), sheet.cases[0]
    symbols = [name for name, size in first.sizes.items() if isinstance(size, int)]
    choices = {
        name: Choice(f"the argument {name}", tuple(dict.fromkeys(str(case.sizes[name]) for case in sheet.cases)))
        for name in first.sizes
        if name not in symbols
    }

    def tensor(kind: str, name: str, number: int) -> Tensor:
        dtype = getattr(first, kind)[number].dtype
        return Tensor(f"{name}{number}", partial(_shape, loaded, kind, number), dtype)

    made = Op(
        NAME,
        "what the reference does",
        symbols={name: f"the argument {name}" for name in symbols},
        inputs=tuple(tensor("inputs", "x", number) for number in range(len(first.inputs))),
        outputs=tuple(tensor("outputs", "y", number) for number in range(len(first.outputs))),
        choices=choices,
        dtypes=(sheet.dtype,),
        make=partial(_make, loaded),
        check=partial(_check, sheet, loaded),
        work=partial(_work, sheet, loaded),
    )
    for name, mode in {"eager": "", **MODES}.items():
        where = (ANY_DEVICE,) if name in ("eager", "compile") else ("cuda",)
        said = f"the reference, compiled in the mode {mode}" if mode else "the reference as it is"
        options: dict[str, Any] = {"role": "baseline", "devices": where, "returns": True, "encode": _buffers(loaded)}
        made.variant(name, said, **options)(partial(_baseline, loaded, mode))
    if sheet.options["manifest"]:
        isolated.add(made, sheet)
    else:
        prepare = partial(_candidate, sheet, makes, loaded)
        made.variant(
            CANDIDATE, "what is judged", devices=(ANY_DEVICE,), returns=True, encode=_buffers(loaded),
            place=f"{sheet.candidate}:1",
        )(prepare)  # fmt: skip
    return made


def _shape(loaded: _Loaded, kind: str, number: int, symbols: Symbols) -> tuple[int, ...]:
    found: tuple[int, ...] = getattr(loaded.case(symbols), kind)[number].shape
    return found


def _work(sheet: Sheet, loaded: _Loaded, symbols: Symbols, _itemsize: int) -> Work:
    """Inputs, weights and outputs, each once; operations aren't known."""
    if not sheet.is_counted:
        return Work(0, 0)
    case = loaded.case(symbols)
    return Work(sum(map(_bytes, case.inputs)) + case.weights, sum(map(_bytes, case.outputs)))


def _bytes(one: TensorForm) -> int:
    return ITEMSIZE[one.dtype] * math.prod(one.shape)


def _make(loaded: _Loaded, ctx: Context) -> dict[str, Any]:
    import torch

    case = loaded.case(ctx.case.values)
    seed = torch.randint(_SEEDS, (1,), generator=ctx.generator, device=ctx.device)
    found = data.tensors(loaded.reference.inputs(case.arguments, int(seed)))
    # Weights that a form passes as data may be parameters, which no set of buffers could be filled with anew.
    return {f"x{number}": found[one.place].detach() for number, one in enumerate(case.inputs)}


def _buffers(loaded: _Loaded) -> Callable[[Context, Any], dict[str, Any]]:
    """Memory for outputs, which a set of buffers has of its own, with wrong values in it."""

    def encode(ctx: Context, _: Any) -> dict[str, Any]:
        import torch

        case = loaded.case(ctx.case.values)
        made = [torch.empty(one.shape, dtype=getattr(torch, one.dtype), device=ctx.device) for one in case.buffers]
        check.poison(made)
        return {"buffers": made}

    return encode


def _launch(function: Function, fill: Callable[[Any], Any]) -> Launch:
    """Calls a function with a form's data, without gradients, and gives the tensors of what it returns."""
    import torch

    call = torch.no_grad()(function)
    return lambda t: tuple(data.tensors(call(fill(t))))


def _baseline(loaded: _Loaded, mode: str, ctx: Context) -> Launch:
    import torch

    call: Function = loaded.reference.call
    if mode:
        torch.compiler.reset()
        call = _compiled(call, mode, ctx.notes)
    return _launch(call, loaded.filler(ctx))


def _compiled(function: Function, mode: str, notes: list[Warning]) -> Function:
    """The function by torch.compile, with a note where torch compiles it in parts.

    Raises UsageError where torch would run the plain function in its place.
    """
    import torch
    from torch._dynamo.exc import FailOnRecompileLimitHit
    from torch._dynamo.utils import counters

    counters.clear()
    _fail_if_given_up(True)
    compiled = torch.compile(function, dynamic=False, mode=mode)
    checked = False

    def call(values: Any) -> Any:
        nonlocal checked
        try:
            made = compiled(values)
        except FailOnRecompileLimitHit:
            raise UsageError("torch.compile gives up the reference: many calls need another compilation") from None
        if not checked:
            if not counters["stats"]["unique_graphs"]:
                raise UsageError(
                    "torch.compile compiles nothing of the reference, such as a function under torch.compiler.disable"
                )
            if reasons := list(counters["graph_break"]):
                notes.append(_in_parts(reasons[0]))
            checked = True
        return made

    return call


def _in_parts(reason: str) -> Warning:
    """What to know of a reference that torch.compile can't compile as a whole. reason: in torch's words."""
    first = reason.strip().splitlines()[0]
    return Warning(
        IN_PARTS,
        f"torch.compile compiles the reference in parts, since: {first}",
        "write the reference so that torch.compile takes all of it; TORCH_LOGS=graph_breaks tells where it breaks",
    )


def _fail_if_given_up(fail: bool) -> None:
    """Whether torch.compile raises an error where it would go on with the plain function, compiled anew too often."""
    # What the candidate compiles is as torch does it by itself.
    if config := sys.modules.get("torch._dynamo.config"):
        config.fail_on_recompile_limit_hit = fail  # type: ignore[attr-defined]


def _candidate(sheet: Sheet, makes: Makes, loaded: _Loaded, ctx: Context) -> Launch:
    fill = loaded.filler(ctx)
    _fail_if_given_up(False)
    return _launch(makes(sheet, loaded.reference), fill)


def _check(sheet: Sheet, loaded: _Loaded, ctx: Context, t: Any) -> Iterator[Expected | str]:
    """By the form's own check where it has one, and by the reference in higher precision."""
    outputs = [getattr(t, tensor.name) for tensor in ctx.op.outputs]
    before = type(t)(**vars(t.before), **_buffers(loaded)(ctx, t))
    values = loaded.filler(ctx)(before)
    _note_strides(loaded.case(ctx.case.values), ctx, outputs)
    with exactly():
        if wrong := loaded.reference.complaint(copied(values), outputs):
            yield wrong
            return
        if loaded.reference.decides and not sheet.precise:
            return
        compute = loaded.reference.precisely if sheet.precise else loaded.reference.call
        wanted = data.tensors(compute(copied(values)))
    yield from compared(outputs, wanted)


def _note_strides(case: Sized, ctx: Context, outputs: Sequence[Any]) -> None:
    """Warn of outputs whose elements lie in another order in memory than the reference's: a copy may be missing."""
    for number, (form, output) in enumerate(zip(case.outputs, outputs, strict=True)):
        wanted = [stride for extent, stride in zip(form.shape, form.strides, strict=True) if extent > 1]
        found = [stride for extent, stride in zip(output.shape, output.stride(), strict=True) if extent > 1]
        if output.numel() and found != wanted and not check.is_in_order(output):
            text = f"y{number} has the strides {tuple(output.stride())}, the reference's has {form.strides}"
            warning = Warning(
                STRIDES, text, "compare times with this in mind: who reads the output may have to copy it"
            )
            if warning not in ctx.notes:
                ctx.notes.append(warning)
