"""A case, which a single time belongs to, and a job, which is a case and how to time it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal

Status = Literal["ok", "wrong", "implausible", "unsupported", "skipped", "out_of_memory", "crashed", "timeout"]
Cache = Literal["cold", "hot"]
FAILED: frozenset[Status] = frozenset({"wrong", "implausible", "crashed", "timeout"})
SCALAR, USUAL = "scalar", "usual"
"""What stands for the shape in an id: of an op without sizes, and of a case all of whose sizes are at their default."""
Value = str | int | float
"""A value of a choice: a name such as 'nhwc', or a number such as 0.1."""


@dataclass(frozen=True)
class Case:
    """One variant of one op at one shape and dtype on one kind of device.

    shape: the op's symbols with their sizes, in the op's order. choices: the op's named options that aren't sizes, in
    the op's order. world: number of devices that work on it together, one process each. usual: names of sizes and
    choices that are at the op's default. They aren't in the id, so an op that learns a choice keeps the ids of its
    cases. The ids are put together once: a report asks for each a hundred times.
    """

    op: str
    variant: str
    dtype: str
    shape: tuple[tuple[str, int], ...]
    choices: tuple[tuple[str, Value], ...] = ()
    world: int = 1
    device: str = "cuda"
    cache: Cache = "cold"
    usual: tuple[str, ...] = field(default=(), compare=False)

    @property
    def shape_text(self) -> str:
        """The whole shape, as it stands in tables: 'N96-C64-H112-W112'."""
        return self._shape(()) or SCALAR

    @property
    def choices_text(self) -> str:
        """All choices, as they stand in tables: 'layout=nhwc,p=0.1'; empty if the op has none."""
        return self._choices(())

    @cached_property
    def id(self) -> str:
        """Readable key of the case everywhere: NVTX range, table row, filter, resume, gate."""
        return "/".join((self.op, self.variant, *self._rest(self.usual)))

    @cached_property
    def whole_id(self) -> str:
        """The id with the sizes and choices that are at the op's default, as harness 0.1 wrote it."""
        return "/".join((self.op, self.variant, *self._rest(())))

    @cached_property
    def group(self) -> str:
        """The id without the variant: cases of one group do the same work and are compared with each other."""
        return "/".join((self.op, *self._rest(self.usual)))

    def matches(self, glob: str) -> bool:
        """Whether the glob fits the id, or the whole id."""
        return fnmatchcase(self.id, glob) or fnmatchcase(self.whole_id, glob)

    def group_matches(self, glob: str) -> bool:
        """Whether the glob fits the group, or the group with what is at the op's default."""
        return fnmatchcase(self.group, glob) or fnmatchcase("/".join((self.op, *self._rest(()))), glob)

    @property
    def symbols(self) -> dict[str, int]:
        """The sizes by symbol."""
        return dict(self.shape)

    @property
    def values(self) -> dict[str, int | Value]:
        """The sizes, the choices and `world` by name: what an op's expressions and functions are given."""
        return {**dict(self.shape), **dict(self.choices), "world": self.world}

    def _shape(self, without: Collection[str]) -> str:
        return "-".join(f"{symbol}{size}" for symbol, size in self.shape if symbol not in without)

    def _choices(self, without: Collection[str]) -> str:
        return ",".join(f"{name}={written(value)}" for name, value in self.choices if name not in without)

    def _rest(self, without: Collection[str]) -> tuple[str, ...]:
        shape = self._shape(without) or (USUAL if self.shape else SCALAR)
        choices = (text,) if (text := self._choices(without)) else ()
        world = (f"world={self.world}",) if self.world > 1 else ()
        hot = ("hot",) if self.cache == "hot" else ()
        return (self.dtype, shape, *choices, *world, *hot)


def written(value: int | Value) -> str:
    """A size or the value of a choice as text: 'nhwc', '0.1'."""
    return value if isinstance(value, str) else f"{value:.12g}"


LONGEST_CASE = 86_400.0
"""Seconds, a day: the most that a case may be sampled for, and the most that it may take in all."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long to sample: until the 95% interval of the median is `precision` (relative) wide, or `max_time` seconds.

    `timeout` is the wall-clock limit in seconds for the whole case, compiling and checking included.
    """

    precision: float = 0.002
    max_time: float = 2.0
    timeout: float = 300.0


@dataclass(frozen=True, slots=True)
class Job:
    """A case to run, and how to time it."""

    case: Case
    timing: Timing = Timing()
