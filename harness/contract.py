"""The contract of a call: the form of its outputs, and inputs that stay as they are.

The form of an output is its dtype, shape and device, and whose memory it is; inputs that aren't declared `inplace` must
stay as they are, to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness.check import copied
from harness.ops import Context, Tensor, Variant, comparer

if TYPE_CHECKING:
    import torch


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
                if before is None or not same(before, given):
                    self._before[name] = copied(given) if encoded else None

    def changed(self) -> str | None:
        """A complaint about the first input that was changed without being declared `inplace`; None if none was."""
        for name, before in self._before.items():
            if before is not None and not same(before, self._inputs[name]):
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
        """Whether the tensors have a byte in common. Their regions overlap, but rows of the two may alternate there."""
        import torch

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
    if own := next((own for own, thing in vars(value).items() if callable(thing) and hasattr(torch.Tensor, own)), ""):
        yield f"{name} has a '{own}' of its own, which may compute later: leave the functions of a tensor as they are"
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


def same(one: Any, other: Any) -> bool:
    """Whether two tensors, or lists of them, have the same form and the same bits: NaN too, and the sign of zeros."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    one, other = bits(one), bits(other)
    chunks = range(0, one.numel(), comparer.CHUNK)
    return all(bool((one[i : i + comparer.CHUNK] == other[i : i + comparer.CHUNK]).all()) for i in chunks)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in one dimension, as integers of their size."""
    import torch

    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().reshape(-1).view(integer)
