"""The usual reasons why counters see other bytes than a variant declares, each checked by the counters there are.

A reason is a function: given the gap of the bytes read or written, it gives a sentence with its figures, or None where
it can't be the reason. A reason that explains less than half of the gap isn't given. Several may hold at once.
"""

from __future__ import annotations

from collections.abc import Callable

from harness import units
from harness.report.counted import LIMIT, Counted, Gap
from harness.report.kernel_names import kernel_name

UNEXPLAINED = "not explained"
_NEARLY = 2
"""Bytes up to this many times the cache's nearly fit: a good part of them is still there at the next call."""
_WIDEST = 16
"""Sectors that a request of a warp touches at most if it uses all of each: 32 threads with 16 bytes."""
_SMALL = 0.1
"""Writes beyond the declared ones are small, as partial sums are, up to this share of all declared bytes."""
_PASSES = (2, 3)
_CLOSE = 0.05
"""A multiple this close to a whole number is taken for a number of passes."""
_MOST_KERNELS = 3
_NAME = 40
"""Characters of a kernel's name that a sentence has room for."""


def reasons(gap: Gap) -> dict[str, str]:
    """The sentence of each reason that holds, by the short name of the reason; empty if none does."""
    return {name: told for name, check in _CHECKS.items() if (told := check(gap))}


def cached(gap: Gap) -> str | None:
    """Fewer bytes came from memory, since a cache had what was read before."""
    of, missing = gap.of, -gap.bytes
    if gap.part != "read" or missing <= 0:
        return None
    hit = "" if of.l2_hit is None else f"; the L2 had {units.percent(of.l2_hit)} of what was asked of it"
    again = max(of.work.again, of.declared.read - of.work.read)
    if again and missing <= again and (of.launches <= 1 or _hits_enough(of, missing)):
        return f"of {_size(again)} that are read again, a cache still had {_size(missing)} (L2: {_size(of.cache)}){hit}"
    if of.declared.moved <= _NEARLY * of.cache and _hits_enough(of, missing):
        whole = f"the {_size(of.declared.moved)} of the case fit or nearly fit the L2 of {_size(of.cache)}"
        return f"{whole}, which still had {_size(missing)} of an earlier call{hit}"
    return None


def _hits_enough(of: Counted, missing: float) -> bool:
    """Whether the L2 may have given these bytes: between kernels, only the L2 keeps any."""
    return of.l2_hit is None or of.l2_hit * of.declared.moved >= missing


def write_back(gap: Gap) -> str | None:
    """Fewer bytes reached memory, since the L2 writes them back after the kernel has ended."""
    missing = -gap.bytes
    if gap.part != "written" or not 0 < missing <= gap.of.cache * max(1.0, gap.of.launches):
        return None
    kernels = units.plural(round(max(1.0, gap.of.launches)), "kernel")
    return (
        f"{_size(missing)} weren't written back when the counting ended; the L2 keeps up to {_size(gap.of.cache)} "
        f"after each of {kernels}"
    )


def fused(gap: Gap) -> str | None:
    """Less is written, since one kernel does what the variant declares two for: nothing lies in memory between them."""
    of = gap.of
    between = of.declared.written - of.work.written
    if gap.part != "written" or gap.bytes >= 0 or of.launches != 1 or not gap.is_covered_by(between):
        return None
    return f"a call is one kernel: it needn't write the {_size(between)} that the variant declares beside its result"


def partial_sectors(gap: Gap) -> str | None:
    """Requests touch more sectors than the declared bytes fill."""
    of = gap.of
    kind = "load" if gap.part == "read" else "store"
    touched = of.sectors(f"{kind}_sectors")
    if gap.bytes <= 0 or touched is None or not gap.is_covered_by(touched - gap.declared):
        return None
    if kind == "store" and touched - gap.declared <= _SMALL * of.declared.moved:
        return None  # so few are partial sums
    requests, sectors = of.total(f"{kind}_requests"), of.total(f"{kind}_sectors")
    each = sectors / requests if requests and sectors else None
    told = f"{kind}s touched sectors of {_size(touched)}{_times(touched, gap.declared)}"
    told += f", {units.significant(each, 3)} a request" if each else ""
    if each and each > _WIDEST:
        return f"{told}: they use parts of sectors"
    return f"{told}: they use parts of sectors, or {'read' if kind == 'load' else 'write'} bytes again"


def _times(found: float, declared: float) -> str:
    return f", {units.ratio(found / declared)} the declared bytes" if declared else ""


