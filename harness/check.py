"""Inputs, poison, the form of outputs, and the comparison with the reference: a wrong kernel has no time.

Poison is a value that no kernel should leave in its outputs. It shows where a kernel wrote nothing. The form of an
output is its dtype, shape and device, and whose memory it is; inputs that aren't declared `inplace` must stay as they
are, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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


def new_set(ctx: Context, variant: Variant, inputs: SimpleNamespace) -> SimpleNamespace:
    """Copies of inputs, what the variant encodes of them, and its outputs, in memory of their own."""
    tensors = merged(clone(inputs), make_outputs(ctx, variant))
    return tensors if variant.encode is None else merged(tensors, SimpleNamespace(**variant.encode(ctx, tensors)))


def poison(tensors: Sequence[torch.Tensor], factor: float = float("nan")) -> None:
    """Fill tensors with values that no kernel should leave in its outputs.

    factor: what floats are multiplied by; 1 leaves all tensors as they are.
    """
    import torch

    if floats := [tensor for tensor in tensors if _takes_nan(tensor)]:
        torch._foreach_mul_(floats, factor)
    for tensor in tensors:
        if not _takes_nan(tensor) and math.isnan(factor):
            target = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
            _bytes(target).fill_(_POISON_BYTE)
            if target is not tensor:
                tensor.copy_(target)


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
    return SimpleNamespace(**{name: _clone(value) for name, value in vars(tensors).items()})


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
    leeway = LEEWAY if variant.role in ("baseline", "peer") or not strict else 0.0
    return comparer.judged(_found(ctx, variant, before, after), leeway)


class Watch:
    """The inputs and outputs of one set of buffers, as they were given to a variant.

    It keeps the inputs that no variant may change: in `canonical`, from which they were cloned, or as copies of its own
    where the variant has encoded them.
    """

    def __init__(
        self, ctx: Context, variant: Variant, canonical: SimpleNamespace, tensors: SimpleNamespace, *, encoded: bool
    ) -> None:
        """Remember the tensors before a call. encoded: keep copies of encoded inputs too, which takes memory."""
        inputs, self._declared = ctx.op.tensors(variant)
        self._ctx = ctx
        # A variant's own declaration of an input stands in place of the op's.
        named = {tensor.name: tensor for tensor in (*ctx.op.inputs, *inputs)}
        every = {name: tensor for name, tensor in named.items() if _is_dense(getattr(tensors, name, None))}
        self._inputs = {name: getattr(tensors, name) for name in every}
        self._outputs = None if variant.returns else [_tensors(getattr(tensors, t.name)) for t in self._declared]
        self._before = {name: getattr(canonical, name, None) for name, tensor in every.items() if not tensor.inplace}
        if variant.encode is not None:
            for name, before in list(self._before.items()):
                given = self._inputs[name]
                if before is None or not _same(before, given):
                    self._before[name] = _clone(given) if encoded else None

    def changed(self) -> str | None:
        """A complaint about the first input that was changed without being declared `inplace`; None if none was."""
        for name, before in self._before.items():
            if before is not None and not _same(before, self._inputs[name]):
                return f"the input {name} was changed: declare it with inplace=True, or work on a copy of it"
        return None

    def malformed(self, tensors: SimpleNamespace, returned: tuple[Any, ...]) -> str | None:
        """What is wrong with the form of the outputs; None if nothing is. returned: what `as_tuple` gave of it."""
        if self._outputs is not None:
            returned = tuple(getattr(tensors, tensor.name, None) for tensor in self._declared)
            for tensor, value, given in zip(self._declared, returned, self._outputs, strict=True):
                found = _tensors(value)
                if len(found) != len(given) or any(one is not other for one, other in zip(found, given, strict=True)):
                    return (
                        f"{tensor.name} isn't the tensor that the variant was given: write into that one, or declare "
                        "the variant with returns=True"
                    )
        elif len(returned) != len(self._declared):
            names = ", ".join(tensor.name for tensor in self._declared)
            return f"{len(returned)} outputs were returned, declared is {len(self._declared)}: {names}"
        regions = [_Region.of(f"the input {name}", part) for name, part in _flattened(self._inputs)]
        first_output = len(regions)
        for tensor, value in zip(self._declared, returned, strict=True):
            if wrong := _form(self._ctx, tensor, value):
                return wrong
            regions += [_Region.of(f"the output {name}", part) for name, part in _flattened({tensor.name: value})]
        return _shared(regions, first_output)


@dataclass(frozen=True, slots=True)
class _Region:
    """A tensor's place in memory: all its bytes lie from the address `begin` to `end`."""

    name: str
    tensor: torch.Tensor
    begin: int
    end: int

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> _Region:
        """The region of a tensor that isn't empty."""
        last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
        begin = tensor.data_ptr()
        return cls(name, tensor, begin, begin + (last + 1) * tensor.element_size())

    def overlaps(self, other: _Region) -> bool:
        """Whether the tensors have a byte in common: regions that overlap may belong to rows that alternate."""
        import torch

        if min(self.end, other.end) <= max(self.begin, other.begin):
            return False
        low = min(self.begin, other.begin)
        marks = torch.zeros(max(self.end, other.end) - low, dtype=torch.uint8, device=self.tensor.device)
        self._bytes_in(marks, low).fill_(1)
        return bool(other._bytes_in(marks, low).any())

    def _bytes_in(self, marks: torch.Tensor, low: int) -> torch.Tensor:
        size = self.tensor.element_size()
        strides = [stride * size for stride in self.tensor.stride()]
        return marks.as_strided((*self.tensor.shape, size), (*strides, 1), self.begin - low)


