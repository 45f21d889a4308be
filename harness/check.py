"""Inputs, poison and the comparison with the reference: a wrong kernel has no time.

Poison is a value that no kernel should leave in its outputs. It shows where a kernel wrote nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness.ops import Context, Expected, Op, Tensor, Variant, comparer

if TYPE_CHECKING:
    import torch

TOLERANCE = {"float64": (1e-12, 0.0), "float32": (1e-6, 1e-7), "float16": (1e-3, 1e-6), "bfloat16": (8e-3, 1e-6)}
"""Relative and absolute error allowed against a reference in higher precision: about one unit in the last place."""
_POISON_BYTE = 0xA5
_LARGEST = 2**31 - 1


def make_inputs(ctx: Context) -> SimpleNamespace:
    """The op's declared inputs: those that it makes itself, or random ones.

    Floats are normal random numbers without zeros. Integers are uniform over all values of their type, those of more
    than 32 bits over those of 32 bits, so that signed types have both signs. No tensor is all zeros.
    """
    if ctx.op.make is not None:
        return SimpleNamespace(**ctx.op.make(ctx))
    return SimpleNamespace(**{tensor.name: _like(ctx, tensor, _random) for tensor in ctx.op.inputs})


def make_outputs(ctx: Context, variant: Variant) -> SimpleNamespace:
    """Poisoned outputs as `variant` declares them: NaN, or a fixed byte for other types."""
    _, outputs = ctx.op.tensors(variant)
    return SimpleNamespace(**{tensor.name: _like(ctx, tensor, _poisoned) for tensor in outputs})


def leave_poison(ctx: Context, variant: Variant) -> None:
    """Fill the memory that the allocator will give to a variant that makes its own outputs with wrong values."""
    if variant.returns:
        make_outputs(ctx, variant)


def merged(*parts: SimpleNamespace) -> SimpleNamespace:
    """All tensors of the parts in one namespace; later parts win."""
    return SimpleNamespace(**{name: value for part in parts for name, value in vars(part).items()})


def clone(tensors: SimpleNamespace) -> SimpleNamespace:
    """The same values in memory of their own."""
    return SimpleNamespace(**{name: _clone(value) for name, value in vars(tensors).items()})


def collect(op: Op, variant: Variant, tensors: SimpleNamespace, returned: Any) -> SimpleNamespace:
    """The tensors after a call, with what a variant that makes its own outputs returned."""
    if not variant.returns:
        return tensors
    _, outputs = op.tensors(variant)
    values = returned if isinstance(returned, tuple) else (returned,)
    named = {tensor.name: value for tensor, value in zip(outputs, values, strict=True)}
    return merged(tensors, SimpleNamespace(**named))


def complaint(ctx: Context, variant: Variant, before: SimpleNamespace, after: SimpleNamespace) -> str | None:
    """What is wrong with the outputs in `after`; None if nothing is. before: the op's inputs before the call.

    If the op has its own check, that says what the outputs must be. Otherwise every tensor that the reference returns
    (outputs, and inputs updated in place) is compared with the variant's.
    """
    op = ctx.op
    decoded = merged(after, SimpleNamespace(**variant.decode(ctx, after))) if variant.decode else after
    if op.check is not None:
        return comparer.complaint(op.check(ctx, merged(decoded, SimpleNamespace(before=before))))
    if op.reference is None:
        return None
    return comparer.complaint(_expected(ctx, decoded, op.reference(ctx, before)))


def _expected(ctx: Context, decoded: SimpleNamespace, wanted: dict[str, Any]) -> Iterator[Expected | str]:
    """The reference's tensors, each with the tolerance of the case's dtype."""
    tolerance = ctx.op.tolerance.get(ctx.case.dtype, TOLERANCE.get(ctx.case.dtype, (0.0, 0.0)))
    for name, want in wanted.items():
        got = getattr(decoded, name)
        if not isinstance(want, (list, tuple)):
            yield from _parts(name, got, want, tolerance)
        elif len(got) != len(want):
            yield f"{name} has {len(got)} tensors, the reference {len(want)}"
        else:
            for i, (one, other) in enumerate(zip(got, want, strict=True)):
                yield from _parts(f"{name}[{i}]", one, other, tolerance)


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
    if dtype.is_floating_point:
        return values.fill_(float("nan"))
    values.view(torch.uint8).fill_(_POISON_BYTE)
    return values


def _clone(value: Any) -> Any:
    return [item.clone() for item in value] if isinstance(value, (list, tuple)) else value.clone()
