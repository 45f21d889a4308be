"""Rule: the lanes of a warp touch more sectors of 32 bytes than they need bytes for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness import units
from harness.explain.records import SECTOR, Known, Reason, Seen
from harness.explain.words import amount, share, spared

SUMMARY = "uncoalesced access: sectors for each request of a warp"
EFFECT_OF = ("local_memory",)
WIDEST = 16  # sectors of a request whose lanes access 16 bytes each, side by side: no coalesced access has more
WIDEST_FROM_10 = 32  # the same from compute capability 10.0 on, where lanes access up to 32 bytes each
NARROW = 4  # sectors of a request whose lanes access 4 bytes each: fewer are coalesced, or broadcasts
USED = 1 / 1.3  # of the bytes of sectors that lanes must use, where that is counted; a misaligned float uses 0.8
NEAR = 0.5  # sectors; a mean so near to packs of 8 or 16 bytes is most likely made of them
SLACK = 1.3  # a misaligned request of 4 sectors has 5, which is a rule of its own


class _Side(NamedTuple):
    """Loads or stores of a kernel, in all launches of a call.

    need: bytes of the work, 0 if other kernels share it. other: sectors of a request of the other side, loads for
    stores; 0 if they aren't known, or the access isn't coalesced. widest: sectors of the widest coalesced
    request. used: the share of the bytes of sectors that lanes use; None if that wasn't counted.
    """

    name: str
    requests: float
    sectors: float
    moved: float | None
    need: int
    other: float
    widest: int
    used: float | None

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
        if self.used is not None:
            # Requests of fewer sectors are broadcasts, which use a part of a sector and need no more.
            return self.each * self.used if self.used < USED and self.each >= NARROW else None
        least = max(float(NARROW), self.needed, self.other)
        if self.each > self.widest * SLACK:
            return min(float(self.widest), least)
        wasted = self.need and self.moved is not None and self.moved > SLACK * self.need
        # Packs of 16 bytes have 16 sectors, packs of 32 bytes 32, so that what comes twice is read twice.
        packs = any(abs(self.each - width) <= NEAR for width in (WIDEST, self.widest))
        return least if wasted and self.each > SLACK * least and not packs else None

    @property
    def doubtful(self) -> bool:
        """Whether packs of 8 bytes that are read twice look the same."""
        return self.used is None and abs(self.each - WIDEST / 2) <= NEAR


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel whose loads or stores touch too many sectors.

    Where a profiler tells how many bytes of a sector are used, this number decides. Elsewhere the ideal number of
    sectors depends on the width of the accesses, which counters don't tell. Two things are certain. No coalesced
    request has more than 16 sectors. And a kernel that is alone in its case needs (bytes of the work / 32) sectors: if
    the kernel touches more sectors, and more bytes than needed come through memory too, then parts of sectors are
    wasted, unless the kernel only reads twice, by accesses as wide as its stores or by packs of 16 bytes.
    """
    for kernel in known.major:
        sides = list(_sides(known, kernel))
        if any(side.ideal for side in sides):
            yield _reason(known, kernel, sides)


def _sides(known: Known, kernel: Seen) -> Iterator[_Side]:
    alone = len(known.kernels) == 1
    wide = int(known.device.compute_capability.partition(".")[0] or 0) >= 10
    widest = WIDEST_FROM_10 if wide else WIDEST
    moved = {"load": (kernel.read, known.work.read), "store": (kernel.written, known.work.written)}
    found = {
        name: (requests * kernel.launches, sectors * kernel.launches)
        for name in moved
        if (requests := kernel.get(f"{name}_requests")) and (sectors := kernel.get(f"{name}_sectors"))
    }
    for name, (requests, sectors) in found.items():
        others = [of[1] / of[0] for other, of in found.items() if other != name and of[1] <= widest * of[0]]
        by_counters, need = moved[name]
        each, other = kernel.get(f"{name}_bytes_a_sector"), max(others, default=0.0)
        used = None if each is None else each / SECTOR
        yield _Side(name, requests, sectors, by_counters, need if alone else 0, other, widest, used)


def _reason(known: Known, kernel: Seen, sides: list[_Side]) -> Reason:
    bad = [side for side in sides if side.ideal]
    loaded = sum(side.sectors for side in sides)
    # Most bytes of a kernel may come by copies to shared memory, which aren't among its loads.
    touched = max(loaded, ((kernel.read or 0.0) + (kernel.written or 0.0)) / SECTOR)
    spare = sum(side.requests * (side.each - side.ideal) for side in bad if side.ideal) / touched
    text = f"{amount(spare * touched)} of {amount(touched)} sectors could be spared, {share(spare)}"
    saves, last = spared(known, kernel.seconds, kernel.seconds * spare, text)
    perhaps = all(side.doubtful for side in bad)
    worst = max(bad, key=lambda side: side.sectors)
    lines = [line for side in bad for line in _sums(side)]
    return Reason(
        "coalescing",
        f"{'Perhaps uncoalesced' if perhaps else 'Uncoalesced'} access: a {worst.name} of a warp touches "
        f"{worst.each:.1f} sectors of {SECTOR} bytes, where {worst.ideal:.1f} would do.",
        (
            f"in {known.label(kernel)}",
            *lines,
            "packs of 8 bytes that are read twice look the same" if perhaps else last,
        ),
        "let neighbouring lanes access neighbouring elements; where the layout forbids it, go through shared memory",
        None if perhaps else saves,
    )


def _sums(side: _Side) -> Iterator[str]:
    other = "stores" if side.name == "load" else "loads"
    yield f"{side.name}s: {amount(side.sectors)} sectors / {amount(side.requests)} requests = {side.each:.1f}"
    if side.used is not None:
        yield f"lanes use {SECTOR * side.used:.1f} of {SECTOR} bytes of a sector, so {side.ideal:.1f} sectors would do"
        return
    if not side.need:
        yield f"ideal {side.ideal:.1f}: as {other} have, at least {NARROW} (4 bytes a lane)"
        return
    yield f"needed: {units.size(side.need)} / {SECTOR} B / {amount(side.requests)} requests = {side.needed:.1f} sectors"
    yield f"ideal {side.ideal:.1f}: as needed or as {other} have, {NARROW} (4 bytes a lane) to {side.widest} sectors"
    if side.moved is not None:
        yield f"through memory: {units.size(side.moved)}, {side.moved / side.need:.2f} times what is needed"
