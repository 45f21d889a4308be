"""Rule: too few bytes are under way to keep the memory busy, by Little's law."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness import units
from harness.explain.records import SECTOR, Known, Reason, Seen
from harness.explain.words import above_busy, share, spared
from harness.model import STALL

SUMMARY = "too few bytes in flight, by Little's law"
EFFECT_OF = (
    "atomics",
    "barriers",
    "double",
    "divergence",
    "occupancy",
    "waves",
    "coalescing",
    "local_memory",
    "conflicts",
)
LATENCY = 1e-6
"""Seconds from a load to its bytes at 90% of the bandwidth: on an H200 16 KB in flight a multiprocessor give 90% of the
ceiling (scenario bytes_in_flight). On an idle device a load takes 0.4e-6 s."""
ISSUE_IDLE = 0.75  # below this share of cycles with an instruction, schedulers have slots left for more warps
FULL_PIPE = 0.7  # of a pipe's rate; beyond, its queue makes warps wait
WAITING = 0.5  # share of warps' time in waits for memory from which on they are the main wait
CERTAIN = 0.6  # busier memory than this is often waited for, by kernels that have enough in flight
CLEARLY = 0.75  # of the bytes needed; warps with less than this under way at a time are too few, if they can't do more
WARPS = {"7.5": 32, "8.6": 48, "8.7": 48, "8.9": 48, "12.0": 48, "12.1": 48}
MOST_WARPS = 64  # of a multiprocessor of any other compute capability from 7.0 on
WAIT = f"{STALL}long_scoreboard"
_REGISTER = 4 * 32  # bytes of a register of all lanes of a warp
_AHEAD = (
    "let each thread load more before it uses anything: packs of 16 bytes, several loads at the start, or copies to "
    "shared memory ahead of the work"
)
_DEPENDENT = (
    "look for loads that can't start at once: their addresses are loaded first, or they stand behind a barrier or a "
    "reduction; start these loads earlier"
)


class Flight(NamedTuple):
    """Bytes that a multiprocessor has under way. least: if warps do one load at a time. most: what has room."""

    least: float
    most: float
    text: str


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel that leaves memory and schedulers idle, and has too few bytes on their way to it."""
    for kernel in known.major:
        if idle(known, kernel) and not known.in_cache(kernel):
            yield from _judge(known, kernel)


def idle(known: Known, kernel: Seen) -> bool:
    """Whether neither memory, nor schedulers, nor a pipe are known to be what bounds the kernel."""
    issue = kernel.get("issue_active")
    return known.memory_idle(kernel) and issue is not None and issue < ISSUE_IDLE and kernel.fullest[1] < FULL_PIPE


def warps(known: Known) -> int:
    """Warps that a multiprocessor of the device can hold."""
    return WARPS.get(known.device.compute_capability, MOST_WARPS)


def flight(known: Known, kernel: Seen) -> Flight | None:
    """The bytes of reads that are under way, by what registers or shared memory can hold; None if that isn't known."""
    occupancy, grid, block = (kernel.get(name) for name in ("occupancy", "grid", "block"))
    if not (occupancy and grid and block and kernel.read):
        return None
    resident, of_block = occupancy * warps(known), -(-block // 32)
    warps_text = f"{share(occupancy)} of {warps(known)} warps = {resident:.1f} warps"
    if kernel.bypasses:
        shared = kernel.get("shared_bytes") or 0.0
        most = shared * resident / of_block
        text = f"{warps_text} / {of_block:.0f} of a block x {units.size(shared)} (at most what shared memory holds)"
        return Flight(most, most, f"{text} = {units.size(most)}")
    in_all = kernel.read / kernel.launches / (grid * of_block)
    hold = (kernel.get("registers") or 255) * _REGISTER
    requests, sectors = kernel.get("load_requests"), kernel.get("load_sectors")
    if in_all <= hold or not requests or not sectors:
        most = resident * min(in_all, hold)
        why = "all that a warp reads from memory" if in_all <= hold else "what its registers hold"
        return Flight(most, most, f"{warps_text} x {units.size(min(in_all, hold))} ({why}) = {units.size(most)}")
    one = min(hold, sectors / requests * SECTOR)
    least, most = resident * one, resident * hold
    return Flight(
        least,
        most,
        f"{warps_text} x {units.size(one)} (at least one load at a time) to {units.size(hold)} (what registers hold) = "
        f"{units.size(least)} to {units.size(most)}",
    )


def _judge(known: Known, kernel: Seen) -> Iterator[Reason]:
    flying, needed = flight(known, kernel), bytes_needed(known, kernel)
    if not flying or not needed:
        return
    waits, memory = kernel.get(WAIT), known.memory_busy(kernel) or 0.0
    few = flying.least < CLEARLY * needed and _longest_wait(kernel)
    if flying.most >= needed and not few and (waits is None or waits < WAITING or memory >= CERTAIN):
        return
    saves, last = spared(known, kernel.seconds, *above_busy(known, kernel))
    verdict, remedy = _verdict(flying, needed)
    yield Reason(
        "in_flight",
        f"{verdict}, while memory is {share(memory)} busy.",
        (
            f"in {known.label(kernel)}, on each multiprocessor:",
            f"in flight: {flying.text}",
            _needed_text(known, needed),
            *_told(kernel, waits),
            last,
        ),
        remedy,
        saves,
    )


def _longest_wait(kernel: Seen) -> bool:
    """Whether warps wait for memory longer than for anything else."""
    stalls = kernel.beginning(STALL)
    return bool(stalls) and max(stalls, key=lambda name: stalls[name]) == WAIT.removeprefix(STALL)


def _verdict(flying: Flight, needed: float) -> tuple[str, str]:
    if flying.most < needed:
        much = f"{units.size(flying.most)} a multiprocessor at most"
        return f"Too few bytes in flight: {much}, {units.size(needed)} are needed", _AHEAD
    if flying.least < needed:
        much = f"{units.size(flying.least)} a multiprocessor at least"
        return f"Perhaps too few bytes in flight: {much}, {units.size(needed)} are needed", _AHEAD
    return "Waits for memory, although enough loads are allowed for", _DEPENDENT


def _told(kernel: Seen, waits: float | None) -> Iterator[str]:
    if waits is not None:
        yield f"warps wait for memory {share(waits)} of their time"
    if (active := kernel.get("dram_active")) is not None:
        yield f"memory is active {share(active)} of the datasheet's peak, which no stream reaches"


def bytes_needed(known: Known, kernel: Seen) -> float | None:
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
