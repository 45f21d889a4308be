"""Plans of products of few rows with weights. Twin of few_rows.cuh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from harness.collection.ops.chip import RESERVED, WARP, Chip
from harness.collection.ops.elementwise import PACK_BYTES, blocks, widened
from harness.model import Case
from harness.ops import Built, Context, Plan, Tuning

if TYPE_CHECKING:
    import torch

EPSILON = 1e-5
"""What the RMSNorm in front adds to mean squares."""
EVERY_PLAN: Mapping[str, tuple[int, ...]] = {
    "warps": (4, 8, 16),
    "columns": (0, 512, 1024, 2048),
    "stages": (1, 2, 3, 4, 5, 6, 8, 12),
    "blocks": (1, 2, 3, 4, 5, 6),
}
"""What a search may try, as FewRows has it."""
PAIRS = 4
"""Pairs of rows of weights of a tile."""
_TILE, _UNIT = 2 * PAIRS, 64  # rows of weights of a tile; columns to which rows of x in shared memory are filled
_EIGHT, _MOST_ROWS = 8, 16  # rows of x of a block
_APART = (1, 2, 4)  # rows of x of a block whose threads have columns of their own
_STEP = 32  # columns by which rows in shared memory are longer, for the sake of banks
_HALF, _FLOAT, _BARRIER = 2, 4, 8  # bytes
_WARPS, _COLUMNS = 8, 1024  # of the rule
_SMALL = 3  # tiles for each multiprocessor: all of them are under way at once
_ENOUGH = 4  # stages of a ring by the rule, where a block has as many


@dataclass(frozen=True, slots=True)
class FewRowsProduct:
    """A product of x (rows, columns) with pairs of rows of weights. norm: whether an RMSNorm is in front."""

    rows: int
    columns: int
    pairs: int
    norm: bool

    @property
    def apart(self) -> tuple[int, ...]:
        """How many rows of x a block multiplies whose threads have columns of their own; () where x has too many."""
        return tuple(rows for rows in _APART if rows >= self.rows)[:1]

    @property
    def at_once(self) -> tuple[int, ...]:
        """How many rows of x a block may multiply at a time, the best first."""
        return (_MOST_ROWS, _EIGHT) if self.rows > _EIGHT else (_EIGHT,)


@dataclass(frozen=True, slots=True)
class FewRows:
    """How threads share a product.

    rows: of x that a block multiplies: 8 or 16 by the tensor cores, 1, 2 or 4 where each thread has columns of its own.
    warps: of a block. columns: of a stage of weights; 0 where each thread has its own. stages: that are under way or
    full. blocks: of a multiprocessor at a time.
    """

    rows: int
    warps: int
    columns: int
    stages: int
    blocks: int

    @classmethod
    def of(cls, product: FewRowsProduct, plan: Plan, chip: Chip) -> Self | None:
        """The plan for x; None where shared memory is too small for it, or x has too many rows."""
        for at_once in product.at_once if plan["columns"] else product.apart:
            made = cls(at_once, *(int(plan[name]) for name in EVERY_PLAN))
            if made.shared(product) + made.fixed <= chip.shared:
                return made
        return None

    def shared(self, product: FewRowsProduct) -> int:
        """Dynamic bytes of shared memory: stages, rows of x, and the weights of a norm."""
        of_x = (min(product.rows, self.rows) + product.norm) * (blocks(product.columns, _UNIT) * _UNIT + _STEP)
        of_row = self.columns + _STEP if self.columns else self.threads * PACK_BYTES // _HALF
        return (self.stages * _TILE * of_row + of_x) * _HALF

    @property
    def fixed(self) -> int:
        """Static bytes of shared memory: two pairs of sums of each warp, squares, and barriers."""
        sums = 2 * self.warps * self.rows * _TILE * _FLOAT
        return sums + self.rows * self.warps * _FLOAT + self.stages * _BARRIER

    def grid(self, product: FewRowsProduct, chip: Chip) -> tuple[int, int]:
        """Blocks for each part of the rows of x, as many as run at a time, and parts of the rows."""
        parts = blocks(product.rows, self.rows)
        return min(blocks(product.pairs, PAIRS), max(1, chip.multiprocessors * self.blocks // parts)), parts

    def room(self, product: FewRowsProduct, chip: Chip) -> int:
        """Blocks that a multiprocessor has registers (BLOCKS in few_rows.cuh) and shared memory for, at a time."""
        registers = blocks(16, self.warps) if self.rows == max(_APART) else max(2, 24 // self.warps)
        return min(registers, (chip.shared + RESERVED) // (self.shared(product) + self.fixed + RESERVED))

    @property
    def plan(self) -> Plan:
        """The plan that it was made of."""
        return {name: getattr(self, name) for name in EVERY_PLAN}

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        return {"ROWS": self.rows, "WARPS": self.warps, "COLUMNS": self.columns, "STAGES": self.stages}


def rule(product: FewRowsProduct, chip: Chip) -> Plan | None:
    """The plan where no table has one; None where rows aren't whole packs of 16 bytes, or x takes all shared memory."""
    if product.columns % (PACK_BYTES // _HALF):
        return None
    return _apart(product, chip) or _ring(product, chip)


def _apart(product: FewRowsProduct, chip: Chip) -> Plan | None:
    """Threads with columns of their own; None where a multiprocessor has room for one block, but for one long row.

    As many blocks as there is room for make a large product fastest. A small product of one row, as a kernel of a
    chain, has a block fewer on each multiprocessor: there the next kernel's blocks find room, and ask for their weights
    early. For the same reason one long row has one large block. Both were fastest in a step of a Llama 1B on an H200,
    in a trial of all plans that no committed run has.
    """
    for at_once in product.apart:
        is_small = at_once == 1 and blocks(product.pairs, PAIRS) <= _SMALL * chip.multiprocessors
        if is_small and product.columns * _HALF >= 2 * _WARPS * WARP * PACK_BYTES:
            large = FewRows(at_once, 2 * _WARPS, 0, 2, 1)
            if large.room(product, chip):
                return large.plan
        warps = _WARPS if product.columns * _HALF >= _WARPS * WARP * PACK_BYTES else _WARPS // 2
        fitting = FewRows(at_once, warps, 0, 2, 1).room(product, chip)
        if fitting > 1:
            return FewRows(at_once, warps, 0, 2, fitting - is_small).plan
    return None


def _ring(product: FewRowsProduct, chip: Chip) -> Plan | None:
    """A ring with room for a block of the next kernel beside it, but not too few stages, and no more than a block has.

    None where x takes all shared memory.
    """
    stages = 0
    for at_once in product.at_once:
        empty = FewRows(at_once, _WARPS, _COLUMNS, 0, 1)
        used, of_stage = empty.shared(product) + empty.fixed, _TILE * (_COLUMNS + _STEP) * _HALF + _BARRIER
        half, whole = ((room - used) // of_stage for room in ((chip.shared - RESERVED) // 2, chip.shared))
        tiles = blocks(blocks(product.pairs, PAIRS), empty.grid(product, chip)[0])
        stages = min(max(half, min(_ENOUGH, whole)), tiles * blocks(product.columns, _COLUMNS))
        if whole >= _ENOUGH:
            break
    return {"warps": _WARPS, "columns": _COLUMNS, "stages": stages, "blocks": 1} if stages > 0 else None


@dataclass(frozen=True, slots=True)
class FewRowsKernel:
    """The kernel `<op>_tuned` of an op, in <op>.cu, and how its plans are found.

    product: what a case multiplies. macros: what the kernel of a case is compiled with, beside its plan.
    """

    op: str
    product: Callable[[Case], FewRowsProduct]
    macros: Callable[[Case], dict[str, str | int]]

    @property
    def tuning(self) -> Tuning:
        """What the variant declares of its plans."""
        return Tuning(
            lambda _: EVERY_PLAN, lambda case: rule(self.product(case), Chip.current()), self._refuse, self._built
        )

    def launching(self, ctx: Context) -> Callable[..., None] | None:
        """Function that launches the kernel with its arguments; None where the case has no plan."""
        plan = ctx.plan()
        made = self._made(ctx.case, plan) if plan else None
        if made is None:
            return None
        kernel = ctx.kernel(f"{self.op}.cu", f"{self.op}_tuned", self.macros(ctx.case) | made.macros)
        product = self.product(ctx.case)
        return partial(kernel, made.grid(product, Chip.current()), made.threads, shared=made.shared(product))

    def _made(self, case: Case, plan: Plan) -> FewRows | None:
        return FewRows.of(self.product(case), plan, Chip.current())

    def _refuse(self, case: Case, plan: Plan) -> str | None:
        made = self._made(case, plan)
        if made is None:
            return "shared memory has no room for x, or x has more than 4 rows and columns is 0"
        if made.blocks > made.room(self.product(case), Chip.current()):
            return "a multiprocessor has no room for so many blocks"
        return None

    def _built(self, case: Case, plan: Plan) -> Iterator[Built]:
        made = self._made(case, plan)
        assert made
        macros, shared = self.macros(case) | made.macros, made.shared(self.product(case))
        yield Built(f"{self.op}.cu", f"{self.op}_tuned", macros, made.threads, shared)


def multiplied(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """X (M, K) times a weight (N, K), and how far off each element may be; in the type of x, float32 at least.

    A product may be rounded by a unit in the last place, and its terms are added in float32 in any order.
    """
    import torch

    (wide,) = widened(weight)
    made = x @ wide.mT
    unit, float32 = torch.finfo(weight.dtype).eps, torch.finfo(torch.float32).eps
    lengths = x.norm(dim=-1, keepdim=True) * wide.norm(dim=-1)
    return made, made.abs() * unit + lengths * (x.shape[-1] ** 0.5 * float32)


def normalised_product(x: torch.Tensor, gamma: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm(x) times a weight, and how far off each element may be, as `multiplied` has them.

    Each normalised element is rounded, so each term has an error of its own: together twice the root of the terms'
    squares, in units in the last place.
    """
    import torch

    normalised = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * gamma
    made, allowed = multiplied(normalised, weight)
    (wide,) = widened(weight)
    terms = (normalised.square() @ wide.square().mT).sqrt()
    return made, allowed + 2 * torch.finfo(weight.dtype).eps * terms
