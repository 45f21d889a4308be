"""Rule: the lanes of a warp touch more sectors of 32 bytes than they need bytes for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness import units
from harness.explain._records import Known, Reason, Seen
from harness.explain._words import amount, share, spared

SUMMARY = "uncoalesced access: sectors for each request of a warp"
EFFECT_OF = ()
SECTOR = 32
WIDEST = 16  # sectors of a request whose lanes access 16 bytes each, side by side: no coalesced access has more
NARROW = 4  # sectors of a request whose lanes access 4 bytes each: fewer are coalesced, or broadcasts
SLACK = 1.3  # a misaligned request of 4 sectors has 5, which is a rule of its own


class _Side(NamedTuple):
    """Loads or stores of a kernel, in all launches of a call.

    need: bytes of the work, 0 if other kernels share it. other: sectors of a request of the other side, loads for
    stores; 0 if they aren't known, or aren't those of a coalesced access.
    """

    name: str
    requests: float
    sectors: float
    moved: float | None
    need: int
    other: float

    @property
    def each(self) -> float:
        """Sectors of a request."""
        return self.sectors / self.requests

    @property
    def needed(self) -> float:
        """Sectors of a request that hold the bytes needed."""
        return self.need / SECTOR / self.requests

    @property
    def ideal(self) -> float | None:
        """Sectors of a request that would do; None if the requests aren't known to have too many."""
        least = max(float(NARROW), self.needed, self.other)
        if self.each > WIDEST * SLACK:
            return min(float(WIDEST), least)
        wasted = self.need and self.moved is not None and self.moved > SLACK * self.need
        return least if wasted and self.each > SLACK * least else None


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel whose loads or stores touch too many sectors.

    What is ideal depends on the width of the accesses, which counters don't tell. Certain is that no coalesced request
    has more than 16 sectors. Besides, a kernel that is alone needs (bytes of the work / 32) sectors. Parts of sectors
    aren't used if it touches more, if more bytes than needed come through memory too, and if it doesn't just read
    twice by accesses as wide as its stores are.
    """
    for kernel in known.major:
        sides = list(_sides(known, kernel))
        if any(side.ideal for side in sides):
            yield _reason(known, kernel, sides)


def _sides(known: Known, kernel: Seen) -> Iterator[_Side]:
    alone = len(known.kernels) == 1
    moved = {"load": (kernel.read, known.work.read), "store": (kernel.written, known.work.written)}
    found = {
        name: (requests * kernel.launches, sectors * kernel.launches)
        for name in moved
        if (requests := kernel.get(f"{name}_requests")) and (sectors := kernel.get(f"{name}_sectors"))
    }
    for name, (requests, sectors) in found.items():
        others = [of[1] / of[0] for other, of in found.items() if other != name and of[1] <= WIDEST * of[0]]
        by_counters, need = moved[name]
        yield _Side(name, requests, sectors, by_counters, need if alone else 0, max(others, default=0.0))


def _reason(known: Known, kernel: Seen, sides: list[_Side]) -> Reason:
    bad = [side for side in sides if side.ideal]
    touched = sum(side.sectors for side in sides)
    kept = sum(side.requests * (side.ideal or side.each) for side in sides)
    spare = 1 - kept / touched
    saves = known.gain(kernel.seconds * spare)
    worst = max(bad, key=lambda side: side.sectors)
    lines = [line for side in bad for line in _sums(side)]
    text = f"{amount(kept)} of {amount(touched)} sectors would do, {share(spare)} fewer"
    return Reason(
        "coalescing",
        f"Uncoalesced access: a {worst.name} of a warp touches {worst.each:.1f} sectors of {SECTOR} bytes, where "
        f"{worst.ideal:.1f} would do.",
        (f"in {known.label(kernel)}", *lines, spared(kernel.seconds, text, saves)),
        "let neighbouring lanes access neighbouring elements; where the layout forbids it, go through shared memory",
        saves,
    )


def _sums(side: _Side) -> Iterator[str]:
    yield f"{side.name}s: {amount(side.sectors)} sectors / {amount(side.requests)} requests = {side.each:.1f}"
    if not side.need:
        yield f"ideal {side.ideal:.1f}: as the others have, at least {NARROW} (4 bytes a lane)"
        return
    yield f"needed: {units.size(side.need)} / {SECTOR} B / {amount(side.requests)} requests = {side.needed:.1f} sectors"
    yield f"ideal {side.ideal:.1f}: as needed or as the others have, {NARROW} (4 bytes a lane) to {WIDEST} (16 bytes)"
    if side.moved is not None:
        yield f"through memory: {units.size(side.moved)}, {side.moved / side.need:.2f} times what is needed"
