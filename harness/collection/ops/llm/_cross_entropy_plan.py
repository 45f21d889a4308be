"""The plans of cross_entropy/tuned, whose threads read rows and keep nothing of them. Twin of cross_entropy.cu.

threads: of a block. units: packs of 16 bytes that a thread has under way. resident: threads that a multiprocessor is to
hold, which limits the registers of a thread. cluster: blocks that share a row. Of short rows a block has several: lanes
of a warp share each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness import cuda
from harness.collection.ops.chip import MOST_BLOCKS, WARP
from harness.collection.ops.elementwise import CUDA_TYPE, PACK_BYTES, blocks, power_of_2_from
from harness.model import Case, Value
from harness.ops import ITEMSIZE, Built, Plan, Tuning

_EVERY_THREADS, _EVERY_UNITS, _EVERY_CLUSTER = (64, 128, 256, 512, 1024), (1, 2, 3, 4, 6, 8), (1, 2, 4, MOST_BLOCKS)
_FEWER_RESIDENT = (1024, 1536)  # besides all that a multiprocessor has room for: threads with more registers
_FEWEST_THREADS, _MOST_THREADS, _UNITS = 64, 512, 4  # of the rule
_SHORT, _HALF_WARP, _SHORT_THREADS = 128, 32, 128  # packs of a row for a warp, for half of one; threads of its block
_FEWEST_PACKS = 256  # of a row for each of several blocks that share it, by the rule
_MOST_COLUMNS, _GRID = 2**31 - 1, 2**31 - 1


def _packs(case: Case) -> int:
    """Packs that a row has at most."""
    return case.symbols["V"] * ITEMSIZE[case.dtype] // PACK_BYTES


def lanes_of(case: Case) -> int:
    """Lanes of a warp that share a short row; 0 for a row that a block or a cluster has."""
    packs = _packs(case)
    return 0 if packs > _SHORT else WARP if packs > _HALF_WARP else WARP // 2


def _room() -> int:
    """Threads that a multiprocessor has room for."""
    return cuda.resident_threads() // cuda.multiprocessors()


def _clusters(case: Case) -> list[int]:
    """How many blocks may share a row: each one has a warp's packs of it."""
    has_several = cuda.has_clusters() and not lanes_of(case)
    return [size for size in _EVERY_CLUSTER if size == 1 or (has_several and size * WARP <= _packs(case))]


def _parameters(case: Case) -> dict[str, Sequence[Value]]:
    return {
        "threads": _EVERY_THREADS,
        "units": _EVERY_UNITS,
        "resident": sorted({_room(), *(threads for threads in _FEWER_RESIDENT if threads < _room())}),
        "cluster": _clusters(case),
    }


def _rule(case: Case) -> Plan | None:
    """The plan where no table has one; None where 32 bits are too few for the sizes.

    Multiprocessors are filled with threads. Few rows are shared by clusters, as long as all blocks have at most half of
    the threads that run at a time: 128 rows of 128256 were faster by half of the threads than by all, on an H200, in a
    trial that no committed run has.
    """
    rows, packs = case.symbols["M"], _packs(case)
    half = cuda.resident_threads() // _MOST_THREADS // 2  # blocks
    wide = [size for size in _clusters(case) if rows * size <= half and size * _FEWEST_PACKS <= packs]
    cluster = max(wide, default=1)
    share = blocks(packs, cluster)
    wanted = max(_FEWEST_THREADS, min(_MOST_THREADS, power_of_2_from(blocks(share, _UNITS))))
    lanes = lanes_of(case)
    threads = _SHORT_THREADS if lanes else wanted
    units = max(1, min(_UNITS, blocks(share, lanes or threads)))
    plan = {"threads": threads, "units": units, "resident": _room(), "cluster": cluster}
    return None if _too_large(case, plan) else plan


def _too_large(case: Case, plan: Plan) -> str | None:
    if case.symbols["V"] > _MOST_COLUMNS:
        return f"the kernel takes rows of {_MOST_COLUMNS} columns at most"
    return "a grid has fewer blocks" if case.symbols["M"] * int(plan["cluster"]) > _GRID else None


def _refuse(case: Case, plan: Plan) -> str | None:
    """Why a plan can't be taken, or would only leave threads without work."""
    threads, units, resident, cluster = (int(plan[name]) for name in ("threads", "units", "resident", "cluster"))
    share, lanes = blocks(_packs(case), cluster), lanes_of(case)
    if resident % threads:
        return f"blocks of {threads} threads don't fill {resident}"
    if lanes and threads > _MOST_THREADS:
        return f"blocks of short rows have {_MOST_THREADS} threads at most"
    across = lanes or threads
    if across > max(_FEWEST_THREADS, power_of_2_from(share)) or (units > 1 and (units - 1) * across >= share):
        return "some threads would have nothing to do"
    return _too_large(case, plan)


def macros(case: Case, plan: Plan) -> dict[str, str | int]:
    """Macros that the kernel is compiled with."""
    of_threads = {name.upper(): int(plan[name]) for name in ("threads", "units", "resident")}
    return {**of_threads, "CLUSTER": int(int(plan["cluster"]) > 1), "LANES": lanes_of(case)}


def grid(case: Case, plan: Plan) -> int:
    """Blocks of a launch."""
    rows, lanes = case.symbols["M"], lanes_of(case)
    return blocks(rows * lanes, int(plan["threads"])) if lanes else rows * int(plan["cluster"])


def _kernels(case: Case, plan: Plan) -> Iterator[Built]:
    own = {"SCALAR": CUDA_TYPE[case.dtype], **macros(case, plan)}
    threads, cluster = int(plan["threads"]), int(plan["cluster"])
    yield Built("cross_entropy.cu", "cross_entropy_tuned", own, threads, cluster=cluster)


TUNING = Tuning(_parameters, _rule, _refuse, _kernels)
"""What the variant declares."""
