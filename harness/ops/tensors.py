"""Tensors and choices of an op, as its data sheet declares them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import shown
from harness.expressions import evaluate
from harness.model import Traffic, Value
from harness.ops.declarations import (
    at,
    check_callable,
    check_flag,
    check_name,
    check_numbers,
    check_one_of,
    check_text,
    check_tuple,
    place_of,
    refusal,
)

Symbols = Mapping[str, Any]
"""Sizes (integers) and choices (names or numbers) of a case by name, and `world`, its number of devices."""
Shape = tuple[int, ...]
Shapes = tuple[str | int, ...] | Callable[[Symbols], Shape | list[Shape]]

ITEMSIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Choice:
    """A named option of an op that isn't a size: one of `values`, or a number from `low` to `high`.

    meaning: what it decides, in a few words. default: the first of `values`, or `low`, unless told. Raises UsageError
    where the default isn't allowed, and for a field of another type.
    """

    meaning: str
    values: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    default: Value | None = None

    def __post_init__(self) -> None:
        check_text("a choice", meaning=self.meaning)
        check_tuple("a choice", self.values, "values", (str, int, float), "('nchw', 'nhwc')")
        for value in self.values:
            if isinstance(value, str):
                check_text("a choice", value=value)
            elif not isinstance(value, bool):  # which no case may choose
                check_numbers("a choice", "values", value)
        check_numbers("a choice", "the range", self.low, self.high)
        if not self.values and not self.low < self.high:
            advice = "give values=('nchw', 'nhwc'), or low=0.0 and high=1.0"
            raise refusal(f"the choice ({self.meaning}) has neither values nor a range of numbers", advice)
        if not self.accepts(self.usual):
            message = f"the default of a choice is {shown(self.usual)}, which it doesn't allow"
            raise refusal(message, f"allowed: {self.allowed}")

    @property
    def usual(self) -> Value:
        """The value where a scenario gives none."""
        if self.default is not None:
            return self.default
        return self.values[0] if self.values else self.low

    @property
    def allowed(self) -> str:
        """What may be chosen, in words."""
        if self.values:
            return ", ".join(map(str, self.values))
        return f"a number from {self.low:g} to {self.high:g}"

    def accepts(self, value: object) -> bool:
        """Whether the value may be chosen."""
        if isinstance(value, bool):
            return False  # Python takes True for 1
        if self.values:
            return value in self.values
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Tensor:
    """Declaration of a tensor, or of a list of tensors.

    shape: one expression of the op's symbols a dimension; or a function of sizes and choices that gives a shape (a
    tuple of integers), or a list of shapes, which declares a list of tensors. dtype: 'case' for the case's, or a name
    such as 'uint8'. inplace: an input that is updated: read once and written once. kept: an output that only the
    backward reads, such as a mask: a training step keeps its bytes.
    """

    name: str
    shape: Shapes
    dtype: str = "case"
    inplace: bool = False
    kept: bool = False

    def __post_init__(self) -> None:
        check_name("a tensor", self.name)
        whose = f"tensor '{self.name}'"
        if callable(self.shape):
            check_callable(whose, 1, shape=self.shape)
        else:
            check_tuple(whose, self.shape, "shape", (str, int), "('M', 'N')")
        check_one_of(whose, self.dtype, "dtype", ("case", *ITEMSIZE))
        check_flag(whose, inplace=self.inplace, kept=self.kept)

    def is_list(self, symbols: Symbols) -> bool:
        """Whether it is a list of tensors."""
        return callable(self.shape) and isinstance(self.shape(symbols), list)

    def shapes(self, symbols: Symbols) -> list[Shape]:
        """Sizes of each tensor declared. Raises UsageError where a function of the op gives no shape."""
        if not callable(self.shape):
            return [tuple(evaluate(size, symbols) for size in self.shape)]
        given = self.shape(symbols)
        try:
            return [tuple(map(operator.index, shape)) for shape in (given if isinstance(given, list) else [given])]
        except TypeError:
            message = f"gives {shown(given)} as the shape of tensor '{self.name}'"
            advice = "a tuple of integers is a shape, a list of shapes declares a list of tensors"
            raise at(place_of(self.shape), message, advice) from None

    def dtype_of(self, case_dtype: str) -> str:
        return case_dtype if self.dtype == "case" else self.dtype

    def bytes(self, symbols: Symbols, case_dtype: str) -> int:
        """Bytes of all tensors declared."""
        elements = 0
        for shape in self.shapes(symbols):
            count = 1
            for extent in shape:
                count *= extent
            elements += count
        return elements * ITEMSIZE[self.dtype_of(case_dtype)]


def moved_by(inputs: Sequence[Tensor], outputs: Sequence[Tensor], symbols: Symbols, dtype: str) -> Traffic:
    """Each input read once, each output written once; what is updated in place is both."""
    updated = sum(t.bytes(symbols, dtype) for t in inputs if t.inplace)
    return Traffic(
        read=sum(t.bytes(symbols, dtype) for t in inputs),
        written=sum(t.bytes(symbols, dtype) for t in outputs) + updated,
    )
