"""A function and its arguments as an op, so that they are checked, rotated and timed as every op is."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness import check as checks
from harness import devices
from harness.api.arguments import Arguments, tensors_in
from harness.contract import same
from harness.devices import Device
from harness.errors import UsageError
from harness.model import Case, Timer, Warning
from harness.ops import ITEMSIZE, Context, Expected, Launch, Op, Tensor, Work, complaint
from harness.processes import lock
from harness.units import plural

if TYPE_CHECKING:
    import torch

Bytes = int | tuple[int, int] | None
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Called:
    """Functions that take the same arguments, as the variants of one op, ready to be measured.

    cases: one for each function, in their order. notes: what a reader must know of how the arguments are taken.
    has_inputs: whether some argument is a tensor. knows_bytes: whether the bytes of the work are known.
    """

    op: Op
    cases: tuple[Case, ...]
    device: Device
    index: int | None
    notes: tuple[Warning, ...]
    has_inputs: bool
    knows_bytes: bool

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The device of the arguments is torch's current one meanwhile, and no other command measures on it."""
        import torch

        index = self.index or 0
        with lock.held(self.device, [index]), nullcontext() if self.index is None else torch.cuda.device(index):
            yield


def called(  # noqa: PLR0913 - what a user may say of a call
    functions: Mapping[str, Function],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    reference: Function | None,
    usual: str,
    bytes: Bytes,
    rtol: float | None,
    atol: float | None,
    name: str,
) -> Called:
    """Functions and their arguments as an op. usual: the function whose results are right if there is no reference.

    Raises UsageError for what is no function, for a function that gives a generator or a coroutine, for tensors of
    several devices, and of a type or a layout that can't be checked.
    """
    if not isinstance(kwargs, Mapping):
        raise UsageError(f"kwargs= is a {type(kwargs).__name__}, not a dict", 'give them by name: kwargs={"dim": -1}')
    for function in functions.values():
        if not callable(function):
            advice = "give the function and its arguments apart: harness.time(f, x), not harness.time(f(x))"
            raise UsageError(f"{named(function)} isn't a function", advice)
    if reference is not None and not callable(reference):
        advice = "give a function of the same arguments, which gives what is right: check=lambda x: x.double().exp()"
        raise UsageError(f"check= is a {type(reference).__name__}, not a function", advice)
    arguments = Arguments(functions[usual], args, kwargs)
    given = list(arguments.tensors.values())
    kind, index = _device(given)
    form = _form(arguments, functions[usual], devices.kinds()[kind])
    device = devices.kinds()[kind if given else next(map(_kind, form.outputs), kind)]
    dtype = _dtype([*form.outputs, *given])
    tolerance = {} if rtol is None and atol is None else {dtype: (rtol or 0.0, atol or 0.0)}
    work = _work(bytes, form, given)
    op = Op(
        name=fit(name),
        summary=f"what {name} does with these arguments",
        symbols={},
        inputs=form.inputs,
        outputs=form.declared if given else (),
        dtypes=(dtype,),
        work=lambda _symbols, _itemsize: work,
        tolerance=tolerance,
        make=partial(_made, arguments) if given else None,
        **_right(arguments, reference, functions[usual], form),
    )
    timer: Timer = "launch" if not given and device.is_asynchronous else ""
    ids = [fit(each) for each in functions]
    variants = [each if ids.count(each) == 1 else f"{each}.{place}" for place, each in enumerate(ids)]
    for variant, function in zip(variants, functions.values(), strict=True):
        prepare = partial(_prepared, variant, arguments.bound(function), form)
        role = "ours" if tolerance else "peer"
        op.variant(variant, name, role=role, devices=(device.kind,), returns=bool(given), timer=timer)(prepare)
    cases = tuple(Case(op.name, variant, dtype, (), device=device.kind) for variant in variants)
    notes = tuple(_notes(given, device))
    return Called(op, cases, device, index, notes, bool(given), work.moved > 0)


