"""Rule: accesses start inside of a sector of 32 bytes, so that each request touches one sector more."""

from __future__ import annotations

from collections.abc import Iterator

from harness.explain.records import SECTOR, Known, Reason
from harness.explain.words import amount, share, spared

SUMMARY = "partial sectors: accesses that start inside of a sector"
EFFECT_OF = ()
WIDTHS = (4, 8, 16)  # sectors of an aligned request whose lanes access 4, 8 or 16 bytes each
NEAR_ONE = 0.1  # how near to one sector more it must be: a mean over other mixes of accesses isn't
SAME = 0.05  # how near the ratio of bytes touched to bytes needed must be to the ratio of sectors


def judge(known: Known) -> Iterator[Reason]:
    """A reason for a kernel, alone in its case, whose loads or stores touch one sector a request more than needed."""
    if len(known.kernels) != 1:
        return
    kernel = known.kernels[0]
    every = sum(kernel.of_a_call(f"{name}_sectors") or 0.0 for name in ("load", "store"))
    for name, need in (("load", known.work.read), ("store", known.work.written)):
        requests, sectors = (kernel.of_a_call(f"{name}_{each}") for each in ("requests", "sectors"))
        if not requests or not sectors or not need:
            continue
        each, more = sectors / requests, sectors * SECTOR / need
        width = next((width for width in WIDTHS if abs(each - width - 1) <= NEAR_ONE), None)
        if width and abs(more - (width + 1) / width) <= SAME:
            lines = (
                f"{name}s: {amount(sectors)} sectors / {amount(requests)} requests = {each:.2f}",
                f"they touch {more:.2f} times the bytes needed; {width + 1} / {width} = {(width + 1) / width:.2f}",
            )
            yield _reason(known, name, width, sectors / every, lines)


def _reason(known: Known, name: str, width: int, part: float, lines: tuple[str, ...]) -> Reason:
    text = f"{name}s are {share(part)} of the sectors, 1 / {width + 1} of these"
    saves, last = spared(known, known.time, known.time * part / (width + 1), text)
    return Reason(
        "partial_sectors",
        f"Misaligned {name}s: each touches {width + 1} sectors of {SECTOR} bytes, where {width} would do.",
        (*lines, last),
        f"start at addresses that are multiples of {SECTOR} bytes: take the first elements one by one, or shift packs "
        "in registers",
        saves,
    )
