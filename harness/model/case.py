"""A case, which a single time belongs to, and a job, which is a case and how to time it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "wrong", "unsupported", "skipped", "out_of_memory", "crashed", "timeout"]
Cache = Literal["cold", "hot"]
FAILED: frozenset[Status] = frozenset({"wrong", "crashed", "timeout"})
Value = str | int | float
"""A value of a choice: a name such as 'nhwc', or a number such as 0.1."""


@dataclass(frozen=True, slots=True)
class Case:
    """One variant of one op at one shape and dtype on one kind of device.

    shape: the op's symbols with their sizes, in the op's order. choices: the op's named options that aren't sizes, in
    the op's order. world: number of devices that work on it together, one process each.
    """

    op: str
    variant: str
    dtype: str
    shape: tuple[tuple[str, int], ...]
    choices: tuple[tuple[str, Value], ...] = ()
    world: int = 1
    device: str = "cuda"
    cache: Cache = "cold"

    @property
    def shape_text(self) -> str:
        """The shape as it stands in ids and tables: 'N96-C64-H112-W112'."""
        return "-".join(f"{symbol}{size}" for symbol, size in self.shape) or "scalar"

    @property
    def choices_text(self) -> str:
        """The choices as they stand in ids and tables: 'layout=nhwc,p=0.1'; empty if the op has none."""
        return ",".join(f"{name}={written(value)}" for name, value in self.choices)

    @property
    def id(self) -> str:
        """Readable key of the case everywhere: NVTX range, table row, filter, resume, gate."""
        return "/".join((self.op, self.variant, *self._rest))

    @property
    def group(self) -> str:
        """The id without the variant: cases of one group do the same work and are compared with each other."""
        return "/".join((self.op, *self._rest))

    @property
    def symbols(self) -> dict[str, int]:
        """The sizes by symbol."""
        return dict(self.shape)

    @property
    def values(self) -> dict[str, int | Value]:
        """The sizes, the choices and `world` by name: what an op's expressions and functions are given."""
        return {**dict(self.shape), **dict(self.choices), "world": self.world}

    @property
    def _rest(self) -> tuple[str, ...]:
        choices = (self.choices_text,) if self.choices else ()
        world = (f"world={self.world}",) if self.world > 1 else ()
        hot = ("hot",) if self.cache == "hot" else ()
        return (self.dtype, self.shape_text, *choices, *world, *hot)


def written(value: int | Value) -> str:
    """A size or the value of a choice as text: 'nhwc', '0.1'."""
    return value if isinstance(value, str) else f"{value:.12g}"


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
