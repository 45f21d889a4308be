"""Which plan our product in int8 takes, and its launch. Twin of int8_tiles.cuh and int8_few.cuh.

The parameters of a plan:
tile: rows and columns of y that a block makes ('128x128'). Where x has few rows, the columns that a block makes for all
    of them ('few16').
warps: of a block.
depth: bytes of a row that a stage has, or that a warp of `few` has under way.
stages: parts of both operands that shared memory has; `few` has 1.
blocks: of a multiprocessor, for which the compiler saves registers.
split: blocks of a cluster, which share the columns of x.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from harness.collection.ops.chip import MOST_BLOCKS, RESERVED, WARP, Chip
from harness.collection.ops.elementwise import LIMIT_32, PACK_BYTES, aligned, blocks, power_of_2_from
from harness.model import Case, Value
from harness.ops import Built, Context, Launch, Plan, Tensors, Tuning

_FILE = "int8_linear.cu"
_COPIES = (16, 8, 4)  # bytes that a copy may have, where rows begin at multiples of them
_WARPS: dict[str, tuple[tuple[int, int], ...]] = {
    "32x64": ((2, 2),),
    "32x128": ((1, 4),),
    "64x64": ((2, 2),),
    "64x128": ((2, 2), (2, 4)),
    "128x64": ((4, 1), (4, 2)),
    "128x128": ((2, 2), (2, 4)),
    "128x256": ((2, 4),),
    "256x128": ((4, 2),),
}
"""Warps of a block down and across, by tile."""
_NAMES = ("tile", "warps", "depth", "stages", "blocks", "split")
_RAGGED: Plan = {"tile": "64x64", "warps": 4, "depth": 64, "stages": 2, "blocks": 3, "split": 1}
"""Where rows begin at any byte, what is on its way lies in registers: one tile leaves room for it everywhere."""
_FEW = {"few16": 1, "few32": 2}
"""Tiles of 16 rows of the weight, of a block for few rows of x."""
_MOST_FEW, _RULED_FEW = 32, 16  # rows of x: that `few` can take, and that it takes without a table
_EIGHT, _SIXTEEN = 8, 16
_STATIC_SHARED = 48 * 1024  # bytes that a block may have without asking for more
_REGISTERS = 65_536  # of a multiprocessor
_CHUNKS = 64  # registers of a thread for chunks of a part; the next part has another 64
_STEP = 64  # bytes of a row that four lanes load
_UNDER_WAY = 32 * 1024  # bytes of a multiprocessor, the fewest that keep memory busy
_SMALLEST = "32x64"

# What the rule counts with, in cycles of a multiprocessor. An A100 makes 2048 multiply-adds of int8 a cycle. The L2
# gives each multiprocessor 32 bytes a cycle, and a block waits 1500 cycles for memory in all: both roughly.
_PRODUCTS, _BYTES, _WAIT = 2048, 32, 1500
# (tile, warps, depth, stages, blocks) that the rule chooses from: larger ones read less, smaller ones fill more
# multiprocessors.
_RULED = (
    ("128x256", 8, 64, 4, 1),
    ("128x128", 4, 64, 4, 2),
    ("128x128", 4, 64, 3, 2),
    ("64x128", 4, 64, 4, 3),
    ("64x64", 4, 128, 4, 3),
    ("64x64", 4, 64, 4, 3),
    ("32x64", 4, 128, 4, 4),
    ("32x64", 4, 64, 4, 4),
)


def obstacle(case: Case) -> str | None:
    """Why our product can't be made; None if it can."""
    s = case.symbols
    down, across = _sizes(_SMALLEST)
    if s["K"] < LIMIT_32 and blocks(s["M"], down) * blocks(s["N"], across) < LIMIT_32:
        return None
    return "counts columns and tiles in 32 bits: for fewer than 2^31 columns of x, and 2^42 elements of y"


def copy_bytes(columns: int) -> int:
    """The widest copy for rows of so many bytes; 1 where rows begin at any byte."""
    return next((width for width in _COPIES if columns % width == 0), 1)


