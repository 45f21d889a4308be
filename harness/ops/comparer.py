"""The comparison of outputs with what they must be. An op says what that is, and what errors are allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CHUNK = 2**26
"""Elements compared at a time, so that a comparison needs little memory of its own."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What an output, or a part of it, must be.

    name: the output's name. got: what a variant computed. want: what it must be, of the same shape, in any precision.
    allowed: how far off each element may be, broadcast to the shape of `want`; None: `got` must be `want`
    rounded to its type. start: place of the part's first element in the whole output. loose: where `want` isn't finite,
    every value that isn't finite is right; otherwise the same infinity or NaN must be there.
    """

    name: str
    got: torch.Tensor
    want: torch.Tensor
    allowed: torch.Tensor | float | None = None
    start: int = 0
    loose: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison found: what is `wrong`, or how far off what is only `inexact` is; None for nothing."""

    wrong: str | None = None
    inexact: str | None = None


def complaint(found: Iterable[Expected | str]) -> str | None:
    """What is wrong with the first output that isn't right; None if all are. A text in `found` is such a complaint.

    Parts of one output that follow each other are counted together.
    """
    return judged(found).wrong


def judged(found: Iterable[Expected | str], leeway: float = 0.0) -> Verdict:
    """Judge as `complaint` does, but floats that are off by up to `leeway` times what is allowed are only inexact.

    At least one unit in the last place counts as allowed there: of the dtype, at the size of the element, or of a
    typical one (the root of the mean square) where the element is smaller. For a sum's rounding depends on the sizes
    of its terms. Of several inexact outputs the worst one is told. leeway: 0 allows no more than the tolerance.
    """
    if isinstance(found, str):
        # A text is a sequence of letters: without this, a check that returns a text would give its first letter.
        return Verdict(found)
    outputs: list[_Output] = []
    for part in found:
        last = outputs[-1] if outputs else None
        if last and last.is_wrong and (isinstance(part, str) or part.name != last.name):
            return Verdict(last.complaint)
        if isinstance(part, str):
            return Verdict(part)
        if last is None or part.name != last.name:
            outputs.append(last := _Output(part.name, leeway))
        if tuple(part.got.shape) != tuple(part.want.shape):
            return Verdict(f"{part.name} has shape {tuple(part.got.shape)}, the reference {tuple(part.want.shape)}")
        last.compare(part)
    if outputs and outputs[-1].is_wrong:
        return Verdict(outputs[-1].complaint)
    worst = max((output for output in outputs if output.wrong), key=lambda output: output.times, default=None)
    return Verdict(inexact=worst.inexactness if worst else None)


