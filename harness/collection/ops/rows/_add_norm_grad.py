"""What the kernels of `tuned` of add_rms_norm_grad are compiled for, and which of its two ways a case goes.

way: stages: rows come to shared memory ahead of the work, as AddNormGradPlan says. few: sums of rows, then the rest by
columns, which reads dy, x and dsum from the L2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from harness.collection.ops.chip import RESERVED, WARP, Chip
from harness.collection.ops.elementwise import CUDA_TYPE, PACK_BYTES, blocks
from harness.model import Case, Value
from harness.ops import ITEMSIZE, Built, Plan, Tuning

_ROWS = 3  # of dy, x and dsum in a stage
_KEPT_ELEMENTS = 32  # sums of columns that a thread keeps at most
_BLOCK = 256  # threads of a block, if so few are enough
_MOST_THREADS = 512  # of a block, and of a multiprocessor: a thread may have up to 128 registers
_MOST_RESIDENT = 8  # blocks of a multiprocessor: each one's sums are written, and read again
_MOST_STAGES = 4
_STATIC = 1024  # bytes of shared memory for sums and barriers, at most

_FEW: dict[str, Value] = {"way": "few", "kept": 1, "resident": 1}
_FEW_BYTES = 12 * 2**20  # of dy, dsum and x together, up to which rows are few: a quarter of the L2 of an H200
_FEW_ROWS = 1024  # up to which rows are few, since a block sums its columns over all of them
_NARROW = 512  # packs of a row up to which a block has fewer of its columns, so that blocks are enough


@dataclass(frozen=True, slots=True)
class AddNormGradPlan:
    """What the kernel is compiled for and launched with.

    threads: of a block. resident: blocks of a multiprocessor. kept: packs of a row that a thread has. stages: rows for
    which a block has room. stage_bytes: of one of them.
    """

    threads: int
    resident: int
    kept: int
    stages: int
    stage_bytes: int

    @classmethod
    def of(cls, columns: int, itemsize: int, chip: Chip) -> Self | None:
        """The plan for rows of whole packs; None for rows that are too long, and for rows of other lengths."""
        size = PACK_BYTES // itemsize
        packs, most = columns // size, _KEPT_ELEMENTS // size
        if columns % size or packs > most * _MOST_THREADS:
            return None
        kept = blocks(packs, _BLOCK) if packs <= most * _BLOCK else blocks(packs, _MOST_THREADS)
        for resident in range(_MOST_RESIDENT, 0, -1):
            plan = cls.made(columns, itemsize, chip, kept, resident)
            # Two blocks that work one row after the other are better than one that has its next row at hand.
            if plan and (plan.stages >= 2 or resident == 1):
                return plan
        return None

    @classmethod
    def made(cls, columns: int, itemsize: int, chip: Chip, kept: int, resident: int) -> Self | None:
        """The plan with so many packs of a thread and blocks of a multiprocessor, and all stages that fit.

        None where there is no room for it, or a thread would have nothing to do.
        """
        size = PACK_BYTES // itemsize
        packs = columns // size
        threads, stage_bytes = blocks(blocks(packs, kept), WARP) * WARP, _ROWS * packs * PACK_BYTES
        # A thread may lack only its last pack.
        if kept > _KEPT_ELEMENTS // size or threads * resident > _MOST_THREADS or (kept - 1) * threads >= packs:
            return None
        stages = min(_MOST_STAGES, ((chip.shared + RESERVED) // resident - RESERVED - _STATIC) // stage_bytes)
        return cls(threads, resident, kept, stages, stage_bytes) if stages > 0 else None

    @classmethod
    def planned(cls, case: Case, plan: Plan) -> Self | None:
        """The plan that parameters stand for; None where there is no room for it."""
        columns, itemsize = case.symbols["N"], ITEMSIZE[case.dtype]
        return cls.made(columns, itemsize, Chip.current(), int(plan["kept"]), int(plan["resident"]))

    @property
    def shared(self) -> int:
        """Bytes of shared memory for the stages."""
        return self.stages * self.stage_bytes

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        return {"THREADS": self.threads, "BLOCKS": self.resident, "KEPT": self.kept, "STAGES": self.stages}


def _is_few(case: Case) -> bool:
    """Whether a row is whole packs, rows are few, and all rows of all inputs are little beside the L2."""
    rows, row = case.symbols["M"], case.symbols["N"] * ITEMSIZE[case.dtype]
    return row % PACK_BYTES == 0 and rows <= _FEW_ROWS and _ROWS * rows * row <= _FEW_BYTES


def few_macros(columns: int, itemsize: int) -> dict[str, int]:
    """Parts of a row that are summed apart, and packs of columns of a block (add_norm_grad_few.cuh)."""
    return {"PARTS": 8, "WIDE": 4 if columns * itemsize <= _NARROW * PACK_BYTES else 8}


def _rule(case: Case) -> Plan | None:
    if _is_few(case):
        return _FEW
    plan = AddNormGradPlan.of(case.symbols["N"], ITEMSIZE[case.dtype], Chip.current())
    return {"way": "stages", "kept": plan.kept, "resident": plan.resident} if plan else None


def _refuse(case: Case, plan: Plan) -> str | None:
    if plan["way"] == "few":
        if not _is_few(case):
            return "these rows are too many, or too many bytes, or aren't whole packs"
        return None if plan == _FEW else "few rows have no other parameter"
    return None if AddNormGradPlan.planned(case, plan) else "there is no room for these rows"


def _kernels(case: Case, plan: Plan) -> Iterator[Built]:
    file, scalar = f"{case.op}.cu", {"SCALAR": CUDA_TYPE[case.dtype]}
    if plan["way"] == "few":
        macros = few_macros(case.symbols["N"], ITEMSIZE[case.dtype])
        for name in ("rows", "spread"):
            yield Built(file, f"{case.op}_{name}", {**scalar, **macros})
        return
    made = AddNormGradPlan.planned(case, plan)
    assert made
    yield Built(file, f"{case.op}_tuned", {**scalar, **made.macros}, made.threads, made.shared)


_PARAMETERS = {
    "way": ("stages", "few"),
    "kept": range(1, _KEPT_ELEMENTS * ITEMSIZE["float32"] // PACK_BYTES + 1),
    "resident": range(1, _MOST_RESIDENT + 1),
}
TUNING = Tuning(lambda _: _PARAMETERS, _rule, _refuse, _kernels)
"""What `tuned` of add_rms_norm_grad declares."""