def filled(gap: Gap) -> str | None:
    """Sectors are read since stores write only a part of each."""
    of = gap.of
    stored = of.sectors("store_sectors")
    if gap.part != "read" or gap.bytes <= 0 or stored is None or not gap.is_covered_by(stored):
        return None
    if stored <= (1 + LIMIT) * of.work.written:
        return None
    return (
        f"stores touched sectors of {_size(stored)} to write {_size(of.work.written)}: "
        "what a store leaves of a sector has to be read"
    )


def pairs(gap: Gap) -> str | None:
    """Sectors beside the ones that were asked for are read along."""
    loaded = gap.of.sectors("load_sectors")
    if gap.part != "read" or gap.bytes <= 0 or not loaded:
        return None
    beyond = gap.found - loaded
    if not gap.is_covered_by(beyond) or gap.found > 2 * (1 + LIMIT) * loaded:
        return None
    return (
        f"{_size(gap.found)} were read where loads touched sectors of {_size(loaded)}: "
        "the L2 reads up to 64 bytes where a sector of 32 is asked for"
    )


def second_pass(gap: Gap) -> str | None:
    """The bytes read are a multiple of the declared ones."""
    of = gap.of
    if gap.part != "read" or not gap.declared or filled(gap):
        return None
    times = gap.found / gap.declared
    requests, sectors = of.total("load_requests"), of.total("load_sectors")
    apart = bool(requests and sectors and sectors / requests > _WIDEST)
    if apart or round(times) not in _PASSES or abs(times / round(times) - 1) > _CLOSE:
        return None
    return f"{units.ratio(times)} the declared bytes are read, as by {round(times)} passes"


def several_kernels(gap: Gap) -> str | None:
    """Several kernels move bytes: one may write or read again what another one did."""
    seen = [(k.name, k.launches, dict(k.values).get(f"{gap.part}_bytes", 0.0)) for k in gap.of.found.kernels]
    if gap.bytes <= 0 or gap.of.launches <= 1 or not seen:
        return None
    moved = sorted(((launches * each, name) for name, launches, each in seen), reverse=True)
    if not gap.is_covered_by(sum(bytes_ for bytes_, _ in moved) - max(each for *_, each in seen)):
        return None
    listed = ", ".join(f"{kernel_name(name, _NAME)} {_size(bytes_)}" for bytes_, name in moved[:_MOST_KERNELS])
    more = ", ..." if len(moved) > _MOST_KERNELS else ""
    return f"{gap.part} by {units.significant(gap.of.launches, 3)} kernels a call: {listed}{more}"


def local_memory(gap: Gap) -> str | None:
    """Threads keep arrays or spilled registers in memory."""
    moved = gap.of.sectors("local_sectors")
    if gap.bytes <= 0 or not moved or not gap.is_covered_by(moved):
        return None
    return f"loads and stores of local memory touched {_size(moved)}"


def partial_sums(gap: Gap) -> str | None:
    """A little more is written than declared: partial sums, or another workspace that the variant doesn't declare."""
    if gap.part != "written" or not 0 < gap.bytes <= _SMALL * gap.of.declared.moved:
        return None
    stored = gap.of.sectors("store_sectors")
    if stored is None:
        return f"{_size(gap.bytes)} more, as partial sums or a workspace would be that the variant doesn't declare"
    if not gap.is_covered_by(stored - gap.declared):
        return None
    return (
        f"stores touched {_size(stored - gap.declared)} more than declared: partial sums, or a workspace that the "
        "variant doesn't declare"
    )


def left_before(gap: Gap) -> str | None:
    """More reached memory than the kernels stored: the L2 wrote back what an earlier kernel had left in it."""
    stored = gap.of.sectors("store_sectors")
    if gap.part != "written" or not 0 < gap.bytes <= gap.of.cache or stored is None:
        return None
    if gap.is_covered_by(stored - gap.declared):
        return None
    return f"stores touched only {_size(stored)}: the L2 wrote back what an earlier kernel had left in it"


def _size(value: float) -> str:
    return units.size(value)


_CHECKS: dict[str, Callable[[Gap], str | None]] = {
    "cache": cached,
    "write-back": write_back,
    "one kernel": fused,
    "sectors": partial_sectors,
    "filled sectors": filled,
    "pairs of sectors": pairs,
    "second pass": second_pass,
    "kernels": several_kernels,
    "local memory": local_memory,
    "partial sums": partial_sums,
    "left before": left_before,
}
"""Every reason by the short name that a table shows."""
