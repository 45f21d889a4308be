"""A scenario file once it is checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.model import Cache, Case, Claim, Curve, Expectation, Timing, Value

MOST_CASES = 10_000
"""The most cases of a scenario."""
Shape = tuple[tuple[str, int], ...]
Chosen = tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """Sizes of all of an op's symbols, values of all of its choices, each in the op's order; a number of devices."""

    shape: Shape
    choices: Chosen = ()
    world: int = 1

    @property
    def values(self) -> dict[str, int | Value]:
        """Sizes, choices and `world` by name, as cases have them."""
        return {**dict(self.shape), **dict(self.choices), "world": self.world}


@dataclass(frozen=True, slots=True)
class Definition:
    """A scenario, checked: every name is known, every setting has all sizes and choices of the op."""

    name: str
    file: Path
    title: str
    op: str
    settings: tuple[Setting, ...]
    dtypes: tuple[str, ...]
    variants: tuple[str, ...]
    baseline: str
    shows: str = ""
    source: str = ""
    rows: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    cache: Cache = "cold"
    timing: Timing = field(default_factory=Timing)
    expect: tuple[Expectation, ...] = ()
    claims: tuple[Claim, ...] = ()
    curve: Curve | None = None
    plot: str = ""

    def cases(self, device: str) -> Iterator[Case]:
        """Every case, by dtype, setting, then variant, the baseline first so that its number comes first."""
        variants = sorted(self.variants, key=lambda variant: variant != self.baseline)
        for dtype in self.dtypes:
            for setting in self.settings:
                for variant in variants:
                    shape, choices, world = setting.shape, setting.choices, setting.world
                    yield Case(self.op, variant, dtype, shape, choices, world, device, self.cache)
