"""Extreme values in the inputs of an op: rows of the largest number, of zeros, of NaN, and so on.

Random inputs have none of them. A kernel may be right for normal numbers and give NaN for a row of 1e15, or for a row
that a mask fills with the lowest number. What must come of such values is what the op's reference or check says.

All kinds share one call: every second row of an input is extreme, with one kind after the other, so that normal rows
have extreme neighbours, and rows of several inputs meet in many ways. Inputs with fewer rows than kinds have one kind a
call, where calls are quick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness import check
from harness.ops import Context, Tensor
from harness.ops.extremes import KINDS, Extremes

if TYPE_CHECKING:
    import torch

_SMALL = 2**16
"""Elements of all inputs up to which a call, and its check, are so quick that each kind may have one of its own."""
_APART = 7
"""By so many places the kinds of an input are shifted against the kinds of the input before: an odd number, so that its
extreme rows meet the other one's normal ones."""


def complaint(
    ctx: Context, inputs: SimpleNamespace, judged: Callable[[SimpleNamespace], str | None], *, thorough: bool
) -> str | None:
    """What is wrong with calls whose inputs have extreme values; None if nothing is.

    judged: makes a call with inputs, and says what is wrong with it. If that is a call with several kinds, each kind is
    tried alone, and the first one that is wrong is told: of small inputs, and of large ones if `thorough`. inputs: of
    the case. Other ones take their place, since two of them may need too much memory.
    """

    def tried(each: Round) -> str | None:
        vars(inputs).clear()
        vars(inputs).update(vars(check.make_inputs(ctx)))
        each.fill(inputs)
        wrong = judged(inputs)
        return wrong and f"where inputs have {each.meaning}: {wrong}"

    state = ctx.generator.get_state()
    try:
        for each in list(rounds(ctx, inputs)):
            if wrong := tried(each):
                several = len(each.kinds) > 1 and (thorough or _are_small(inputs))
                return next(filter(None, map(tried, single(ctx, inputs, each) if several else ())), wrong)
        return None
    finally:
        # What draws random numbers later draws the same as without this.
        ctx.generator.set_state(state)


@dataclass(frozen=True, slots=True)
class Round:
    """What one call has: the kinds, and a function that puts them into inputs in place."""

    kinds: tuple[str, ...]
    fill: Callable[[SimpleNamespace], None]

    @property
    def meaning(self) -> str:
        """What inputs have, in words."""
        return KINDS[self.kinds[0]] if len(self.kinds) == 1 else f"rows of {len(self.kinds)} kinds"


@dataclass(frozen=True, slots=True)
class _Place:
    """An input, or a tensor of a list, that gets extreme values. number: of the input. part: in the list."""

    declared: Tensor
    number: int
    part: int | None
    kinds: tuple[str, ...]
    largest: float
    dimension: int | None

    def rows(self, inputs: SimpleNamespace, pieces: int) -> torch.Tensor:
        """A view (rows, ...) of the tensor."""
        value = getattr(inputs, self.declared.name)
        return _rows(value if self.part is None else value[self.part], self.dimension, pieces)


def rounds(ctx: Context, inputs: SimpleNamespace) -> Iterator[Round]:
    """The rounds of a case; none where no input may have extreme values. inputs: of the case, whose shapes matter."""
    places = list(_places(ctx, inputs))
    kinds = tuple(kind for kind in KINDS if any(kind in place.kinds for place in places))
    count = 2 * len(kinds)
    many: list[_Place] = []
    few: list[_Place] = []
    for place in places:
        (many if len(place.rows(inputs, count)) >= count else few).append(place)
    if many:
        yield Round(kinds, lambda tensors: _mix(many, kinds, tensors))
    if few and _are_small(inputs):
        # Single rows of two inputs aren't extreme in the same call.
        turns = (0, 1) if any(len(place.rows(inputs, count)) == 1 for place in few) else (0,)
        yield from (_alone(few, kind, count, turn) for kind in kinds for turn in turns)
    elif few and not many:
        yield Round(kinds, lambda tensors: _mix(few, kinds, tensors, ctx.generator.initial_seed()))


