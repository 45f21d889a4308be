"""Inputs, poison, and the comparison with the reference: a wrong kernel has no time.

Poison is a value that no kernel should leave in its outputs. It shows where a kernel wrote nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness.ops import Context, Expected, Op, Tensor, Variant, comparer

if TYPE_CHECKING:
    import torch

TOLERANCE = {"float64": (1e-12, 0.0), "float32": (1e-6, 1e-7), "float16": (1e-3, 1e-6), "bfloat16": (8e-3, 1e-6)}
"""Relative and absolute error allowed against a reference in higher precision: about one unit in the last place."""
LEEWAY = 8.0
"""How far off a library's result may be and still be timed: so many times the error allowed, or so many units in the
last place of its dtype at the size of a typical element.

Eight units are three bits, of the 11 that float16 has. A library that rounds in other places than the reference, such
as the partial sums of a column, loses one or two. What is computed wrongly, with a wrong sign, a term left out, or
outputs mixed up, is off by about the size of the elements: a thousand units of float16, a hundred of bfloat16.
"""
_POISON_BYTE = 0xA5
_LARGEST = 2**31 - 1


def make_inputs(ctx: Context) -> SimpleNamespace:
    """The op's declared inputs, made by the op itself, or random.

    Floats are normal random numbers without zeros. Integers are uniform over all values of their type; integers of
    more than 32 bits are uniform over the values of 32 bits. So signed types have both signs. No tensor is all zeros.
    """
    if ctx.op.make is not None:
        return SimpleNamespace(**ctx.op.make(ctx))
    return SimpleNamespace(**{tensor.name: _like(ctx, tensor, _random) for tensor in ctx.op.inputs})


def make_outputs(ctx: Context, variant: Variant) -> SimpleNamespace:
    """Poisoned outputs as `variant` declares them: NaN, or a fixed byte for other types."""
    _, outputs = ctx.op.tensors(variant)
    return SimpleNamespace(**{tensor.name: _like(ctx, tensor, _poisoned) for tensor in outputs})


def new_set(ctx: Context, variant: Variant, inputs: SimpleNamespace, *, is_aligned: bool = True) -> SimpleNamespace:
    """Copies of inputs, what the variant encodes of them, and its outputs, in memory of their own.

    is_aligned: False to have tensors of floating-point numbers begin at addresses that 16 doesn't divide.
    """
    tensors = merged(clone(inputs), make_outputs(ctx, variant))
    if not is_aligned:
        tensors = SimpleNamespace(**{name: _moved(value) for name, value in vars(tensors).items()})
    return tensors if variant.encode is None else merged(tensors, SimpleNamespace(**variant.encode(ctx, tensors)))


def _moved(value: Any) -> Any:
    """A tensor of floating-point numbers, or a list of such, in memory that begins one element after a new address."""
    import torch

    if isinstance(value, (list, tuple)):
        return [_moved(item) for item in value]
    if not value.is_floating_point() or not value.is_contiguous():
        return value
    room = torch.empty(value.numel() + 1, dtype=value.dtype, device=value.device)
    return room[1:].view(value.shape).copy_(value)


def poison(tensors: Sequence[torch.Tensor]) -> None:
    """Fill tensors with values that no kernel should leave in its outputs, whatever mode of torch they are of."""
    import torch

    with torch.inference_mode():
        if floats := [tensor for tensor in tensors if _takes_nan(tensor)]:
            torch._foreach_mul_(floats, float("nan"))
        for tensor in tensors:
            if not _takes_nan(tensor):
                of_bytes = tensor.contiguous()  # the tensor itself, mostly
                _bytes(of_bytes).fill_(_POISON_BYTE)
                tensor.copy_(of_bytes)


def is_poison(tensor: torch.Tensor) -> bool:
    """Whether a tensor is as `poison` left it."""
    return bool((tensor.isnan() if _takes_nan(tensor) else _bytes(tensor) == _POISON_BYTE).all())


def leave_poison(ctx: Context, variant: Variant) -> None:
    """Fill the memory that the allocator will give to a variant that makes its own outputs with wrong values."""
    if variant.returns:
        make_outputs(ctx, variant)


def merged(*parts: SimpleNamespace) -> SimpleNamespace:
    """All tensors of the parts in one namespace; later parts win."""
    return SimpleNamespace(**{name: value for part in parts for name, value in vars(part).items()})


def clone(tensors: SimpleNamespace) -> SimpleNamespace:
    """The same values in memory of their own."""
    return SimpleNamespace(**{name: copied(value) for name, value in vars(tensors).items()})


def as_tuple(ctx: Context, variant: Variant, returned: Any) -> tuple[Any, ...]:
    """What a variant that makes its own outputs returned, as a tuple: one value for each output if it did it right.

    A variant returns several outputs as a tuple or a list, a single output also by itself. An output that is a list of
    tensors may be a tuple too.
    """
    _, outputs = ctx.op.tensors(variant)
    several = isinstance(returned, (tuple, list))
    if len(outputs) == 1 and outputs[0].is_list(ctx.case.values):
        wrapped = several and len(returned) == 1 and isinstance(returned[0], (tuple, list))
        return (returned[0] if wrapped else returned,)
    return tuple(returned) if several else (returned,)


def collect(op: Op, variant: Variant, tensors: SimpleNamespace, returned: Any) -> SimpleNamespace:
    """The tensors after a call, with what a variant that makes its own outputs returned."""
    if not variant.returns:
        return tensors
    _, outputs = op.tensors(variant)
    values = returned if isinstance(returned, tuple) else (returned,)
    named = {tensor.name: value for tensor, value in zip(outputs, values, strict=True)}
    return merged(tensors, SimpleNamespace(**named))


def decoded(ctx: Context, variant: Variant, tensors: SimpleNamespace) -> SimpleNamespace:
    """The tensors after a call, with the op's outputs where the variant has outputs of its own."""
    return merged(tensors, SimpleNamespace(**variant.decode(ctx, tensors))) if variant.decode else tensors


