"""Rule: few warps are resident, and neither memory nor instructions keep the device busy."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.explain.records import Known, Reason, Seen
from harness.explain.rules.in_flight import bytes_needed, flight, idle, warps
from harness.explain.words import share, spared

SUMMARY = "occupancy and its limiter"
EFFECT_OF = ("waves",)
LOW = 0.5  # half of the warps, with packs of 16 bytes, have enough bytes in flight; so more needn't help
MANY = 8  # waves of blocks; a last one that isn't full is a small part of so many
_LONGER = "give a block more work, such as several rows in a loop: starting a block takes time, too"
_EVEN = "make the grid larger, or give each block the same amount of work"
REGISTERS = 65536  # of 4 bytes, of a multiprocessor of any compute capability from 7.0 on
_LIMITERS = {
    "blocks_by_registers": (
        "registers allow",
        "spend fewer registers: __launch_bounds__, smaller tiles, less unrolling",
    ),
    "blocks_by_warps": (
        "the size of the blocks allows",
        "take blocks whose number of warps divides the number that a multiprocessor holds",
    ),
    "blocks_by_slots": ("the number of blocks allows", "take larger blocks: a multiprocessor holds only so many"),
    # The last, since it says what the slots say where a block has no shared memory.
    "blocks_by_shared": ("shared memory allows", "spend less shared memory for a block: smaller tiles or fewer stages"),
}


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel with few warps; without counters, for registers that allow only few."""
    for kernel in known.major:
        found = kernel.get("occupancy")
        if found is None or found >= LOW or not idle(known, kernel) or known.in_cache(kernel):
            continue
        if not (kernel.bypasses and _enough(known, kernel)):
            yield _reason(known, kernel, found)
    if not known.has_counters:
        yield from _by_registers(known)


def _enough(known: Known, kernel: Seen) -> bool:
    """Whether shared memory has room for enough bytes under way, which a few warps can ask for."""
    flying, needed = flight(known, kernel), bytes_needed(known, kernel)
    return flying is not None and needed is not None and flying.most >= needed


def _reason(known: Known, kernel: Seen, found: float) -> Reason:
    limit = kernel.get("occupancy_limit")
    blocks = {name: value for name in _LIMITERS if (value := kernel.get(name)) is not None}
    least = min(blocks, key=lambda name: blocks[name], default="")
    limited = bool(least) and (limit is None or limit <= LOW)
    what, remedy = _LIMITERS[least] if limited else ("", "")
    if limited and kernel.bypasses and least == "blocks_by_shared":
        remedy = "copy more bytes ahead of the work: what shared memory holds is what is under way"
    short = not limited and _rate_of_blocks(known, kernel)
    if limited:
        why = f"{what} no more than {share(limit or found)}"
    else:
        why = "blocks end as fast as new blocks start" if short else "the grid doesn't fill it, or blocks end unevenly"
    busy, resident = known.busy(kernel), found * warps(known)
    text = f"no more than {share(1 - found)}, and {units.seconds(busy)} go to streaming and to instructions"
    saves, last = spared(known, kernel.seconds, min(kernel.seconds - busy, kernel.seconds * (1 - found)), text)
    return Reason(
        "occupancy",
        f"Low occupancy: {share(found)} of the warps are resident; {why}.",
        (
            f"in {known.label(kernel)}: {share(found)} x {warps(known)} = {resident:.1f} warps a multiprocessor",
            *_limits(kernel, blocks),
            *([short] if short else []),
            last,
        ),
        remedy or (_LONGER if short else _EVEN),
        saves,
    )


def _rate_of_blocks(known: Known, kernel: Seen) -> str:
    """How fast blocks start, where so many wait that the grid's last blocks don't matter; '' where they do."""
    grid, waves, count = kernel.get("grid"), kernel.get("waves"), known.device.multiprocessors
    if not grid or not waves or not count or waves < MANY or not kernel.seconds:
        return ""
    each = kernel.seconds / kernel.launches / (grid / count)
    return (
        f"{waves:.0f} waves of blocks wait, and a multiprocessor starts one in {units.seconds(each)}: "
        f"{units.seconds(kernel.seconds / kernel.launches)} / ({grid:.0f} blocks / {count})"
    )


def _limits(kernel: Seen, blocks: dict[str, float]) -> Iterator[str]:
    if blocks:
        each = ", ".join(f"{_LIMITERS[name][0].rpartition(' ')[0]} {value:.0f}" for name, value in blocks.items())
        yield f"blocks that fit a multiprocessor by: {each}"
    own = {"registers a thread": kernel.get("registers"), "threads a block": kernel.get("block")}
    text = [f"{value:.0f} {name}" for name, value in own.items() if value is not None]
    if shared := kernel.get("shared_bytes"):
        text.append(f"{units.size(shared)} of shared memory a block")
    if text:
        yield ", ".join(text)


def _by_registers(known: Known) -> Iterator[Reason]:
    most = max(known.facts, key=lambda fact: fact.registers, default=None)
    if most is None or not most.registers:
        return
    # Registers are given to a warp in units of 8 for each of its lanes.
    rounded = -(-most.registers // 8) * 8
    fitting = REGISTERS // (rounded * 32)
    limit = fitting / warps(known)
    if limit < LOW:
        yield Reason(
            "occupancy",
            f"Perhaps occupancy: the registers of {most.name} allow {share(limit)} of the warps at most.",
            (
                f"{most.registers} registers a thread, rounded up to {rounded}",
                f"{REGISTERS} / ({rounded} x 32) = {fitting} of {warps(known)} warps",
                "counters tell whether memory and schedulers are idle",
            ),
            _LIMITERS["blocks_by_registers"][1],
        )
