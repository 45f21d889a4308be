"""How one kernel makes a small layer of bn_add_relu, of its backward, of prelu_grad. Twin of bn_whole.cuh.

A block, or a cluster of blocks, owns a group of neighbouring channels, and keeps two tensors of them in registers. So
a layer has such a plan if groups are whole packs of 16 bytes and whole bytes of the mask, and threads have room.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Self

from harness import cuda
from harness.collection.ops.batch_norm._batch_norm import LIMIT_32, TURNS, ImageSizes, image_shape
from harness.collection.ops.chip import MOST_BLOCKS, WARP
from harness.collection.ops.elementwise import CUDA_TYPE, PACK_BYTES, aligned, blocks
from harness.model import Case
from harness.ops import ITEMSIZE, Built, Context, Launch, Plan, Symbols, Tensors

CLUSTERS = (1, 2, 4, MOST_BLOCKS)
"""How many blocks may own a group together."""
REGISTERS = {1: 64, 2: 80, 4: 104, 8: 128}
"""The most registers of a thread of the kernels, by the packs of each tensor that it keeps."""
_ALL_REGISTERS = 65_536  # of a multiprocessor, on every architecture from sm_80 to sm_120
_BYTE = 8  # elements of a byte of the mask
_SECTOR = 32  # bytes that memory gives at least
_MOST_THREADS = 512
# Packs of each tensor that a thread keeps, and the threads that a block then has at most. All loads are under way at
# once in any case; few warps meet sooner than many.
_KEPT = ((1, 256), (2, 256), (4, 256), (4, _MOST_THREADS), (8, 256), (8, _MOST_THREADS))
# An estimate: blocks of a cluster meet in the time in which a multiprocessor reads so many bytes, times 2 for two of
# them, 3 for four, 4 for eight.
_MEETING = 16 * 1024
_MOST_WAVES, _MOST_TRIED = 2, 4  # of blocks, by the rule and by a search


class _Cut(ctypes.Structure):
    """How a launch cuts the tensor. Twin of Cut."""

    _fields_ = (
        ("share", ctypes.c_double),
        ("unbiased", ctypes.c_double),
        ("across", cuda.Divisor),
        ("rows", cuda.Divisor),
        ("samples", ctypes.c_uint32),
        ("sample", ctypes.c_uint32),
        ("group", ctypes.c_uint32),
        ("split", ctypes.c_uint32),
        ("seen", ctypes.c_uint32 * 3),
    )


@dataclass(frozen=True, slots=True)
class Whole:
    """The layer as the kernel cuts it: `cluster` blocks of `threads` for each group of `group` channels.

    per_pack: elements of 16 bytes. kept: packs of each of two tensors that a thread keeps at most.
    """

    sizes: ImageSizes
    per_pack: int
    group: int
    cluster: int
    threads: int
    kept: int

    @classmethod
    def of(cls, sizes: ImageSizes, per_pack: int, cluster: int) -> Self | None:
        """The cut with so many blocks for a group; None where no group fits, or some blocks would have no packs."""
        for group in _groups(sizes, per_pack):
            alone = cls(sizes, per_pack, group, cluster, 0, 0)
            every = [alone._keeping(kept, most) for kept, most in _KEPT]
            found = [cut for cut in every if cut and cut._all_have_packs()]
            if found:
                return min(found, key=lambda cut: cut.waves)
        return None

    @classmethod
    def of_case(cls, case: Case, cluster: int) -> Self | None:
        """The same of a case."""
        return cls.of(ImageSizes.of_case(case), PACK_BYTES // ITEMSIZE[case.dtype], cluster)

    @property
    def across(self) -> int:
        """Packs of a group in a sample."""
        return self.group * self.sizes.inner // self.per_pack

    @property
    def packs(self) -> int:
        """Packs of a group."""
        return self.sizes.outer * self.across

    @property
    def groups(self) -> int:
        """Groups of the layer."""
        return self.sizes.channels // self.group

    @property
    def form(self) -> str:
        """How the kernel's name ends: for a group of one channel, of few channels in rows, or of many that are last."""
        return "one" if self.group == 1 else "many" if self.sizes.inner == 1 else "few"

    def macros(self, dtype: str) -> dict[str, str | int]:
        """What the kernel is compiled with."""
        return {"SCALAR": CUDA_TYPE[dtype], "WHOLE": self.kept}

    @property
    def waves(self) -> int:
        """How often the device fills with blocks."""
        resident = min(
            _ALL_REGISTERS // (self.threads * REGISTERS[self.kept]),
            cuda.resident_threads() // cuda.multiprocessors() // self.threads,
        )
        return blocks(self.groups * self.cluster, resident * cuda.multiprocessors())

    @property
    def cost(self) -> int:
        """The bytes that the busiest multiprocessor reads, and bytes for the time in which a cluster meets.

        Memory gives 32 bytes at least, so packs that lie alone are read with a neighbour.
        """
        on_one = blocks(self.groups * self.cluster, cuda.multiprocessors())
        read = 2 * (_SECTOR if self.across == 1 else PACK_BYTES) * blocks(self.packs, self.cluster)
        return on_one * read + (_MEETING * self.cluster.bit_length() if self.cluster > 1 else 0)

    def _keeping(self, kept: int, most: int) -> Self | None:
        """The same with so many packs a thread; None where a block would have more than `most` threads.

        Threads of a block are whole warps. Where a warp adds up a channel, there is one for each.
        """
        if self.group == 1:
            packs = blocks(self.packs, self.cluster * kept)
        else:
            packs = blocks(self.sizes.outer, self.cluster * kept) * self.across
        warps = max(blocks(packs, WARP), 1 if self.sizes.inner == 1 else self.group)
        return replace(self, threads=warps * WARP, kept=kept) if warps * WARP <= most else None

    def _all_have_packs(self) -> bool:
        """Whether each block has packs."""
        others = self.cluster - 1
        if self.group == 1:
            return others * self.threads < self.packs
        return others * (self.threads // self.across) < self.sizes.outer

    def cut(self) -> _Cut:
        """The argument that tells the kernel of it."""
        sizes, sample = self.sizes, self.sizes.channels * self.sizes.inner
        seen = (sizes.outer * sixths // 6 * sample + sizes.inner * sixths // 6 for sixths in (1, 3, 5))
        return _Cut(
            share=1 / sizes.samples,
            unbiased=sizes.samples / max(1, sizes.samples - 1),
            across=cuda.Divisor.of(self.across),
            rows=cuda.Divisor.of(sizes.inner),
            samples=sizes.outer,
            sample=sample,
            group=self.group,
            split=self.cluster.bit_length() - 1,
            seen=(ctypes.c_uint32 * 3)(*seen),
        )


def _groups(sizes: ImageSizes, per_pack: int) -> list[int]:
    """How many channels a group may have, which are whole packs and whole bytes of the mask; the best first.

    Where channels are last, that is a sector of them.
    """
    if not 0 < sizes.elements < LIMIT_32:
        return []
    if sizes.inner == 1:
        return [width for width in dict.fromkeys((2 * per_pack, _BYTE)) if sizes.channels % width == 0]
    group = _BYTE // math.gcd(_BYTE, sizes.inner)
    across = group * sizes.inner // per_pack
    fits = sizes.inner >= per_pack and (group == 1 or across <= _MOST_THREADS)
    return [group] if fits and sizes.channels % group == 0 else []


def rule(sizes: ImageSizes, per_pack: int) -> int:
    """How many blocks own a group together where no table says so; 0 where the three kernels make the layer.

    Launches and waits for memory are most of the time of a small layer. With more waves of blocks there are more waits:
    in a wave all blocks ask for memory first and write last, while the three kernels keep memory busy.
    """
    cuts = [cut for size in _clusters() if (cut := Whole.of(sizes, per_pack, size)) and cut.waves <= _MOST_WAVES]
    return min(cuts, key=lambda cut: (cut.waves, cut.cost)).cluster if cuts else 0


def rule_of_case(case: Case) -> int:
    """The same of a case."""
    return rule(ImageSizes.of_case(case), PACK_BYTES // ITEMSIZE[case.dtype])


def is_ruled(symbols: Symbols, itemsize: int) -> bool:
    """Whether one kernel makes the layer by the rule, for the traffic of a case; False without a GPU."""
    import torch

    sizes = ImageSizes(*image_shape(symbols))
    return torch.cuda.is_available() and rule(sizes, PACK_BYTES // itemsize) > 0


def parameters(_: Case) -> dict[str, tuple[int, ...]]:
    """What a search may vary: the turns of the kernels for sums, or how many blocks own a group together."""
    return {"turns": (0, *TURNS), "whole": (0, *CLUSTERS)}


def _clusters() -> tuple[int, ...]:
    return CLUSTERS if cuda.has_clusters() else CLUSTERS[:1]


def refusal(case: Case, cluster: int) -> str | None:
    """Why so many blocks can't own a group together, or needn't be tried."""
    if cluster not in _clusters():
        return "clusters of blocks came with compute capability 9.0"
    cut = Whole.of_case(case, cluster)
    if cut is None:
        return "no kernel has groups of channels for such blocks"
    return f"blocks come in more than {_MOST_TRIED} waves" if cut.waves > _MOST_TRIED else None


@dataclass(frozen=True, slots=True)
class WholeKernel:
    """The kernel of an op that makes a small layer.

    file: its source. entry: how its names begin. packs: the tensors that it reads or writes in packs. arguments: all
    tensors in its order.
    """

    file: str
    entry: str
    packs: tuple[str, ...]
    arguments: tuple[str, ...]

    def built(self, case: Case, cluster: int) -> Built:
        """What is compiled."""
        cut = Whole.of_case(case, cluster)
        assert cut
        return Built(self.file, f"{self.entry}_{cut.form}", cut.macros(case.dtype), cut.threads, cluster=cluster)

    def kernels(self, case: Case, plan: Plan) -> Iterator[Built]:
        """The kernel, if the plan has it; the kernels for sums aren't compiled for a number of turns."""
        if plan["whole"]:
            yield self.built(case, int(plan["whole"]))

    def launch_of(self, ctx: Context, cluster: int, otherwise: Callable[[Tensors], object]) -> Launch:
        """The launch; `otherwise` runs where a tensor of packs doesn't begin on 16 bytes."""
        cut, built = Whole.of_case(ctx.case, cluster), self.built(ctx.case, cluster)
        assert cut
        kernel = ctx.kernel(self.file, built.entry, built.macros)
        packs, arguments = attrgetter(*self.packs), attrgetter(*self.arguments)
        grid, together, told = cut.groups * cluster, cluster if cluster > 1 else None, cut.cut()

        def launch(t: Tensors) -> None:
            if aligned(*packs(t)):
                kernel(grid, cut.threads, *arguments(t), told, cluster=together)
            else:
                otherwise(t)

        return launch
