"""What a table of plans says, and the evidence for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.model import Value

Plan = Mapping[str, Value]
"""A value of each parameter, by its name."""
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class TimedPlan:
    """A plan that was checked and timed at a size.

    time: seconds of a call, the median. low, high: the ends of its 95% interval. rule: whether it is the plan that the
    op takes without a table.
    """

    plan: dict[str, Value]
    time: float
    low: float
    high: float
    rule: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """The plans of a variant at one size, the one to take first, and what is known of the search.

    source: a hash of the variant's kernels. commit: of the harness, with '+' where something wasn't committed. date: in
    UTC. tried: how many plans were timed. dropped: how many the compiler or a check has ruled out.
    """

    op: str
    variant: str
    dtype: str
    shape: dict[str, int]
    choices: dict[str, Value]
    timed: tuple[TimedPlan, ...]
    source: str
    commit: str
    driver: str
    torch: str
    date: str
    tried: int
    dropped: int

    @property
    def key(self) -> tuple[object, ...]:
        """What an entry is of: a later search of the same takes its place."""
        return (self.op, self.variant, self.dtype, tuple(self.shape.items()), tuple(self.choices.items()))


@dataclass(frozen=True, slots=True)
class PlanTable:
    """All entries of a GPU. device: its name, as the driver has it."""

    device: str
    entries: tuple[Entry, ...] = ()
    schema: int = SCHEMA