def _flattened(tensors: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor that isn't empty with its name, tensors of lists included."""
    for name, value in tensors.items():
        for i, part in enumerate(_tensors(value)):
            if part.numel():
                yield f"{name}[{i}]" if isinstance(value, (list, tuple)) else name, part


def _tensors(value: Any) -> tuple[Any, ...]:
    """The tensors of a list, or the one tensor."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _is_dense(value: Any) -> bool:
    """Whether it is a tensor with all its elements in memory, or a list of them. Sparse inputs aren't watched."""
    import torch

    return all(isinstance(part, torch.Tensor) and part.layout == torch.strided for part in _tensors(value))


def _shared(regions: Sequence[_Region], first_output: int) -> str | None:
    """A complaint about an output that has memory in common with another tensor; None if there is none."""
    order = sorted(range(len(regions)), key=lambda index: regions[index].begin)
    for place, one in enumerate(order):
        for other in order[place + 1 :]:
            if regions[other].begin >= regions[one].end:
                break
            first, second = sorted((one, other))
            if second >= first_output and regions[first].overlaps(regions[second]):
                name = regions[second].name.removeprefix("the output ")
                return f"{name} shares memory with {regions[first].name}: an output must have memory of its own"
    return None


def _form(ctx: Context, declared: Tensor, value: Any) -> str | None:
    """What is wrong with the form of one output, a tensor or a list of them; None if nothing is."""
    shapes = declared.shapes(ctx.case.values)
    if not declared.is_list(ctx.case.values):
        return _form_of_one(ctx, declared, declared.name, shapes[0], value)
    if not isinstance(value, (list, tuple)):
        return f"{declared.name} is a {type(value).__name__}, not a list of tensors"
    if len(value) != len(shapes):
        return f"{declared.name} has {len(value)} tensors, declared are {len(shapes)}"
    parts = enumerate(zip(shapes, value, strict=True))
    found = (_form_of_one(ctx, declared, f"{declared.name}[{i}]", shape, part) for i, (shape, part) in parts)
    return next(filter(None, found), None)


def _form_of_one(ctx: Context, declared: Tensor, name: str, shape: tuple[int, ...], value: Any) -> str | None:
    return next(_faults(ctx, declared, name, shape, value), None)


def _faults(ctx: Context, declared: Tensor, name: str, shape: tuple[int, ...], value: Any) -> Iterator[str]:
    """What is wrong with the form of a tensor. What follows the first fault need not be true of it."""
    import torch

    dtype = getattr(torch, declared.dtype_of(ctx.case.dtype))
    if not isinstance(value, torch.Tensor):
        yield f"{name} is a {type(value).__name__}, not a tensor"
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        yield f"{name} is a {type(value).__name__}: a subclass of Tensor may compute later; return a plain tensor"
    if value.dtype != dtype:
        yield f"{name} has the dtype {_short(value.dtype)}, declared is {_short(dtype)}"
    if tuple(value.shape) != shape:
        yield f"{name} has the shape {tuple(value.shape)}, declared is {shape}"
    if value.device != ctx.device:
        yield f"{name} is on the device {value.device}, the case runs on {ctx.device}"
    if value.layout != torch.strided:
        yield f"{name} has the layout {_short(value.layout)}; an output must have all its elements in memory"
    if value.is_conj() or value.is_neg():
        yield f"{name} is a view that torch hasn't computed yet: return {name}.resolve_conj().resolve_neg()"
    if value.numel() and any(extent > 1 and not stride for extent, stride in zip(shape, value.stride(), strict=True)):
        yield f"{name} has several elements in one place of memory, as expand() makes them: each must be written"


def _short(name: object) -> str:
    """The name of a dtype or a layout without the module that it comes from."""
    return str(name).removeprefix("torch.")


def _same(one: Any, other: Any) -> bool:
    """Whether two tensors, or lists of them, have the same form and the same bits: NaN too, and the sign of zeros."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    one, other = _bits(one), _bits(other)
    chunks = range(0, one.numel(), comparer.CHUNK)
    return all(bool((one[i : i + comparer.CHUNK] == other[i : i + comparer.CHUNK]).all()) for i in chunks)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in one dimension, as integers of their size."""
    import torch

    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().reshape(-1).view(integer)


def _found(ctx: Context, variant: Variant, before: SimpleNamespace, after: SimpleNamespace) -> Iterable[Expected | str]:
    """What the outputs must be, by the op's own check or its reference; nothing where it has neither."""
    op, own = ctx.op, decoded(ctx, variant, after)
    if op.check is not None:
        return op.check(ctx, merged(own, SimpleNamespace(before=before)))
    return () if op.reference is None else _expected(ctx, own, op.reference(ctx, before))


def _expected(ctx: Context, own: SimpleNamespace, wanted: dict[str, Any]) -> Iterator[Expected | str]:
    """The reference's tensors, each with the tolerance of the case's dtype."""
    tolerance = ctx.op.tolerance.get(ctx.case.dtype, TOLERANCE.get(ctx.case.dtype, (0.0, 0.0)))
    for name, want in wanted.items():
        got = getattr(own, name)
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
    return tensor.dtype.is_floating_point


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in one dimension: its own memory if that is contiguous."""
    import torch

    return tensor.detach().reshape(-1).view(torch.uint8)


def _clone(value: Any) -> Any:
    return [item.clone() for item in value] if isinstance(value, (list, tuple)) else value.clone()
