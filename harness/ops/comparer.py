"""The comparison of outputs with what they must be. An op says what that is, and what errors are allowed."""

from __future__ import annotations

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
    allowed: how far off each element may be, of a shape that broadcasts to that of `want`; None: `got` must be `want`
    rounded to its type. start: place of the part's first element in the whole output. loose: where `want` isn't finite,
    every value that isn't finite is right; otherwise the same infinity or NaN must be there.
    """

    name: str
    got: torch.Tensor
    want: torch.Tensor
    allowed: torch.Tensor | float | None = None
    start: int = 0
    loose: bool = False


def complaint(found: Iterable[Expected | str]) -> str | None:
    """What is wrong with the first output that isn't right; None if all are. A text in `found` is such a complaint.

    Parts of one output that follow each other are counted together.
    """
    if isinstance(found, str):
        # A text is a sequence of letters: without this, a check that returns a text would give its first letter.
        return found
    output = _Output("")
    for part in found:
        if isinstance(part, str):
            return output.complaint or part
        if part.name != output.name:
            if output.wrong:
                return output.complaint
            output = _Output(part.name)
        if tuple(part.got.shape) != tuple(part.want.shape):
            return f"{part.name} has shape {tuple(part.got.shape)}, the reference {tuple(part.want.shape)}"
        output.compare(part)
    return output.complaint


@dataclass(slots=True)
class _Output:
    """An output as far as it has been compared: its elements, the wrong ones, how far off, and the first of them."""

    name: str
    elements: int = 0
    wrong: int = 0
    worst: float = 0.0
    first: str = ""

    @property
    def complaint(self) -> str | None:
        if not self.wrong:
            return None
        count = f"{self.wrong} of {self.elements} elements are wrong"
        return f"{self.name}: {count} by up to {self.worst:.3g}; {self.first}"

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
            self.worst = max(self.worst, float(distance.nan_to_num(nan=float("inf"), posinf=float("inf")).max()))


def _flat(part: Expected) -> torch.Tensor | None:
    """The allowed distance of each element, in one dimension like the elements."""
    import torch

    if part.allowed is None:
        return None
    if not isinstance(part.allowed, torch.Tensor):
        return torch.tensor(part.allowed, device=part.want.device, dtype=torch.float64).expand(part.want.numel())
    return part.allowed.expand(part.want.shape).reshape(-1)


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
    if loose:
        right |= ~got.isfinite() & ~want.isfinite()
    return ~right