@dataclass(slots=True)
class _Output:
    """An output as far as it has been compared: its elements, its wrong elements, how far off, and the first of them.

    units, tolerances, times: how far off the worst elements are, in units in the last place, in multiples of what is
    allowed, and in multiples of the larger of the two. They are infinite for what isn't a finite float.
    """

    name: str
    leeway: float
    elements: int = 0
    wrong: int = 0
    worst: float = 0.0
    first: str = ""
    units: float = 0.0
    tolerances: float = 0.0
    times: float = 0.0
    dtype: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether an element is further off than is let through."""
        return self.wrong > 0 and (not self.leeway or self.times > self.leeway)

    @property
    def complaint(self) -> str:
        count = f"{self.wrong} of {self.elements} elements are wrong"
        return f"{self.name}: {count} by up to {self.worst:.3g}; {self.first}"

    @property
    def inexactness(self) -> str:
        count = f"{self.wrong} of {self.elements} elements are further off than allowed"
        units = f"{self.units:.3g} units in the last place of {self.dtype} at the size of a typical element"
        against = f"{self.tolerances:.3g} times the tolerance" if math.isfinite(self.tolerances) else "none is allowed"
        return f"{self.name}: {count}, by up to {units} ({against}); {self.first}"

    def compare(self, part: Expected) -> None:
        """Count the elements of a part, chunk by chunk."""
        got, want, allowed = part.got.reshape(-1), part.want.reshape(-1), _flat(part)
        self.elements += want.numel()
        for begin in range(0, want.numel(), CHUNK):
            here = slice(begin, begin + CHUNK)
            bad = _outside(got[here], want[here], allowed if allowed is None else allowed[here], part.loose)
            count = int(bad.sum())
            if not count:
                continue
            if not self.wrong:
                index = begin + int(bad.nonzero()[0])
                within = "" if allowed is None else f" within {float(allowed[index]):.3g}"
                place = f"element {part.start + index} is {got[index].item()}"
                self.first = f"{place}, the reference {want[index].item()}{within}"
            self.wrong += count
            distance = (got[here][bad].double() - want[here][bad].double()).abs()
            distance = distance.nan_to_num(nan=math.inf, posinf=math.inf)
            self.worst = max(self.worst, float(distance.max()))
            if self.leeway:
                self._measure(distance, bad, got, want[here], None if allowed is None else allowed[here])

    def _measure(
        self,
        distance: torch.Tensor,
        bad: torch.Tensor,
        got: torch.Tensor,
        want: torch.Tensor,
        allowed: torch.Tensor | None,
    ) -> None:
        """Note how far off the wrong elements of a chunk are. bad: these elements."""
        if not (got.dtype.is_floating_point and want.dtype.is_floating_point):
            self.units = self.tolerances = self.times = math.inf
            return
        unit = _unit(want[bad].double().abs().maximum(_typical(want)), got.dtype)
        tolerance = unit.new_zeros(()) if allowed is None else allowed[bad].double().nan_to_num(nan=0.0)
        self.units = max(self.units, float((distance / unit).max()))
        self.tolerances = max(self.tolerances, float((distance / tolerance).max()))
        self.times = max(self.times, float((distance / tolerance.maximum(unit)).max()))
        self.dtype = str(got.dtype).removeprefix("torch.")


def _flat(part: Expected) -> torch.Tensor | None:
    """The allowed distance of each element, in one dimension like the elements."""
    import torch

    if part.allowed is None:
        return None
    if not isinstance(part.allowed, torch.Tensor):
        return torch.tensor(part.allowed, device=part.want.device, dtype=torch.float64).expand(part.want.numel())
    return part.allowed.expand(part.want.shape).reshape(-1)


def _typical(values: torch.Tensor) -> torch.Tensor:
    """The root of the mean square of the values that are finite."""
    import torch

    finite = values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return torch.linalg.vector_norm(finite, dtype=torch.float64) / math.sqrt(values.numel())


def _unit(sizes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The unit in the last place of a dtype at numbers of these sizes: how far apart its numbers are there."""
    import torch

    facts = torch.finfo(dtype)
    _, exponent = sizes.nan_to_num(nan=0.0).clamp(facts.tiny, facts.max).frexp()
    return facts.eps * torch.exp2(exponent.double() - 1)


def _outside(got: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor | None, loose: bool) -> torch.Tensor:
    """Which elements are wrong."""
    if not want.dtype.is_floating_point:
        right = got == want
        return ~right if allowed is None else ~(right | ((got.double() - want.double()).abs() <= allowed))
    # Right is what rounds to the same number, or to the same infinity of the type, and NaN where NaN is wanted.
    right = (got == want.to(got.dtype)) | (got.isnan() & want.isnan())
    if allowed is not None:
        # A distance to an infinity can't be compared.
        right |= ((got.to(want.dtype) - want).abs() <= allowed) & want.isfinite()
        # An infinity is right where a number within the allowed distance rounds to it.
        if bool((infinite := got.isinf()).any()):
            right |= infinite & ((want + allowed.copysign(want)).to(got.dtype) == got)
    if loose:
        right |= ~got.isfinite() & ~want.isfinite()
    return ~right