@dataclass(frozen=True, slots=True)
class _Form:
    """What a call reads and makes.

    inputs, declared: the tensors that it takes, and makes. outputs: what a first call made. kept: which tensors of what
    it returns are its outputs, and not arguments or views of them. is_random: whether two calls gave different results.
    """

    inputs: tuple[Tensor, ...]
    declared: tuple[Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    kept: tuple[int, ...]
    is_random: bool

    @property
    def updated(self) -> tuple[str, ...]:
        """Names of the arguments that the call writes into."""
        return tuple(tensor.name for tensor in self.inputs if tensor.inplace)


def _form(arguments: Arguments, function: Function, device: Device) -> _Form:
    """What a function makes of its arguments: it is called twice, on copies of them."""
    given, call = arguments.tensors, arguments.bound(function)

    def once() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        own = [tensor.detach().clone() for tensor in given.values()]
        made = call(own)
        _refuse_unfinished(made)
        returned = [each.detach() for each in tensors_in(made)]
        _refuse_layouts(("result", each) for each in returned)
        device.synchronize()
        return own, returned

    _refuse_layouts(given.items())
    types = [_type(name, tensor) for name, tensor in given.items()]
    (after, returned), (again, second) = once(), once()
    changed = [not same(before.detach(), own) for before, own in zip(given.values(), after, strict=True)]
    taken = {own.untyped_storage().data_ptr() for own in after if own.nbytes}
    kept = [n for n, made in enumerate(returned) if not (made.nbytes and made.untyped_storage().data_ptr() in taken)]
    outputs = tuple(returned[number] for number in kept)
    if given and {each.untyped_storage().data_ptr() for each in second if each.nbytes} & {
        each.untyped_storage().data_ptr() for each in outputs if each.nbytes
    }:
        message = "the function returns the same memory from each call, so it keeps results, or has a buffer of its own"
        raise UsageError(message, "give the buffer as an argument, so that it is rotated as well; or time a closure")
    names = ["result"] if len(outputs) == 1 else [f"result.{number}" for number in range(len(outputs))]
    inputs = [
        Tensor(name, tuple(tensor.shape), dtype, inplace=new)
        for (name, tensor), dtype, new in zip(given.items(), types, changed, strict=True)
    ]
    declared = [Tensor(name, tuple(each.shape), _type(name, each)) for name, each in zip(names, outputs, strict=True)]
    is_random = len(second) != len(returned) or bool(
        complaint(_alike([*outputs, *after], [*(second[number] for number in kept), *again]))
    )
    return _Form(tuple(inputs), tuple(declared), outputs, tuple(kept), is_random)


def _prepared(name: str, call: Callable[[Sequence[torch.Tensor]], Any], form: _Form, _ctx: Context) -> Launch:
    """The call that is timed. A closure leaves what it returns where its check finds it."""
    import torch

    inputs, kept = [tensor.name for tensor in form.inputs], form.kept

    def closure(t: SimpleNamespace) -> None:
        t.returned = call(())

    def launch(t: SimpleNamespace) -> tuple[torch.Tensor, ...]:
        returned = call([getattr(t, each) for each in inputs])
        if kept == (0,) and isinstance(returned, torch.Tensor):
            return (returned,)
        found = list(tensors_in(returned))
        if kept and len(found) <= kept[-1]:
            what = f"{name} returns {plural(len(found), 'tensor')} where {kept[-1] + 1} are compared"
            raise UsageError(what, "let each call, and each function of a race, return as many tensors")
        return tuple(found[number] for number in kept)

    return launch if inputs else closure


def _made(arguments: Arguments, ctx: Context) -> dict[str, torch.Tensor]:
    """Values of the arguments. The first set has the ones that were given.

    Other sets have floating-point values that are scaled by a number between 1/2 and 1. What holds of values mostly
    holds of scaled ones as well: signs, zeros, order, finiteness, ranges around zero. Integers stay as they are, since
    they may be indices.
    """
    import torch

    is_first = ctx.generator.initial_seed() == zlib.crc32(ctx.case.group.encode()) + ctx.group.rank
    factor = 0.5 + 0.5 * torch.rand((), generator=ctx.generator, device=ctx.device)
    return {
        name: tensor.detach().clone() if is_first or not tensor.is_floating_point() else tensor.detach() * factor
        for name, tensor in arguments.tensors.items()
    }


def _right(arguments: Arguments, reference: Function | None, usual: Function, form: _Form) -> dict[str, Any]:
    """The fields of an op that say what is right: the reference's results, else what the function gives by itself."""
    if unchecked := _unchecked(reference, form):
        return {"unchecked": unchecked}
    call = arguments.bound(reference or usual)
    names = [tensor.name for tensor in form.declared]

    def by_name(own: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """What is right by the name of the output. own: copies of the arguments, which the call may change."""
        returned = list(tensors_in(call(own)))
        if reference is None:
            returned = [returned[number] for number in form.kept]
        changed = [tensor for tensor, given in zip(own, form.inputs, strict=True) if given.inplace]
        if len(returned) == len(names):
            returned += changed
        wanted = [*names, *form.updated]
        if len(returned) != len(wanted):
            message = f"check= returns {len(returned)} tensors; the function makes {len(wanted)}: {', '.join(wanted)}"
            raise UsageError(message, "return one tensor for each, in this order")
        return dict(zip(wanted, returned, strict=True))

    if form.inputs:
        return {"reference": lambda _, t: by_name([getattr(t, each.name).clone() for each in form.inputs])}
    return _right_of_closure(names, lambda: by_name(()))


def _unchecked(reference: Function | None, form: _Form) -> str:
    """Why no result can be checked; empty if results can."""
    if not form.outputs and not form.updated:
        return "the function returns no tensor, and changes no argument"
    if reference is None and form.is_random:
        return "two calls with the same arguments give different results, and no check= was given"
    return ""


def _right_of_closure(names: Sequence[str], wanted: Callable[[], dict[str, torch.Tensor]]) -> dict[str, Any]:
    """The checks of a closure, whose results lie in `t.returned`. wanted: gives what is right by name."""

    def check(ctx: Context, t: SimpleNamespace) -> Iterator[Expected]:
        relative, absolute = ctx.op.tolerance.get(ctx.case.dtype, checks.TOLERANCE.get(ctx.case.dtype, (0.0, 0.0)))
        got = [each.clone() for each in tensors_in(t.returned)]  # the reference may write where they lie
        right = wanted()
        for name, one in zip(names, got, strict=True):
            want = right[name]
            yield Expected(name, one, want, absolute + relative * want.abs() if want.is_floating_point() else None)

    def recheck(ctx: Context, t: SimpleNamespace, again: Callable[[], object]) -> Iterator[Expected]:
        again()
        for each in check(ctx, t):
            allowed = each.allowed if each.allowed is None else checks.LEEWAY * each.allowed
            yield Expected(each.name, each.got, each.want, allowed)

    return {"check": check, "recheck": recheck}


def _alike(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> Iterator[Expected]:
    """What two calls on the same values gave: it may differ by the order of sums."""
    for number, (got, want) in enumerate(zip(one, other, strict=True)):
        relative, absolute = checks.TOLERANCE.get(str(want.dtype).removeprefix("torch."), (0.0, 0.0))
        allowed = checks.LEEWAY * (absolute + relative * want.abs()) if want.is_floating_point() else None
        yield Expected(str(number), got, want, allowed)


def _device(tensors: Sequence[torch.Tensor]) -> tuple[str, int | None]:
    """The kind of the device that all tensors lie on, and its index; without tensors the first kind that works here."""
    found = {tensor.device for tensor in tensors}
    if len(found) > 1:
        # A 0-dimensional tensor on the host may stand beside tensors of a GPU, but a set of buffers lies on one device.
        raise UsageError(f"the arguments lie on several devices: {', '.join(sorted(map(str, found)))}", "take one")
    if not found:
        return devices.choose(None), None
    return _kind(tensors[0]), tensors[0].device.index


def _kind(tensor: torch.Tensor) -> str:
    if tensor.device.type not in (kinds := devices.kinds()):
        raise UsageError(f"a tensor lies on '{tensor.device}'", f"kinds of device: {', '.join(kinds)}")
    return str(tensor.device.type)


def _dtype(tensors: Sequence[torch.Tensor]) -> str:
    """The type that tolerances go by: of the first tensor of floating-point numbers."""
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    return str((floats or [*tensors])[0].dtype).removeprefix("torch.") if tensors else "float32"


def _refuse_unfinished(made: object) -> None:
    """Raise UsageError for a generator, a coroutine and the like: their work begins after the call."""
    if isinstance(made, Iterator | Coroutine):
        if isinstance(made, Coroutine):
            made.close()  # else Python warns that nobody has awaited it
        what = f"the function returns a {type(made).__name__}, which has computed nothing yet"
        raise UsageError(what, "time a function that uses it up, such as lambda x: list(f(x))")


def _refuse_layouts(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    import torch

    for name, tensor in tensors:
        if tensor.layout is not torch.strided:
            advice = "strided ones can be copied and checked; others may lie in a closure that returns none"
            raise UsageError(f"{name} is a tensor in the layout {str(tensor.layout).removeprefix('torch.')}", advice)


def _type(name: str, tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ITEMSIZE:
        advice = f"types that can be checked: {', '.join(ITEMSIZE)}; others may lie in a closure that returns none"
        raise UsageError(f"{name} is of {dtype}", advice)
    return dtype


def _work(bytes: Bytes, form: _Form, given: Sequence[torch.Tensor]) -> Work:
    """The bytes of a call: as told, else each argument read once, and each result written once."""
    if isinstance(bytes, tuple):
        return Work(*bytes)
    written = sum(each.nbytes for each in form.outputs)
    written += sum(each.nbytes for each, declared in zip(given, form.inputs, strict=True) if declared.inplace)
    if bytes is None:
        return Work(sum(each.nbytes for each in given), written) if given else Work()
    if not isinstance(bytes, int) or bytes < 0:
        raise UsageError(f"bytes={bytes!r}", "give the bytes of a call, or a tuple of bytes read and written")
    written = min(written, bytes)
    return Work(bytes - written, written)


def _notes(given: Sequence[torch.Tensor], device: Device) -> Iterator[Warning]:
    """What a reader of the time must know of the arguments."""
    import torch

    if not given:
        cache = "the L2 is flushed before each call" if device.is_asynchronous else "the cache may still have it"
        yield Warning(
            "closure",
            f"no argument is a tensor: what the function reads stays where it is, and {cache}",
            "give its tensors as arguments: copies of them are rotated",
        )
    elif not any(each.is_floating_point() for each in given):
        yield Warning(
            "same-values",
            "all arguments are integers, so all sets of buffers hold the same values: what the function keeps of an "
            "earlier call may be right by chance",
            "see that the function keeps nothing",
        )
    for each in given:
        if each.nbytes and (each.stride() != torch.empty_like(each, device="meta").stride() or each.data_ptr() % 16):
            yield Warning(
                "layout",
                "an argument is a view with gaps, or begins at an address that 16 doesn't divide; its copies don't",
                "time a closure, which takes the tensor itself",
            )
            break


def named(function: Function) -> str:
    """The name of a function."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__name__", "") or type(function).__name__
    return "lambda" if name == "<lambda>" else name


def fit(name: str) -> str:
    """The name in the characters that an id may have."""
    return re.sub(r"[^\w.+:-]+", "_", name) or "call"
