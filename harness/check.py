"""Inputs, poison and the comparison with the reference: a wrong kernel has no time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness.ops import Context, Op, Tensor, Variant

if TYPE_CHECKING:
    import torch

TOLERANCE = {"float64": (1e-12, 0.0), "float32": (1e-6, 1e-7), "float16": (1e-3, 1e-6), "bfloat16": (8e-3, 1e-6)}
"""Relative and absolute error allowed against a reference in higher precision: about one unit in the last place."""
_CHUNK = 2**26  # elements compared at a time, so that a comparison needs little memory of its own
_POISON_BYTE = 0xA5


def make_inputs(ctx: Context) -> SimpleNamespace:
    """The op's declared inputs: its own, or normal random numbers (negatives, no zeros; integers from 1 up)."""
    if ctx.op.make is not None:
        return SimpleNamespace(**ctx.op.make(ctx))
    return SimpleNamespace(**{tensor.name: _like(ctx, tensor, _random) for tensor in ctx.op.inputs})


def make_outputs(ctx: Context, variant: Variant) -> SimpleNamespace:
    """Poisoned outputs as `variant` declares them: NaN, or a fixed byte for other types."""
    _, outputs = ctx.op.tensors(variant)
    return SimpleNamespace(**{tensor.name: _like(ctx, tensor, _poisoned) for tensor in outputs})


def leave_poison(ctx: Context, variant: Variant) -> None:
    """Poison the memory that the allocator will hand to a variant that makes its own outputs."""
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
    """What is wrong with the outputs in `after`, given the op's inputs as they were; None if nothing is.

    The op's own check decides if it has one. Otherwise every output, and every input updated in place, that the
    reference names is compared with it.
    """
    op = ctx.op
    decoded = merged(after, SimpleNamespace(**variant.decode(ctx, after))) if variant.decode else after
    if op.check is not None:
        return op.check(ctx, merged(decoded, SimpleNamespace(before=before)))
    if op.reference is None:
        return None
    tolerance = op.tolerance.get(ctx.case.dtype, TOLERANCE.get(ctx.case.dtype, (0.0, 0.0)))
    for name, wanted in op.reference(ctx, before).items():
        for label, got, want in _pairs(name, getattr(decoded, name), wanted):
            if found := _difference(label, got, want, tolerance):
                return found
    return None


def _pairs(name: str, got: Any, wanted: Any) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    if isinstance(wanted, (list, tuple)):
        for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
            yield f"{name}[{i}]", a, b
    else:
        yield name, got, wanted


def _difference(label: str, got: torch.Tensor, want: torch.Tensor, tolerance: tuple[float, float]) -> str | None:
    if got.shape != want.shape:
        return f"{label} has shape {tuple(got.shape)}, the reference {tuple(want.shape)}"
    got, want = got.reshape(-1), want.reshape(-1)
    wrong, worst, first = 0, 0.0, -1
    for start in range(0, want.numel(), _CHUNK):
        part, reference = got[start : start + _CHUNK].to(want.dtype), want[start : start + _CHUNK]
        bad = _outside(part, reference, tolerance)
        count = int(bad.sum())
        if count and first < 0:
            first = start + int(bad.nonzero()[0])
        if count:
            worst = max(
                worst, float((part[bad].double() - reference[bad].double()).abs().nan_to_num(float("inf")).max())
            )
        wrong += count
    if not wrong:
        return None
    values = f"element {first} is {got[first].item()}, the reference {want[first].item()}"
    return f"{label}: {wrong} of {want.numel()} elements are wrong by up to {worst:.3g}; {values}"


def _outside(got: torch.Tensor, want: torch.Tensor, tolerance: tuple[float, float]) -> torch.Tensor:
    if not want.dtype.is_floating_point:
        return got != want
    relative, absolute = tolerance
    close = ((got - want).abs() <= absolute + relative * want.abs()) & want.isfinite()
    # The distance to an infinity says nothing: infinities must be equal, and NaN must meet NaN.
    return ~(close | (got == want) | (got.isnan() & want.isnan()))


def _like(ctx: Context, tensor: Tensor, make: Any) -> Any:
    import torch

    dtype: torch.dtype = getattr(torch, tensor.dtype_of(ctx.case.dtype))
    made = [make(ctx, shape, dtype) for shape in tensor.shapes(ctx.case.symbols)]
    return made if tensor.is_list else made[0]


def _random(ctx: Context, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    import torch

    if dtype.is_floating_point:
        values = torch.randn(shape, generator=ctx.generator, device=ctx.device, dtype=dtype)
        return values.masked_fill_(values == 0, 1)
    highest = 2 if dtype == torch.bool else min(torch.iinfo(dtype).max, 2**31 - 1)
    lowest = 0 if dtype == torch.bool else 1
    return torch.randint(lowest, highest, shape, generator=ctx.generator, device=ctx.device, dtype=dtype)


def _poisoned(ctx: Context, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    import torch

    values = torch.empty(shape, device=ctx.device, dtype=dtype)
    if dtype.is_floating_point:
        return values.fill_(float("nan"))
    values.view(torch.uint8).fill_(_POISON_BYTE)
    return values


def _clone(value: Any) -> Any:
    return [item.clone() for item in value] if isinstance(value, (list, tuple)) else value.clone()
