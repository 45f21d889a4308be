"""How blocks of window_attention_grad are made, by rule and as a parameter that a search may vary. Twin of its kernels.

sharers: how many warps share a strip of 16 queries. With two, each warp has half of the keys, and a block has twice the
warps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from harness.collection.ops.chip import RESERVED, WARP, Chip
from harness.collection.ops.elementwise import CUDA_TYPE, PACK_BYTES, blocks
from harness.model import Case
from harness.ops import Built, Plan, Tuning

FILE = "window_attention_grad.cu"
# As in window_attention_grad.cu and in the files that it includes: window_attention_grad_{stage,softmax,strips}.cuh.
STRIP = 16  # rows of a warp
_TILE = 8  # columns
_CHUNK = 8  # elements of 16 bytes
_SHORT = 64  # tokens, up to which P and dS have room at the same time, and sums lie in registers
_STAGED = 4  # tensors of a window and head

LONGEST = 144  # tokens: a strip of S and one of dP fit into the registers of a thread
DIMS = (32, 64)  # sizes of rows in shared memory, which zeros fill
_RESIDENT_WARPS = {32: 12, 64: 8}  # of a multiprocessor, by the size of a row: their registers fit
_RESIDENT_SHARERS = 20  # the same where two warps share a strip: a thread has half of the scores
_MANY = 128  # tokens: with more, a window has nine strips
_WAVES = 4  # of blocks at most
_LIMIT = 2**31  # windows and heads that kernels count in 32 bits


@dataclass(frozen=True, slots=True)
class AttentionGradPlan:
    """How blocks of both kernels are made. Twin of window_attention_grad.cu.

    threads: of a block. groups: of four elements of dS, one for each tile and thread. stages: windows that `tuned` has
    in shared memory at a time. shared: bytes of shared memory of its blocks. resident: blocks of a multiprocessor.
    """

    threads: int
    groups: int
    stages: int
    shared: int
    resident: int

    @classmethod
    def of(cls, tokens: int, dim: int, has_bias: bool, chip: Chip, sharers: int = 1) -> Self:
        """The plan for a window: two stages where they fit into shared memory. sharers: warps of a strip."""
        strips = blocks(tokens, STRIP)
        groups = (blocks(tokens, _TILE) if sharers == 1 else sharers * strips) * strips * WARP
        sums = groups * 16 if has_bias and tokens > _SHORT else 0
        shared = next(
            size
            for stages in (2, 1)
            if (size := shared_bytes(tokens, dim, stages) + sums) <= chip.shared or stages == 1
        )
        stages = 2 if shared == shared_bytes(tokens, dim, 2) + sums else 1
        fitting = (chip.shared + RESERVED) // (shared + RESERVED)
        warps = sharers * strips
        resident = max(1, min((_RESIDENT_WARPS[dim] if sharers == 1 else _RESIDENT_SHARERS) // warps, fitting))
        return cls(warps * WARP, groups, stages, shared, resident)

    def parts(self, windows: int, heads: int, multiprocessors: int) -> int:
        """Blocks of a head: the number whose last block ends first, where blocks run in waves; fewer where equal."""
        room = self.resident * multiprocessors
        counts = {max(1, wave * room // max(1, heads)) for wave in range(1, _WAVES + 1)}
        return min(
            (min(windows, count) for count in counts),
            key=lambda parts: (blocks(heads * parts, room) * blocks(windows, max(1, parts)), parts),
        )


def shared_bytes(tokens: int, dim: int, stages: int) -> int:
    """Bytes of shared memory for stages, for P and dS, and for outputs on their way."""
    rows = blocks(tokens, STRIP) * STRIP
    row = (dim // _CHUNK + 1) * PACK_BYTES
    square = (2 * blocks(tokens, STRIP) + 1) * PACK_BYTES
    squares = 2 if tokens <= _SHORT else 1
    return rows * (stages * _STAGED * row + squares * square + row)


def dim_of(size: int) -> int:
    """The size of a row in shared memory, for heads of `size` elements."""
    return next(dim for dim in DIMS if size <= dim)


def macros_of(case: Case) -> dict[str, str | int]:
    """The macros of a case's sizes, for all kernels."""
    tokens, size = case.symbols["T"], case.symbols["D"]
    dim = dim_of(size)
    rows = {"DIM": dim} if dim == size else {"DIM": dim, "HEAD": size}
    chosen = {"HAS_BIAS": int(case.values["bias"] == "yes"), "HAS_MASK": int(case.values["mask"] == "shift")}
    return {"SCALAR": CUDA_TYPE[case.dtype], "TOKENS": tokens, **rows, **chosen}


def macros_of_plan(plan: AttentionGradPlan, sharers: int) -> dict[str, int]:
    """The macros of `tuned` alone."""
    shared = {} if sharers == 1 else {"SHARERS": sharers}
    return {"STAGES": plan.stages, "RESIDENT": plan.resident} | shared


def plan_of(case: Case, plan: Plan) -> AttentionGradPlan:
    """How blocks are made with these parameters."""
    tokens, dim, has_bias = case.symbols["T"], dim_of(case.symbols["D"]), case.values["bias"] == "yes"
    return AttentionGradPlan.of(tokens, dim, has_bias, Chip.current(), int(plan["sharers"]))


def obstacle(case: Case) -> str | None:
    """Why our kernels can't have a case; None if they can."""
    s = case.symbols
    if s["D"] % 2 or not 0 < s["D"] <= DIMS[-1]:
        return f"heads of even sizes up to {DIMS[-1]} only: rows come in words, and fragments of 32 columns"
    if s["T"] > LONGEST:
        return f"up to {LONGEST} tokens only: all keys of 16 queries must fit into the registers of a warp"
    return None if s["W"] * s["H"] < _LIMIT else f"fewer than {_LIMIT} windows and heads only"


def _parameters(case: Case) -> Mapping[str, Sequence[int]]:
    s = case.symbols
    return {"sharers": (1, 2) if s["T"] > _SHORT and s["D"] in DIMS else (1,)}


def _rule(case: Case) -> Plan | None:
    if obstacle(case):
        return None
    two: Plan = {"sharers": 2}
    # A multiprocessor has room for a single block of nine strips. There two warps a strip are faster on an H200:
    # reports/h200/models_gradients has them, models_again has one.
    pays = case.symbols["T"] > _MANY and case.symbols["D"] == DIMS[0]
    return two if pays and _refuse(case, two) is None else {"sharers": 1}


def _refuse(case: Case, plan: Plan) -> str | None:
    needed, room = plan_of(case, plan).shared, Chip.current().shared
    return f"a block takes {needed:,} bytes of shared memory, and may have {room:,}" if needed > room else None


def _kernels(case: Case, plan: Plan) -> Iterator[Built]:
    made = plan_of(case, plan)
    macros = macros_of(case) | macros_of_plan(made, int(plan["sharers"]))
    yield Built(FILE, "window_attention_grad_tuned", macros, made.threads, made.shared)


TUNING = Tuning(_parameters, _rule, _refuse, _kernels, alike=lambda case: (case.symbols["T"], case.symbols["D"]))