@dataclass(frozen=True, slots=True)
class Int8Plan:
    """A plan as a launch needs it. copy: bytes of an access. whole: whether rows of y are whole packs. rows: of x."""

    plan: Plan
    copy: int
    whole: bool
    rows: int

    @property
    def few(self) -> int:
        """Tiles of 16 rows of the weight, of a block for few rows of x; 0 for tiles of y."""
        return _FEW.get(str(self.plan["tile"]), 0)

    def number(self, name: str) -> int:
        """A parameter of the plan."""
        return int(self.plan[name])

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of y that a block makes."""
        return (max(1, self.rows), _SIXTEEN * self.few) if self.few else _sizes(str(self.plan["tile"]))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.number("warps")

    @property
    def padded(self) -> int:
        """Rows of x as `few` has them: the products of a warp have eight."""
        return _EIGHT * blocks(max(1, self.rows), _EIGHT)

    @property
    def static(self) -> int:
        """Bytes of shared memory that `few` declares: the sums of each warp."""
        return 4 * self.number("warps") * self.padded * (self.tile[1] + 4)

    def shared(self, whole: bool) -> int:
        """Dynamic bytes of a block: its stages, or the sums that blocks share. whole: y is stored in packs."""
        if self.few:
            return 0
        down, across = self.tile
        staged = self.number("stages") * (down + across) * self.number("depth")
        if self.number("split") > 1:
            return max(staged, 4 * down * (across + 4))
        of_warp = _SIXTEEN * (2 * across // _grid(self.plan)[1] + PACK_BYTES)
        return staged + (0 if whole else self.number("warps") * of_warp)

    def built(self, scales: dict[str, str | int]) -> Built:
        """The kernel. scales: the macros of a case's scales."""
        macros: dict[str, str | int] = {
            "COPY": self.copy,
            "SPLIT": self.number("split"),
            **scales,
        }
        if self.few:
            macros |= {"ROWS": self.padded, "TILES": self.few, "STEPS": self.number("depth") // _STEP}
            macros["WARPS"] = self.number("warps")
            return Built(_FILE, "int8_linear_few", macros, self.threads, 0, self.number("split"))
        (down, across), (tile_m, tile_n) = _grid(self.plan), self.tile
        macros |= {"TILE_M": tile_m, "TILE_N": tile_n, "WARPS_M": down, "WARPS_N": across}
        macros |= {"DEPTH": self.number("depth"), "STAGES": self.number("stages"), "BLOCKS": self.number("blocks")}
        return Built(_FILE, "int8_linear_tiles", macros, self.threads, self.shared(self.whole), self.number("split"))


def scales(case: Case) -> dict[str, str | int]:
    """The macros that say which scales a case has."""
    chosen = dict(case.choices)["scales"]
    return {"PER_CHANNEL": int(chosen != "tensor"), "PER_ROW": int(chosen == "token")}


def _sizes(tile: str) -> tuple[int, int]:
    down, across = tile.split("x")
    return int(down), int(across)


def _grid(plan: Plan) -> tuple[int, int]:
    """Warps of a block of tiles, down and across; (0, 0) if the tile can't have so many."""
    each = _WARPS[str(plan["tile"])]
    return next(((down, across) for down, across in each if down * across == plan["warps"]), (0, 0))


# ---- What can be searched.


def _parameters(case: Case) -> Mapping[str, Sequence[Value]]:
    few = _FEW if case.symbols["M"] <= _MOST_FEW else ()
    splits = [1 << power for power in range(MOST_BLOCKS.bit_length())] if Chip.current().clusters else [1]
    return {
        "tile": (*few, *_WARPS),
        "warps": (4, 8, 16),
        "depth": (64, 128, 256),
        "stages": (1, 2, 3, 4, 5, 6),
        "blocks": (1, 2, 3, 4),
        "split": tuple(splits),
    }


def _refuse(case: Case, plan: Plan) -> str | None:
    """Why a plan can't be launched, or isn't worth it; None if it may be."""
    if plan == _rule(case):
        return None
    if copy_bytes(case.symbols["K"]) == 1 and plan["tile"] not in _FEW:
        return "rows that begin at any byte have one plan"
    made, chip = _made(case, plan), Chip.current()
    split = made.number("split")
    if split > 1 and split * _blocks_of(case, made) > 2 * chip.multiprocessors:
        return "there are blocks enough without clusters that share sums"
    if made.number("depth") * split > power_of_2_from(case.symbols["K"]):
        return "x has fewer columns"
    return _refuse_few(made) if made.few else _refuse_tiles(made, chip)


def _refuse_few(made: Int8Plan) -> str | None:
    if (made.number("stages"), made.number("blocks")) != (1, 1) or made.number("depth") == _STEP:
        return "few rows have one stage, one number of blocks, and 128 or 256 bytes of a row"
    if made.static > _STATIC_SHARED:
        return f"sums take {made.static} bytes, a block has {_STATIC_SHARED}"
    kept = made.number("depth") // _STEP * 4 * (2 * made.few + made.padded // _EIGHT)
    most = _CHUNKS // (1 + (made.copy == 1))
    return f"a thread's chunks take more than {most} registers" if kept > most else None


def _refuse_tiles(made: Int8Plan, chip: Chip) -> str | None:
    if _grid(made.plan) == (0, 0) or made.number("stages") == 1 or made.number("depth") > 128:
        return "a tile has warps of its own, two stages or more, and 64 or 128 bytes of a row in each"
    down, across = made.tile
    if down >= 4 * max(made.rows, _SIXTEEN):
        return "most of a tile's rows would be empty"
    if min(down, across) % (made.threads * PACK_BYTES // made.number("depth")):
        return "threads would have unequal parts of a copy"
    if narrow := _room(made, chip):
        return narrow
    if made.number("blocks") * (made.number("stages") - 1) * (down + across) * made.number("depth") < _UNDER_WAY:
        return f"fewer than {_UNDER_WAY} bytes would be under way"
    sums = down * across // made.threads
    left = _REGISTERS // (made.number("blocks") * made.threads)
    return "too few registers for sums" if left < sums + 32 or left > 3 * (sums + 48) else None


def _kernels(case: Case, plan: Plan) -> Iterator[Built]:
    yield _made(case, plan).built(scales(case))


def _alike(case: Case) -> object:
    """Sizes whose rows are copied and stored alike, and for `few` have equally many products."""
    s = case.symbols
    return copy_bytes(s["K"]), s["N"] % (PACK_BYTES // 2) == 0, s["M"] <= _RULED_FEW


def _rule(case: Case) -> Plan | None:
    s = case.symbols
    return _ruled(s["M"], s["N"], s["K"], Chip.current()) if s["M"] and s["N"] else None


TUNING = Tuning(_parameters, _rule, _refuse, _kernels, _alike)


def _made(case: Case, plan: Plan) -> Int8Plan:
    s = case.symbols
    return Int8Plan(plan, copy_bytes(s["K"]), s["N"] % (PACK_BYTES // 2) == 0, s["M"])


def _blocks_of(case: Case, made: Int8Plan) -> int:
    """Blocks without a split."""
    down, across = made.tile
    return blocks(case.symbols["M"], down) * blocks(case.symbols["N"], across)


# ---- The rule.


@lru_cache(maxsize=1024)
def _ruled(rows: int, columns: int, depth: int, chip: Chip) -> Plan:
    ragged = copy_bytes(depth) == 1
    if rows <= _RULED_FEW:
        return _ruled_few(columns, depth, chip, ragged)
    if ragged:
        return _RAGGED
    splits = (1, 2, 4, 8) if chip.clusters else (1,)
    plans: list[dict[str, Value]] = [
        dict(zip(_NAMES, (*each, split), strict=True)) for each in _RULED for split in splits
    ]
    fits = [Int8Plan(plan, PACK_BYTES, whole=True, rows=rows) for plan in plans]
    fits = [made for made in fits if _room(made, chip) is None]
    return min(fits, key=lambda made: _cycles(made, columns, depth, chip.multiprocessors)).plan


def _ruled_few(columns: int, depth: int, chip: Chip, ragged: bool) -> Plan:
    """Blocks of 32 columns of y if they fill the device, else of 16, else clusters that share the columns of x."""
    many = blocks(columns, 2 * _SIXTEEN) >= chip.multiprocessors
    taken = 128 if many or ragged or depth < 8 * 256 else 256  # twice as many chunks would need too many registers
    warps = 8 if depth > 4 * taken else 4
    here, split = blocks(columns, _SIXTEEN * (1 + many)), 1
    while chip.clusters and split < MOST_BLOCKS and 2 * split * here <= chip.multiprocessors:
        if 2 * split * warps * taken > depth:
            break
        split *= 2
    tile = "few32" if many else "few16"
    return {"tile": tile, "warps": warps, "depth": taken, "stages": 1, "blocks": 1, "split": split}


def _room(made: Int8Plan, chip: Chip) -> str | None:
    """Why the blocks have too little shared memory; None if they have enough, also where y is at any address."""
    needed = made.shared(whole=False)
    if needed > chip.shared:
        return f"a block takes {needed} bytes of shared memory, and has {chip.shared}"
    together = made.number("blocks") * (made.shared(made.whole) + RESERVED)
    return "the blocks of a multiprocessor have too little shared memory" if together > chip.shared + RESERVED else None


def _cycles(made: Int8Plan, columns: int, depth: int, multiprocessors: int) -> float:
    """Roughly, what a product takes. A multiprocessor's blocks share its units, and wait at the same time."""
    (down, across), split, each = made.tile, made.number("split"), made.number("blocks")
    own = blocks(blocks(depth, made.number("depth")), split) * made.number("depth")  # columns of x
    moved = (down + across) * own + 2 * down * across // split + (8 * down * across if split > 1 else 0)
    needed = max(down * across * own / _PRODUCTS, moved / _BYTES)
    waves, last = divmod(blocks(made.rows, down) * blocks(columns, across) * split, multiprocessors * each)
    return waves * (_WAIT + each * needed) + (_WAIT + blocks(last, multiprocessors) * needed if last else 0)


# ---- The launch.


def launch(ctx: Context) -> Launch:
    """The product by the plan of the case; where x or the weight is at another address, by copies of single bytes."""
    s, plan = ctx.s, ctx.plan()
    if plan is None:
        return lambda _: None
    made = _made(ctx.case, plan)
    of_bytes = _few_of_bytes(plan) if made.few else _RAGGED
    ways = {1: Int8Plan(of_bytes, 1, made.whole, s.M), made.copy: made}
    run = {copy: _run(ctx, each) for copy, each in ways.items()}

    def product(t: Tensors) -> None:
        fits = not any(tensor.data_ptr() % made.copy for tensor in (t.x, t.weight))
        run[made.copy if fits else 1](t)

    return product


def _few_of_bytes(plan: Plan) -> Plan:
    """The plan with registers enough: a chunk takes more of them where rows begin at any byte."""
    return {**plan, "warps": min(8, int(plan["warps"])), "depth": 128}


def _run(ctx: Context, made: Int8Plan) -> Launch:
    """Launches of a plan's kernel."""
    s, built = ctx.s, made.built(scales(ctx.case))
    kernel = ctx.kernel(built.file, built.entry, built.macros)
    down, across = blocks(s.M, made.tile[0]), blocks(s.N, made.tile[1])
    sizes = [ctypes.c_int64(s.M), ctypes.c_int64(s.N), ctypes.c_uint32(s.K)]
    cluster = built.cluster if built.cluster > 1 else None
    grid = down * across * built.cluster
    if not made.few:
        sizes += [ctypes.c_uint32(down), ctypes.c_uint32(across)]
        resident = Chip.current().multiprocessors * made.number("blocks")
        grid = grid if cluster else min(grid, resident)

    def run(t: Tensors) -> None:
        whole = made.whole and aligned(t.y)
        last = [] if made.few else [ctypes.c_int32(whole)]
        operands = (t.x, t.weight, t.x_scale, t.weight_scale, t.y)
        kernel(grid, built.threads, *operands, *sizes, *last, shared=made.shared(whole), cluster=cluster)

    return run
