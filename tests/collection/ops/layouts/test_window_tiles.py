"""Tiles of windows in shared memory: how images are cut into them, and what a block of window_tiles.cuh does."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.collection.ops.layouts import _windows as windows
from harness.collection.ops.layouts._windows import WindowTiles
from tests.one_test import one_test
from tests.rare import rare

Ints = Any  # an array of integers

# B, H, W, C, window, shift.
LONG_ROWS = 64  # packs, as window_tiles.cuh has it
SHAPES = [
    (1, 14, 56, 97, 7, 3),
    (1, 14, 56, 49, 7, 3),
    (1, 56, 56, 3, 7, 3),  # several rows of windows a tile; in the last tile fewer
    (3, 14, 14, 3, 7, 0),
    (9, 14, 7, 3, 7, 10),  # a tile has several images
    (3, 21, 14, 3, 7, 1),  # pieces shorter than a pack
    (40, 2, 2, 1, 2, 1),
    (3, 8, 52, 13, 4, 51),
    (2, 14, 42, 41, 7, 15),  # the roll goes on between windows, and cuts one in the middle
    (1, 14, 1400, 3, 7, 3),  # a row of windows is too long for a tile
    (3, 4, 6, 17, 1, 0),
    (1, 12, 24, 30, 6, 17),
    (1, 1, 1, 1, 1, 0),
]


def sizes_of(shape):
    return dict(zip(windows.SYMBOLS, shape, strict=True))


def places(shape, to_windows):
    """Where each element of y is in x, by the numbers of pixels that the ops' references use."""
    import torch

    s = SimpleNamespace(**sizes_of(shape))
    pixels = windows.pixels_of_windows(s, "cpu")
    if not to_windows:
        pixels = torch.argsort(pixels)
    return (pixels[:, None] * s.C + torch.arange(s.C)).reshape(-1).numpy()


