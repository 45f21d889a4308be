"""A scenario file once it is checked, and what the checks need to know of an op."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.model import Cache, Case, Claim, Curve, Expectation, Timing, Work

Shape = tuple[tuple[str, int], ...]


class Tensor(Protocol):
    """A declared tensor, or list of tensors, of an op."""

    @property
    def name(self) -> str: ...

    def bytes(self, symbols: Mapping[str, int], case_dtype: str) -> int: ...


class Variant(Protocol):
    """One way of doing an op."""

    @property
    def devices(self) -> Sequence[str]: ...


class Op(Protocol):
    """What a scenario needs of an op's data sheet. `harness.ops.Op` is one; this room lies below that one."""

    @property
    def name(self) -> str: ...
    @property
    def symbols(self) -> Mapping[str, str]: ...
    @property
    def defaults(self) -> Mapping[str, str]: ...
    @property
    def dtypes(self) -> Sequence[str]: ...
    @property
    def ranks(self) -> str: ...
    @property
    def variants(self) -> Mapping[str, Variant]: ...

    def tensors(self, variant: Any) -> tuple[Sequence[Tensor], Sequence[Tensor]]: ...
    def essential(self, symbols: Mapping[str, int], dtype: str) -> Work: ...


@dataclass(frozen=True, slots=True)
class Definition:
    """A scenario, checked: every name is known, every shape has all sizes of the op, in the op's order."""

    name: str
    file: Path
    title: str
    op: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    variants: tuple[str, ...]
    baseline: str
    shows: str
    source: str
    rows: tuple[str, ...]
    tags: tuple[str, ...]
    cache: Cache
    timing: Timing
    expect: tuple[Expectation, ...]
    claims: tuple[Claim, ...]
    curve: Curve | None

    def cases(self, device: str) -> Iterator[Case]:
        """Every case, by dtype, then shape, then variant, the baseline first so that its number comes first."""
        variants = sorted(self.variants, key=lambda variant: variant != self.baseline)
        for dtype in self.dtypes:
            for shape in self.shapes:
                for variant in variants:
                    yield Case(self.op, variant, dtype, shape, device, self.cache)
