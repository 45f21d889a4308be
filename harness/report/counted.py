"""The bytes of a case by hardware counters, beside the bytes that its op and its variant declare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from harness.model import Attachment, Run, Traffic, Work
from harness.report.frame import Line, lines

Part = Literal["read", "written"]
PARTS: tuple[Part, ...] = ("read", "written")
SECTOR = 32
"""Bytes of a sector, the least that a cache asks the memory for."""
LIMIT = 0.03
"""Bytes that are further apart than this share of the declared ones are flagged. Counters of plain kernels are up to
1.3% from the declared bytes, since lines of other calls share the cache; real causes move more."""
_LEAST = 0.01
"""A difference of less than this share of all declared bytes isn't flagged, though the part it is of may be small."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A case with the bytes that counters saw in one call.

    declared: by the variant's own account. read, written: bytes through the device's memory, by counters; the mean of
    the calls that were watched. cache: bytes of the last-level cache; 0 if unknown.
    """

    line: Line
    found: Attachment
    work: Work
    declared: Traffic
    read: float
    written: float
    cache: int

    @property
    def moved(self) -> float:
        """Bytes read and written, by counters."""
        return self.read + self.written

    @property
    def share(self) -> float:
        """How far the counters are from the declared bytes, as a share of these; above 0 they saw more."""
        return self.moved / self.declared.moved - 1

    @property
    def launches(self) -> float:
        """Kernels that one call launches."""
        return dict(self.found.values).get("kernels", sum(kernel.launches for kernel in self.found.kernels))

    @property
    def time(self) -> float | None:
        """Seconds of all kernels of a call, by the tool."""
        return dict(self.found.values).get("time")

    def total(self, counter: str) -> float | None:
        """A counter summed over all kernels of one call; None if the tool doesn't give it for each of them."""
        values = [(kernel.launches, dict(kernel.values).get(counter)) for kernel in self.found.kernels]
        known = [launches * value for launches, value in values if value is not None]
        return sum(known) if values and len(known) == len(values) else None

    def sectors(self, counter: str) -> float | None:
        """Bytes of the sectors that a counter counts in one call."""
        total = self.total(counter)
        return None if total is None else total * SECTOR

    @property
    def l2_hit(self) -> float | None:
        """Share of the sectors asked of the L2 that it had. Several kernels are weighted by the sectors they touch."""
        every = [(kernel.launches, dict(kernel.values)) for kernel in self.found.kernels]
        hits = [values.get("l2_hit") for _, values in every]
        if any(hit is not None and hit > 1 for hit in hits):
            return None  # hits and requests of a tiny kernel, counted in different passes
        if len(hits) == 1:
            return hits[0]
        weights = [n * (v.get("load_sectors", 0.0) + v.get("store_sectors", 0.0)) for n, v in every]
        known = [hit for hit in hits if hit is not None]
        if len(known) < len(hits) or not sum(weights):
            return None
        return sum(hit * weight for hit, weight in zip(known, weights, strict=True)) / sum(weights)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The bytes read, the bytes written, or both, where counters and declared bytes are too far apart."""
        return tuple(gap for part in PARTS if (gap := Gap(self, part)).is_flagged)


@dataclass(frozen=True, slots=True)
class Gap:
    """The bytes read, or the bytes written, of a case: by counters, and as declared."""

    of: Counted
    part: Part

    @property
    def declared(self) -> int:
        return self.of.declared.read if self.part == "read" else self.of.declared.written

    @property
    def found(self) -> float:
        return self.of.read if self.part == "read" else self.of.written

    @property
    def bytes(self) -> float:
        """Bytes by counters less the declared bytes."""
        return self.found - self.declared

    @property
    def share(self) -> float | None:
        """Bytes by counters less the declared bytes, as a share of the declared bytes; None where none are declared."""
        return self.bytes / self.declared if self.declared else None

    @property
    def is_flagged(self) -> bool:
        """Whether this part is too far from what is declared, or most of why both parts together are."""
        if abs(self.bytes) <= _LEAST * self.of.declared.moved:
            return False
        total = self.of.share
        return self.share is None or abs(self.share) > LIMIT or (abs(total) > LIMIT and total * self.bytes > 0)

    def is_covered_by(self, amount: float) -> bool:
        """Whether that many bytes are at least half of the gap, so that they may be its reason."""
        return 2 * amount >= abs(self.bytes)


def bytes_of(line: Line) -> tuple[Attachment, Traffic] | None:
    """What counters saw of a case: the newest attachment with bytes, and its bytes; None if there is none.

    A case of which no kernel was seen has none: its bytes were moved by the driver, whose copies no counter follows.
    """
    for attachment in reversed(line.attachments):
        values = {name: value for name, value in attachment.values if math.isfinite(value)}
        if {"read_bytes", "written_bytes"} <= values.keys() and values.get("kernels", 1):
            return attachment, Traffic(round(values["read_bytes"]), round(values["written_bytes"]))
    return None


def _of(every: Iterable[Line], cache: int) -> Iterator[Counted]:
    """The cases that have counters and declared bytes, each once."""
    told: set[str] = set()
    for line in every:
        seen, work = bytes_of(line), line.result.work
        declared = line.result.traffic or (Traffic(work.read, work.written) if work else None)
        if seen and work and declared and declared.moved and line.case.id not in told:
            told.add(line.case.id)
            attachment, found = seen
            yield Counted(line, attachment, work, declared, found.read, found.written, cache)


def of_run(run: Run) -> list[Counted]:
    """The cases of a run that have counters."""
    limits = run.limits
    cache = (limits.cache_bytes if limits else 0) or run.header.machine.device.cache_bytes
    return list(_of(lines(run), cache))
