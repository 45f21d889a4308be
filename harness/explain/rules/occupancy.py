"""Rule: few warps are resident, and neither memory nor instructions keep the device busy."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.explain._records import Known, Reason, Seen
from harness.explain._words import share, spared
from harness.explain.rules.in_flight import DRAM_IDLE, ISSUE_IDLE, warps

SUMMARY = "occupancy and its limiter"
EFFECT_OF = ("waves",)
LOW = 0.5  # half of the warps, with packs of 16 bytes, have enough bytes in flight; so more needn't help
REGISTERS = 65536  # of 4 bytes, of a multiprocessor of any compute capability from 7.0 on
_LIMITERS = {
    "blocks_by_registers": ("registers", "spend fewer registers: __launch_bounds__, smaller tiles, less unrolling"),
    "blocks_by_warps": ("the size of the blocks", "take blocks whose warps divide those of a multiprocessor"),
    "blocks_by_slots": ("the number of blocks", "take larger blocks: a multiprocessor holds only so many"),
    # The last, since it says what the slots say where a block has no shared memory.
    "blocks_by_shared": ("shared memory", "spend less shared memory for a block: smaller tiles or fewer stages"),
}


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel with few warps; without counters, for registers that allow only few."""
    for kernel in known.major:
        dram, issue, found = (kernel.get(name) for name in ("dram_active", "issue_active", "occupancy"))
        if dram is None or issue is None or found is None:
            continue
        if found < LOW and dram < DRAM_IDLE and issue < ISSUE_IDLE:
            yield _reason(known, kernel, found)
    if not known.kernels:
        yield from _by_registers(known)


def _reason(known: Known, kernel: Seen, found: float) -> Reason:
    limit = kernel.get("occupancy_limit")
    blocks = {name: value for name in _LIMITERS if (value := kernel.get(name)) is not None}
    least = min(blocks, key=lambda name: blocks[name], default="")
    limited = bool(least) and (limit is None or limit <= LOW)
    what, remedy = _LIMITERS[least] if limited else ("", "")
    why = (
        f"{what} allow no more than {share(limit or found)}"
        if limited
        else "the grid doesn't fill it, or blocks end unevenly"
    )
    busy, resident = known.busy(kernel), found * warps(known)
    saves = known.gain(min(kernel.seconds - busy, kernel.seconds * (1 - found)))
    return Reason(
        "occupancy",
        f"Low occupancy: {share(found)} of the warps are resident; {why}.",
        (
            f"in {known.label(kernel)}: {share(found)} x {warps(known)} = {resident:.1f} warps a multiprocessor",
            *_limits(kernel, blocks),
            spared(
                kernel.seconds,
                f"no more than {share(1 - found)}, and {units.seconds(busy)} go to streaming and to instructions",
                saves,
            ),
        ),
        remedy or "make the grid larger, or give each block the same amount of work",
        saves,
    )


def _limits(kernel: Seen, blocks: dict[str, float]) -> Iterator[str]:
    if blocks:
        each = ", ".join(f"{_LIMITERS[name][0]} {value:.0f}" for name, value in blocks.items())
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