def complaint(ctx: Context, variant: Variant, before: SimpleNamespace, after: SimpleNamespace) -> str | None:
    """What is wrong with the values in `after`; None if nothing is. before: the op's inputs as they were.

    If the op has its own check, that says what the outputs must be. Otherwise every output of the op, and
    every input that it declares `inplace`, is compared with what the reference returns: it must return all of them.
    """
    return comparer.complaint(_found(ctx, variant, before, after))


def verdict(
    ctx: Context, variant: Variant, before: SimpleNamespace, after: SimpleNamespace, *, strict: bool = True
) -> comparer.Verdict:
    """Judge as `complaint` does, but a library's result that is off by up to `LEEWAY` is inexact, not wrong.

    strict: False for any variant's result, since by chance some numbers are rounded worse than the ones checked before.
    """
    return verdict_of(ctx, variant, before, decoded(ctx, variant, after), strict=strict)


def verdict_of(
    ctx: Context, variant: Variant, before: SimpleNamespace, own: SimpleNamespace, *, strict: bool = True
) -> comparer.Verdict:
    """Judge as `verdict` does. own: the op's tensors after a call, as `decoded` gives them."""
    leeway = LEEWAY if variant.role in ("baseline", "peer") or not strict else 0.0
    return comparer.judged(_wanted(ctx, before, own), leeway)


def _found(ctx: Context, variant: Variant, before: SimpleNamespace, after: SimpleNamespace) -> Iterable[Expected | str]:
    """What the outputs must be, by the op's own check or its reference; nothing where it has neither."""
    return _wanted(ctx, before, decoded(ctx, variant, after))


def _wanted(ctx: Context, before: SimpleNamespace, own: SimpleNamespace) -> Iterable[Expected | str]:
    op = ctx.op
    if op.check is not None:
        return op.check(ctx, merged(own, SimpleNamespace(before=before)))
    return () if op.reference is None else _expected(ctx, own, op.reference(ctx, before))