@dataclass
class Block:
    """A block of the kernel, with the names of window_tiles.cuh. x, y: elements by which both lie behind 16 bytes."""

    s: Any
    itemsize: int
    to_windows: bool
    index: int
    x: int
    y: int

    def __post_init__(self) -> None:
        s, pack = self.s, 16 // self.itemsize
        made, cut = WindowTiles.of(s, self.itemsize, self.to_windows, 1), windows.WindowMap.of(s, 1)
        self.made, self.map, self.pack, self.edge = made, cut, pack, pack - 1
        tiles = -(-cut.across // made.columns)
        band, self.column = self.index // tiles * made.bands, self.index % tiles * made.columns
        self.rows = min(s.B * s.H // s.window - band, made.bands) * s.window
        self.columns = min(made.columns, cut.across - self.column)
        self.length = self.columns * cut.run
        self.windows_at = (band * cut.across + self.column) * s.window * cut.run
        self.start = (self.column * cut.run + cut.units_shifted) % cut.row
        self.cut = min(self.length, cut.row - self.start)
        self.before = (self.cut + 2 * self.edge) // pack
        rolled = band * s.window + np.arange(self.rows)
        below = rolled % s.H + cut.rows_shifted
        self.at = (rolled + cut.rows_shifted - np.where(below < s.H, 0, s.H)) * cut.row
        self.row_packs = made.row_packs(s, self.itemsize)

    def image_parts(self, offset: int) -> list[tuple[int, int, int, int, int, int]]:
        """(slot, first, count, piece, row, t) of each pack on the side of the images."""
        slot = np.arange(self.rows * self.row_packs)
        r, number = np.divmod(slot, self.row_packs)
        behind = number >= self.before
        piece = self.at[r] + np.where(behind, 0, self.start)
        count = np.where(behind, self.length - self.cut, self.cut)
        first = (number - self.before * behind) * self.pack - (offset + piece) % self.pack
        found = np.stack([slot, first, count, piece, r, np.where(behind, self.cut, 0)], axis=1)
        return [tuple(part) for part in found[(first < count) & (count > 0)].tolist()]

    def image_stores(self, offset: int) -> list[tuple[int, int, int, int, int, int]]:
        """The packs that are stored; in long rows for_ends() stores the packs at the ends of pieces."""
        if self.row_packs < LONG_ROWS:
            return self.image_parts(offset)
        found = [part for part in self.image_parts(offset) if 0 <= part[1] <= part[2] - self.pack]
        for end in range(4 * self.rows):
            r, behind = end // 4, end % 4 >= 2
            piece = int(self.at[r]) + (0 if behind else self.start)
            count = self.length - self.cut if behind else self.cut
            last = ((offset + piece) % self.pack + count - 1) // self.pack
            first = (last if end % 2 else 0) * self.pack - (offset + piece) % self.pack
            if count > 0 and end % 2 <= last and not 0 <= first <= count - self.pack:
                found.append((0, first, count, piece, r, self.cut if behind else 0))
        return found

    def window_parts(self, offset: int) -> list[tuple[int, int, int, int, int, int]]:
        """The same on the side of the windows."""
        count, behind = self.rows * self.length, (offset + self.windows_at) % self.pack
        packs = (count + behind + self.edge) // self.pack
        return [(slot, slot * self.pack - behind, count, self.windows_at, 0, 0) for slot in range(packs)]

    def loaded(self, n: int) -> np.ndarray:
        """Which element of x lies in each place of the tile; -1 for what no pack was loaded to."""
        slots = self.rows * self.row_packs if self.to_windows else self._all_packs()
        tile = np.full((slots + 1) * self.pack, -1)
        parts = self.image_parts(self.x) if self.to_windows else self.window_parts(self.x)
        slot, first, _, piece, *_ = np.array(parts).T
        elements = (piece + first)[:, None] + np.arange(self.pack)
        tile.reshape(-1, self.pack)[slot] = np.where((elements >= 0) & (elements < n), elements, -1)
        return tile

    def _all_packs(self) -> int:
        elements = self.made.bands * self.s.window * self.made.columns * self.map.run
        return int(elements + 2 * self.edge) // self.pack

    def runs(self) -> list[tuple[int, int]]:
        """find_runs()."""
        found, border = [], self.map.run - self.map.units_shifted % self.map.run
        for run in range(self.rows * self.columns):
            window = run // self.s.window
            band = window // self.map.across if self.made.columns == self.map.across else 0
            r, t = band * self.s.window + run % self.s.window, (window - band * self.columns) * self.map.run
            row = int(self.at[r])
            before = r * self.row_packs * self.pack + (self.x + row + self.start) % self.pack
            behind = (r * self.row_packs + self.before) * self.pack + (self.x + row) % self.pack - self.cut
            found.append(((before if t < self.cut else behind) + t, (before if t + border < self.cut else behind) + t))
        return [*found, (self.map.run, self.map.run)]

    def spots(self) -> Any:
        """A function (r, e): where element e lies in the tile, how many follow it, and where the next ones are."""
        run_size, side = self.map.run, self.s.window
        border = run_size - self.map.units_shifted % run_size
        if self.to_windows:
            before, behind = np.array(self.runs()).T

            def in_images(_: Ints, e: Ints) -> tuple[Ints, Ints, Ints]:
                run, inside = np.divmod(e, run_size)
                late = inside >= border
                whole = late | (border == run_size) | (before[run] == behind[run])
                other = np.where(whole, before[run + 1] + inside - run_size, behind[run] + inside)
                here = np.where(late, behind[run], before[run]) + inside
                return here, np.where(whole, run_size, border) - inside, other

            return in_images
        at = (self.x + self.windows_at) % self.pack

        def in_windows(r: Ints, t: Ints) -> tuple[Ints, Ints, Ints]:
            band, (column, inside) = r // side, np.divmod(t, run_size)
            place = at + ((band * self.columns + column) * side + r - band * side) * run_size + inside
            last = self._all_packs() * self.pack - self.pack
            return place, run_size - inside, np.minimum(place + (side - 1) * run_size, last)

        return in_windows

    def stored(self, tile: np.ndarray) -> tuple[Ints, Ints]:
        """Elements of y, and which element of x each of them gets. Reads of the tile stay inside of it."""
        spot_of, several = self.spots(), windows._several(self.s, self.itemsize)
        parts = self.window_parts(self.y) if self.to_windows else self.image_stores(self.y)
        # An axis of packs, and one of a pack's elements.
        _, first, count, piece, r, t = np.array(parts).T[:, :, None]
        place, left, other = spot_of(r, t + np.maximum(first, 0))
        early = first < 0
        left, other = np.where(early, -first, left), np.where(early, place + first, other)
        e = first + np.arange(self.pack)
        j = np.arange(self.pack)
        at = spot_of(r, t + np.clip(e, 0, count - 1))[0] if several else np.where(j < left, place, other) + j
        at = np.broadcast_to(at, e.shape)
        assert (at >= 0).all()
        assert (at < len(tile)).all()
        exists = (e >= 0) & (e < count)
        return (piece + e)[exists], tile[at[exists]]


@pytest.mark.parametrize("to_windows", [True, False])
@pytest.mark.parametrize("itemsize", [2, rare(4)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tiles_move_each_element_to_its_place(shape, itemsize, to_windows):
    s, wanted = SimpleNamespace(**sizes_of(shape)), places(shape, to_windows)
    pack = 16 // itemsize
    for x, y in [(1, pack - 1)] if len(wanted) > 5000 else [(0, 0), (1, 0), (0, pack - 1)]:
        got = np.full(len(wanted), -1)
        for index in range(WindowTiles.of(s, itemsize, to_windows, 1).count(s)):
            block = Block(s, itemsize, to_windows, index, x, y)
            elements, sources = block.stored(block.loaded(len(wanted)))
            assert len(np.unique(elements)) == len(elements)
            assert (got[elements] == -1).all()
            got[elements] = sources
        assert np.array_equal(got, wanted), (x, y)


@one_test("to_windows", [True, False])
@one_test("itemsize", [2, 4])
def test_tiles_fit_and_have_all_windows(itemsize, to_windows):
    for images, height, width, side in [(1, 7, 7, 7), (64, 56, 56, 7), (3, 8, 2048, 8), (5, 24, 36, 12), (9, 5, 5, 1)]:
        for channels in (1, 2, 3, 17, 49, 97, 200):
            s = SimpleNamespace(**sizes_of((images, height, width, channels, side, side // 2)))
            made = WindowTiles.of(s, itemsize, to_windows, 1)
            if made is None:
                assert WindowTiles(1, 1).shared_bytes(s, itemsize, to_windows) > windows._MOST_TILE_BYTES
                continue
            across, down = width // side, images * height // side
            assert made.shared_bytes(s, itemsize, to_windows) <= windows._MOST_TILE_BYTES
            assert made.bands == 1 or made.columns == across
            assert 1 <= made.columns <= across
            assert 1 <= made.bands <= down
            assert made.count(s) * made.columns * made.bands >= across * down


@pytest.mark.parametrize(
    ("shape", "columns", "bands"),
    [
        ((512, 56, 56, 49, 7, 3), 2, 1),
        ((256, 56, 56, 97, 7, 3), 1, 1),
        ((2048, 56, 56, 3, 7, 3), 8, 4),
    ],
)
def test_tiles_of_rows_that_are_not_whole_packs(shape, columns, bands):
    assert WindowTiles.of(SimpleNamespace(**sizes_of(shape)), 2, True, 1056) == WindowTiles(columns, bands)
    assert WindowTiles.of(SimpleNamespace(**sizes_of((2, 14, 14, 769, 7, 3))), 2, True, 1056) is None


def test_the_last_wave_of_tiles_is_full():
    s = SimpleNamespace(**sizes_of((2048, 56, 56, 3, 7, 3)))
    large, even = (WindowTiles.of(s, 2, False, places) for places in (1, 1056))
    assert (large.bands, even.bands) == (5, 4)
    # 3.1 waves take as long as 3.9.
    assert large.count(s) / 1056 < 3.2
    assert 3.8 < even.count(s) / 1056 <= 4


@pytest.mark.parametrize("to_windows", [0, 1])
def test_what_a_tile_takes_is_copied_in_packs(ptx, to_windows):
    """Loads go to shared memory without a register, so that none waits for another one."""
    macros = {"SCALAR": "unsigned short", "INDEX": "unsigned", "TO_WINDOWS": to_windows, "RUN": 343, "SIDE": 7}
    macros |= {"ACROSS": 8, "HEIGHT": 56, "ROWS_SHIFTED": 3, "ELEMENTS_SHIFTED": 147, "COLUMNS": 2, "BANDS": 1}
    text = ptx("window_partition.cu", "window_partition_tiles", macros | {"THREADS": 128, "SEVERAL": 0})
    assert text.count("cp.async.ca.shared.global") == 1
    assert text.count("st.global.v4") == 1