def single(ctx: Context, inputs: SimpleNamespace, of: Round) -> Iterator[Round]:
    """The kinds of a round, each in a round of its own."""
    places = list(_places(ctx, inputs))
    return (_alone(places, kind, 2 * len(of.kinds), 0) for kind in of.kinds)


def _places(ctx: Context, inputs: SimpleNamespace) -> Iterator[_Place]:
    """Inputs of floats that may have extreme values. What an op makes itself has a meaning, which the op must tell."""
    op = ctx.op
    extremes = op.extremes or (Extremes() if op.make is None else None)
    if extremes is None or (op.reference is None and op.check is None):
        return
    for number, tensor in enumerate(op.inputs):
        value, dtype = getattr(inputs, tensor.name), tensor.dtype_of(ctx.case.dtype)
        options = extremes.kinds_of(tensor), extremes.largest_of(tensor, dtype), extremes.apart.get(tensor.name)
        parts = enumerate(value) if isinstance(value, (list, tuple)) else [(None, value)]
        for part, each in parts:
            if options[0] and each.dtype.is_floating_point and each.numel():
                yield _Place(tensor, number + (part or 0), part, *options)


def _are_small(inputs: SimpleNamespace) -> bool:
    return sum(_elements(value) for value in vars(inputs).values()) <= _SMALL


def _elements(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_elements, value))
    return int(value.numel()) if hasattr(value, "numel") else 0


def _rows(tensor: torch.Tensor, dimension: int | None, pieces: int) -> torch.Tensor:
    """A view (rows, ...) of a tensor: along a dimension, of whole last dimensions, or of pieces of a single one."""
    if dimension is not None:
        return tensor.movedim(dimension, 0)
    if tensor.dim() > 1:
        return tensor.view(-1, tensor.shape[-1]) if tensor.is_contiguous() else tensor
    size = max(1, tensor.numel() // max(1, pieces))
    return tensor.view(-1)[tensor.numel() % size :].view(-1, size)


def _mix(places: list[_Place], kinds: tuple[str, ...], inputs: SimpleNamespace, start: int = 0) -> None:
    """Give every second row a kind, one after the other."""
    count = 2 * len(kinds)
    for place in places:
        rows = place.rows(inputs, count)
        for slot, kind in enumerate(kinds):
            # Row r has the kind slot where r + shift is 2 * slot + 1, modulo count.
            first = (2 * slot + 1 - start - _APART * place.number) % count
            if kind in place.kinds:
                _fill(rows[first::count], kind, place.largest)


def _alone(places: list[_Place], kind: str, pieces: int, turn: int) -> Round:
    """Every second row has the kind. turn: 0 or 1, which of two rows."""

    def fill(inputs: SimpleNamespace) -> None:
        for place in places:
            if kind in place.kinds:
                _fill(place.rows(inputs, pieces)[(place.number + turn) % 2 :: 2], kind, place.largest)

    return Round((kind,), fill)


def _fill(rows: torch.Tensor, kind: str, largest: float) -> None:
    """Give rows (rows, ...) of normal numbers a kind of extreme values, in place."""
    import torch

    facts = torch.finfo(rows.dtype)
    largest = min(largest, facts.max)
    if not rows.numel():
        return
    sizes = {
        "largest": largest,
        "smallest": facts.smallest_normal,
        "denormal": 0.375 * facts.smallest_normal,
        "zeros": 0.0,
    }
    whole = {"lowest": -largest, "minus_infinity": -math.inf}
    once = {"infinity": (math.inf, 0.0), "outlier": (largest, 0.5), "nan": (math.nan, 1.0)}
    if kind in sizes:
        rows.copy_(torch.full((), sizes[kind], dtype=rows.dtype, device=rows.device).copysign(rows))
    elif kind in whole:
        rows.fill_(whole[kind])
    elif kind in once:
        value, share = once[kind]
        rows[(slice(None), *(int(share * (extent - 1)) for extent in rows.shape[1:]))] = value
    elif kind == "large":
        rows.mul_(math.sqrt(largest)).clamp_(-largest, largest)
    elif kind == "equal":
        first = rows[(slice(None), *(slice(0, 1) for _ in rows.shape[1:]))].clone()
        rows.copy_(first.expand(rows.shape))
    else:
        rows.masked_fill_(rows < 0, -math.inf)