def _expected(ctx: Context, own: SimpleNamespace, wanted: dict[str, Any]) -> Iterator[Expected | str]:
    """The reference's tensors, each with the tolerance of the case's dtype."""
    tolerance = ctx.op.tolerance.get(ctx.case.dtype, TOLERANCE.get(ctx.case.dtype, (0.0, 0.0)))
    variant = ctx.op.variants.get(ctx.case.variant)
    for name, want in wanted.items():
        got = getattr(own, name)
        if variant and not (variant.is_library or variant.decode) and (lies := _strided(name, got)):
            yield lies
        if not isinstance(want, (list, tuple)):
            yield from _parts(name, got, want, tolerance)
        elif len(got) != len(want):
            yield f"{name} has {len(got)} tensors, the reference {len(want)}"
        else:
            for i, (one, other) in enumerate(zip(got, want, strict=True)):
                yield from _parts(f"{name}[{i}]", one, other, tolerance)
    updated = (tensor for tensor in ctx.op.inputs if tensor.inplace)
    for tensor in (*ctx.op.outputs, *updated):
        if tensor.name not in wanted:
            advice = "return it too, or give the op a check"
            yield f"{tensor.name}: the reference gives no value for it, so it can't be checked: {advice}"


def _strided(name: str, got: Any) -> str | None:
    """A complaint about an output whose elements don't lie in order, as a transpose leaves them that copies nothing."""
    for part in got if isinstance(got, (list, tuple)) else (got,):
        if not is_in_order(part):
            return f"{name} has the strides {part.stride()}: its elements must lie in order; return {name}.contiguous()"
    return None


def is_in_order(tensor: torch.Tensor) -> bool:
    """Whether elements lie in memory in the order of their indices, the last index first; there may be gaps."""
    strides = [stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True) if extent > 1]
    return strides == sorted(strides, reverse=True)


def _parts(name: str, got: torch.Tensor, want: torch.Tensor, tolerance: tuple[float, float]) -> Iterator[Expected]:
    """A tensor in parts, so that the allowed errors of its elements need little memory at a time."""
    if got.shape != want.shape or not want.dtype.is_floating_point:
        yield Expected(name, got, want)
        return
    relative, absolute = tolerance
    got, want = got.reshape(-1), want.reshape(-1)
    for start in range(0, want.numel(), comparer.CHUNK):
        here = slice(start, start + comparer.CHUNK)
        yield Expected(name, got[here], want[here], absolute + relative * want[here].abs(), start)


def _like(ctx: Context, tensor: Tensor, make: Any) -> Any:
    import torch

    dtype: torch.dtype = getattr(torch, tensor.dtype_of(ctx.case.dtype))
    made = [make(ctx, shape, dtype) for shape in tensor.shapes(ctx.case.values)]
    return made if tensor.is_list(ctx.case.values) else made[0]


def _random(ctx: Context, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    import torch

    if dtype.is_floating_point:
        values = torch.randn(shape, generator=ctx.generator, device=ctx.device, dtype=dtype)
        return values.masked_fill_(values == 0, 1)
    lowest, highest = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    bounds = max(lowest, -_LARGEST), min(highest, _LARGEST) + 1
    values = torch.randint(*bounds, shape, generator=ctx.generator, device=ctx.device, dtype=dtype)
    return values if bool(values.any()) else torch.ones_like(values)


def _poisoned(ctx: Context, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    import torch

    values = torch.empty(shape, device=ctx.device, dtype=dtype)
    if _takes_nan(values):
        return values.fill_(float("nan"))
    _bytes(values).fill_(_POISON_BYTE)
    return values


def _takes_nan(tensor: torch.Tensor) -> bool:
    return bool(tensor.dtype.is_floating_point)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in one dimension: its own memory if that is contiguous."""
    import torch

    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)


def copied(value: Any) -> Any:
    """A tensor, or a list of tensors, in memory of their own."""
    return [item.clone() for item in value] if isinstance(value, (list, tuple)) else value.clone()
