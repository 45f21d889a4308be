"""Rule: too few bytes are under way to keep the memory busy, by Little's law."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.explain._records import Known, Reason, Seen
from harness.explain._words import share, spared
from harness.model import STALL

SUMMARY = "too few bytes in flight, by Little's law"
EFFECT_OF = ("occupancy", "waves", "coalescing", "local_memory", "conflicts")
LATENCY = 1e-6
"""Seconds from a load to its bytes at 90% of the bandwidth: on an H200 16 KB in flight a multiprocessor give 90% of the
ceiling (scenario bytes_in_flight). On an idle device a load takes 0.4e-6 s."""
DRAM_IDLE = 0.8  # below this share of its bandwidth, memory itself isn't what bounds a kernel
ISSUE_IDLE = 0.6  # below this share of cycles with an instruction, instructions aren't either
WAITING = 0.5  # share of warps' time in waits for memory from which on they are the main wait
WARPS = {"7.5": 32, "8.6": 48, "8.7": 48, "8.9": 48, "12.0": 48, "12.1": 48}
MOST_WARPS = 64  # of a multiprocessor of any other compute capability from 7.0 on
_REGISTER = 4 * 32  # bytes of a register of all lanes of a warp
_WAIT = f"{STALL}long_scoreboard"


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel that leaves memory and schedulers idle, and has too few bytes on their way to it."""
    for kernel in known.major:
        dram, issue = kernel.get("dram_active"), kernel.get("issue_active")
        if dram is None or issue is None or dram >= DRAM_IDLE or issue >= ISSUE_IDLE:
            continue
        yield from _judge(known, kernel)


def warps(known: Known) -> int:
    """Warps that a multiprocessor of the device can hold."""
    return WARPS.get(known.device.compute_capability, MOST_WARPS)


def _judge(known: Known, kernel: Seen) -> Iterator[Reason]:
    occupancy, grid, block = (kernel.get(name) for name in ("occupancy", "grid", "block"))
    needed = _needed(known, kernel)
    if not (occupancy and grid and block and needed and kernel.read):
        return
    resident = occupancy * warps(known)
    each, why = _of_a_warp(kernel, kernel.read / kernel.launches / (grid * -(-block // 32)))
    waits = kernel.get(_WAIT)
    flying = resident * each
    if flying >= needed and (waits is None or waits < WAITING):
        return
    saves = known.gain(kernel.seconds - known.busy(kernel))
    dram = share(kernel.get("dram_active") or 0.0)
    warps_text = f"{share(occupancy)} of {warps(known)} warps = {resident:.1f} warps"
    told = [] if waits is None else [f"warps wait for memory {share(waits)} of their time"]
    yield Reason(
        "in_flight",
        f"Too few bytes in flight: {_flight(flying, needed)}, while memory is {dram} busy.",
        (
            f"in {known.label(kernel)}, on each multiprocessor:",
            f"in flight: {warps_text} x {units.size(each)} ({why}) = {units.size(flying)}",
            _needed_text(known, needed),
            *told,
            spared(kernel.seconds, f"{units.seconds(known.busy(kernel))} go to streaming and to instructions", saves),
        ),
        "let each thread load more before it uses anything: packs of 16 bytes, several loads at the start, or copies "
        "to shared memory ahead of the work",
        saves,
    )


def _of_a_warp(kernel: Seen, in_all: float) -> tuple[float, str]:
    """Bytes that a warp has under way at most, and why: all that it ever reads, or what its registers hold."""
    hold = (kernel.get("registers") or 255) * _REGISTER
    requests, sectors = kernel.get("load_requests"), kernel.get("load_sectors")
    if in_all <= hold or not requests or not sectors:
        return min(in_all, hold), "all that a warp reads from memory"
    return min(hold, sectors / requests * 32), "one load of a warp at a time"


def _flight(flying: float, needed: float) -> str:
    if flying < needed:
        return f"{units.size(flying)} a multiprocessor, {units.size(needed)} are needed"
    return "warps wait for their loads most of the time"


def _needed(known: Known, kernel: Seen) -> float | None:
    """Bytes a multiprocessor that must be under way so that a stream of the kernel's mix is at full speed."""
    rate = _rate(known, kernel)
    return rate * LATENCY / known.device.multiprocessors if rate and known.device.multiprocessors else None


def _rate(known: Known, kernel: Seen) -> float | None:
    """Bytes a second that the kernel reads at best."""
    seconds = known.streaming(kernel)
    return kernel.read / seconds if kernel.read and seconds else None


def _needed_text(known: Known, needed: float) -> str:
    count = known.device.multiprocessors
    rate, latency = units.rate(needed * count / LATENCY), units.seconds(LATENCY, 2)
    return f"needed: {rate} of reads at best x {latency} (typical of a busy memory) / {count} = {units.size(needed)}"
