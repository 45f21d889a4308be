"""How the sums of bn_add_relu_grad cut a tensor among blocks. Twin of kernels/batch_norm/bn_add_relu_grad_sums.cuh."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness import cuda
from harness.collection.ops.batch_norm import _whole
from harness.collection.ops.batch_norm._batch_norm import LIMIT_32, MOST_SLOTS, ImageSizes
from harness.collection.ops.elementwise import BLOCK, PACK_BYTES, blocks
from harness.model import Case
from harness.ops import ITEMSIZE, Plan, Tuning

_NARROW = 16  # packs of a tile at most, where rows are short and a period has twice as many packs
_RESIDENT = 4  # blocks of a multiprocessor at a time


@dataclass(frozen=True, slots=True)
class GradCut:
    """The tensor as the sums' kernels cut it: periods of tiles, a block for one tile of `rounds * along` periods.

    pack: elements of 16 bytes. period: its elements, whole packs and whole outer places. places: tiles of a period, of
    which the last one may be narrower. across: packs of a tile. along: threads that share the packs at one place of
    the tile; each of them takes `rounds` periods.
    """

    sizes: ImageSizes
    pack: int
    period: int
    places: int
    across: int
    along: int
    rounds: int

    @classmethod
    def of(cls, sizes: ImageSizes, pack: int, rounds: int = 0) -> GradCut | None:
        """The cut of a tensor; None where even the shortest period is too long for 32-bit indexes.

        rounds: of a thread; 0 where the rule says how many.
        """
        inner, unit = max(1, sizes.inner), max(1, sizes.channels * sizes.inner)
        unit = math.lcm(unit, pack) // pack
        # A tile has a multiple of `step` packs: rows shorter than a pack must not lie in two tiles.
        short = inner < pack
        step = math.lcm(inner, pack) // pack if short else 1
        narrow = short and unit >= 2 * _NARROW
        most = (_NARROW if narrow else BLOCK) // step * step
        packs = unit if unit > most else most // unit * unit
        places = blocks(packs, most)
        across = blocks(blocks(packs, places), step) * step
        along = BLOCK // across if narrow else 1
        if packs * pack >= LIMIT_32:
            return None
        # Twice as many rounds as waves: more rounds leave fewer slots, more waves a shorter last one.
        tiles = blocks(sizes.elements, packs * pack * along) * places
        waves = tiles // (cuda.multiprocessors() * _RESIDENT)  # if blocks had a round each
        return cls(sizes, pack, packs * pack, places, across, along, rounds or max(1, math.isqrt(2 * waves)))

    @property
    def all_rounds(self) -> int:
        """Periods of the tensor."""
        return blocks(self.sizes.elements, self.period)

    @property
    def segments(self) -> int:
        """Groups of `rounds * along` periods, each of which has blocks of its own."""
        return blocks(self.all_rounds, self.rounds * self.along)

    @property
    def tile(self) -> int:
        """Elements of a tile."""
        return self.across * self.pack

    @property
    def short(self) -> bool:
        """Whether rows are shorter than a pack."""
        return self.sizes.inner < self.pack

    @property
    def slots(self) -> int:
        """The most tiles that a row lies in; rows that begin elsewhere in a tile lie in one tile less."""
        inner, tile = self.sizes.inner, self.tile
        if self.places == 1 or inner % tile == 0 or tile % inner == 0:
            return -(-inner // tile)
        return (inner - 2) // tile + 2

    @property
    def count(self) -> int:
        """Partial sums of a channel."""
        if self.short and self.places == 1:
            return self.segments
        outers = self.period // max(1, self.sizes.channels * self.sizes.inner)
        return self.segments * outers * self.slots

    @property
    def lanes(self) -> int:
        """Threads that add a channel of a tile together, or a row: a power of two up to a warp."""
        together = -(-self.tile // max(1, self.sizes.inner)) + 1
        if self.short and self.places == 1:
            together = self.sizes.channels
        return 1 << (min(32, max(1, BLOCK // max(1, together))).bit_length() - 1)


WHOLE = _whole.WholeKernel(
    "bn_add_relu_grad_whole.cu",
    "bn_whole_grad",
    packs=("dy", "x", "dx", "dz"),
    arguments=("dy", "x", "mask", "gamma", "mean", "invstd", "dx", "dz", "dgamma", "dbeta"),
)
"""The kernel of small layers."""


def _refuse(case: Case, plan: Plan) -> str | None:
    """Why a tensor can't be cut so: there would be too many sums, or there is no cut."""
    sizes, rounds, cluster = ImageSizes.of_case(case), int(plan["turns"]), int(plan["whole"])
    if cluster:
        return "one kernel has no turns" if rounds else _whole.refusal(case, cluster)
    if not rounds:
        return None
    cut = GradCut.of(sizes, PACK_BYTES // ITEMSIZE[case.dtype], rounds)
    if cut is None or (cut.rounds > 1 and cut.rounds * cut.along >= 2 * cut.all_rounds):
        return "a thread hasn't so many turns"
    return f"a channel has more than {MOST_SLOTS} partial sums" if cut.count > MOST_SLOTS else None


def _rule(case: Case) -> Plan:
    return {"turns": 0, "whole": _whole.rule_of_case(case)}


TUNING = Tuning(_whole.parameters, _rule, _refuse, WHOLE.kernels)
"""What `tuned` of bn_add_relu_grad declares.

turns: the periods of a thread that adds up; 0 where the rule says how many. whole: blocks that own a group of channels,
where one kernel makes all of a layer; 0 where three kernels do.
"""
