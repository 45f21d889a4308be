// A transpose of a batch of matrices (rows, cols) through a tile in shared memory, for any sizes and addresses: device
// memory is read and written by aligned packs of 16 bytes. harness/collection/ops/layouts/_transpose.py says for which
// matrices; word_tile.cuh is for most of the other matrices.
//
// Macros: ELEMENT (unsigned, or unsigned short for halves), PACKS_ACROSS (packs of a tile's row of x: 8 or 16; 1 if
// FLAT), PACKS_DOWN (packs of a tile's row of y: a multiple of 8), FLAT_COLS (0, or the columns of a narrow matrix: see
// below), SHARED_PACKS (packs of a tile in shared memory), KEPT_IN_L1 (see copies.cuh), BAND (see order.cuh), THREADS
// (of a block), RESIDENT (threads that a multiprocessor is to hold at least, which limits the registers of a thread).
#pragma once

#include "copies.cuh"
#include "order.cuh"
#include "../include/warp.cuh"

// FLAT: the tile's rows are whole rows of x, so they follow each other in memory, and are copied as one piece.
constexpr bool FLAT = FLAT_COLS > 0;
constexpr unsigned TILE_WIDTH = FLAT ? FLAT_COLS : PACKS_ACROSS * PER_PACK, TILE_HEIGHT = PACKS_DOWN * PER_PACK;

// The rows of y begin anywhere, each at another distance from a sector of 32 bytes. A tile has, of each row of y, a
// piece that begins and ends with whole sectors, so no sector is written by two tiles. Such a piece begins up to GRAIN
// - 1 rows of x above the tile: such rows are read too, from the cache, where the tile above has left them.
constexpr unsigned MOST_LINES = TILE_HEIGHT + GRAIN - 1;

// A line is what a tile has of a row of x. It lies in shared memory as packs, as it does in device memory: its first
// element is anywhere in the first pack, and so there is one pack more. PER_PACK lines are a group. Lanes read columns
// of 8 groups at once, so groups are apart by an odd number of packs: they begin in 8 different places of the banks.
// FLAT lines follow each other, so groups are FLAT_COLS packs apart.
constexpr unsigned LINE_PITCH = FLAT ? FLAT_COLS : (PACKS_ACROSS + 1) * PER_PACK;  // elements
constexpr unsigned GROUP_PACKS = FLAT ? FLAT_COLS : (PACKS_ACROSS + 1) * PER_PACK;
constexpr unsigned GROUP_PITCH = (FLAT ? GROUP_PACKS : (GROUP_PACKS + 6) / 8 * 8 + 1) * PER_PACK;  // elements
constexpr unsigned GROUPS = (MOST_LINES - 1) / PER_PACK + 1;

// Neighbouring lanes copy the packs of a line, so that the halves of a sector are asked for at once: a pack more than
// the tile is wide, wherever the line begins. A thread's lines are a multiple of PER_PACK apart, so they are shifted
// alike.
constexpr unsigned LINE_LANES = 2 * PACKS_ACROSS, LINES_AT_ONCE = THREADS / LINE_LANES;
constexpr unsigned LINES_OF_THREAD = (MOST_LINES - 1) / LINES_AT_ONCE + 1;
// The same of FLAT tiles, whose memory may begin inside of a pack, too.
constexpr unsigned FLAT_PACKS = (MOST_LINES * TILE_WIDTH + PER_PACK - 2) / PER_PACK + 1;
static_assert(SHARED_PACKS == (FLAT ? FLAT_PACKS : GROUPS * (GROUP_PITCH / PER_PACK)));

// A warp stores 8 packs of each of 4 rows of y at once: 128 bytes of each, which are whole sectors.
constexpr unsigned WARP_PACKS = 8, WARP_COLS = WARP / WARP_PACKS, BLOCK_COLS = THREADS / WARP * WARP_COLS;

static_assert(FLAT || (LINES_AT_ONCE % PER_PACK == 0 && TILE_WIDTH % BLOCK_COLS == 0));
static_assert(PACKS_DOWN % WARP_PACKS == 0 && BLOCK_COLS % GRAIN == 0 && TILE_HEIGHT % GRAIN == 0);

// What a block knows of its tile. Elements are counted from the beginning of the tensors, which end at `end`.
struct PackTile {
  long long matrix, end;   // the first element of the matrix
  unsigned rows, cols;     // of the matrix
  unsigned row, col;       // where the tile begins; row is a multiple of GRAIN
  unsigned x_at, y_at;     // where the matrix begins on either side, in elements past a whole sector
  unsigned above, lines;   // lines above `row`, and all lines of the tile

  // The row of the matrix that a line is of; below 0 or from `rows` on if there is none.
  __device__ __forceinline__ long long row_of(unsigned line) const {
    return static_cast<long long>(row) - above + line;
  }

  // How far past a pack the tile's part of a line begins. Where it wraps around, line 0 is above the matrix.
  __device__ __forceinline__ unsigned shift(unsigned line) const {
    return (x_at + (row - above + line) * cols + col) % PER_PACK;
  }
  // Where in shared memory the tile's part of a line begins, in elements.
  __device__ __forceinline__ unsigned place(unsigned line) const {
    return line / PER_PACK * GROUP_PITCH + line % PER_PACK * LINE_PITCH + shift(FLAT ? 0 : line);
  }
  // How many rows above `row` the tile's piece of a row of y begins.
  __device__ __forceinline__ unsigned rise(unsigned column) const { return (y_at + (col + column) * rows) % GRAIN; }
};

// Loads a tile that is FLAT, as one piece.
template <bool FULL>
__device__ __forceinline__ void load_flat(ELEMENT* shared, const ELEMENT* x, const PackTile& tile) {
  const unsigned shift = tile.shift(0);
  const long long corner = tile.matrix + tile.row_of(0) * tile.cols - shift;
  // Elements from here to there are the matrix's, counted from `corner`.
  const long long left = tile.rows - tile.row_of(0);
  const unsigned from = tile.row_of(0) < 0 ? static_cast<unsigned>(-tile.row_of(0)) * TILE_WIDTH : 0;
  const unsigned to = shift + (left < tile.lines ? static_cast<unsigned>(left) : tile.lines) * TILE_WIDTH;
#pragma unroll
  for (unsigned k = 0; k < FLAT_PACKS; k += THREADS) {
    const unsigned j = (k + threadIdx.x) * PER_PACK;
    if (j < to && (FULL || j + PER_PACK > shift + from)) load_one<FULL>(shared + j, x, corner + j, tile.end);
  }
}

// Pack `number` of a line, which begins with element `first` of x. Most of them exist in any tile.
template <bool FULL>
__device__ __forceinline__ void load_of_line(ELEMENT* to, const ELEMENT* x, long long first, const PackTile& tile,
                                             unsigned line, unsigned number) {
  if constexpr (!FULL) {
    const unsigned width = min(TILE_WIDTH, tile.cols - tile.col);
    const long long row = tile.row_of(line);
    if (row < 0 || row >= tile.rows || number * PER_PACK >= tile.shift(line) + width) return;
  }
  load_one<FULL>(to, x, first, tile.end);
}

template <bool FULL>
__device__ __forceinline__ void load_lines(ELEMENT* shared, const ELEMENT* x, const PackTile& tile) {
  const unsigned number = threadIdx.x % LINE_LANES, first_line = threadIdx.x / LINE_LANES;
  const unsigned shift = tile.shift(first_line);
  // A line that begins with a pack doesn't reach into its last one.
  if (number > PACKS_ACROSS || (number == PACKS_ACROSS && shift == 0)) return;
  long long first = tile.matrix + (tile.row_of(0) + first_line) * tile.cols + tile.col + number * PER_PACK - shift;
  ELEMENT* to = shared + tile.place(first_line) - shift + number * PER_PACK;
#pragma unroll
  for (unsigned k = 0; k < LINES_OF_THREAD; ++k) {
    const unsigned line = first_line + k * LINES_AT_ONCE;
    const bool exists = (k + 1) * LINES_AT_ONCE <= TILE_HEIGHT || line < tile.lines;
    if (exists) load_of_line<FULL>(to + k * (LINES_AT_ONCE / PER_PACK * GROUP_PITCH), x, first, tile, line, number);
    first += static_cast<long long>(tile.cols) * LINES_AT_ONCE;
  }
}

// A pack of y from PER_PACK lines of the tile, `offset` elements past spot[k]. swapped: the elements of each pair have
// changed places.
__device__ __forceinline__ uint4 gather(const ELEMENT* const (&spot)[PER_PACK], unsigned offset, bool swapped) {
  if constexpr (PER_PACK == 4) {
    return make_uint4(spot[0][offset], spot[1][offset], spot[2][offset], spot[3][offset]);
  } else {
    const unsigned selector = swapped ? 0x1054u : 0x5410u;
    unsigned words[4];
#pragma unroll
    for (unsigned w = 0; w < 4; ++w) words[w] = __byte_perm(spot[2 * w][offset], spot[2 * w + 1][offset], selector);
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
}

template <bool FULL>
__device__ __forceinline__ void store_pieces(const ELEMENT* shared, ELEMENT* y, const PackTile& tile) {
  const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const unsigned pack = lane % WARP_PACKS, lane_col = lane / WARP_PACKS;
  // Elements that lanes read at once are free of conflicts if, of different columns, they are in different words of
  // their packs. From a column to the next one they move by 1 - rows * cols elements: so where that is odd, a warp
  // takes every second column. Where it is a multiple of four, two columns take the elements of pairs in turns.
  const unsigned turn = tile.rows * tile.cols % 4;
  const unsigned pair_of_warps = warp / 2 * (2 * WARP_COLS);
  const unsigned column =
      pair_of_warps + (turn % 2 || PER_PACK == 4 ? warp % 2 * WARP_COLS + lane_col : warp % 2 + 2 * lane_col);
  const bool swapped = PER_PACK == 8 && turn == 1 && lane_col / 2;

  const unsigned rise = tile.rise(column), top = pack * PER_PACK + tile.above - rise;
  const ELEMENT* spot[PER_PACK];
#pragma unroll
  for (unsigned k = 0; k < PER_PACK; ++k) {
    spot[k] = shared + tile.place(top + (swapped ? k ^ 1 : k)) + column;
  }

  const long long first_row = static_cast<long long>(tile.row) - rise + pack * PER_PACK;
  ELEMENT* to = y + tile.matrix + static_cast<long long>(tile.col + column) * tile.rows + first_row;
#pragma unroll
  for (unsigned c = 0; c < TILE_WIDTH; c += BLOCK_COLS) {
#pragma unroll
    for (unsigned p = 0; p < PACKS_DOWN; p += WARP_PACKS) {
      const long long row = first_row + p * PER_PACK;
      if ((!FULL || TILE_WIDTH % BLOCK_COLS) && tile.cols - tile.col <= column + c) continue;
      if (!FULL && (row >= tile.rows || row <= -static_cast<int>(PER_PACK))) continue;
      const uint4 value = gather(spot, p * GROUP_PITCH + c, swapped);
      if (FULL || (row >= 0 && row + PER_PACK <= tile.rows)) {
        store_whole(to + p * PER_PACK, value);
      } else {
        const Pack<ELEMENT>& part = reinterpret_cast<const Pack<ELEMENT>&>(value);
#pragma unroll
        for (unsigned k = 0; k < PER_PACK; ++k) {
          if (row + k >= 0 && row + k < tile.rows) to[p * PER_PACK + k] = part.at[k];
        }
      }
    }
    to += static_cast<long long>(tile.rows) * BLOCK_COLS;
  }
}

template <bool FULL>
__device__ __forceinline__ void move_tile(ELEMENT* shared, const ELEMENT* x, ELEMENT* y, const PackTile& tile) {
  if constexpr (FLAT) {
    load_flat<FULL>(shared, x, tile);
  } else {
    load_lines<FULL>(shared, x, tile);
  }
  wait_for_copies();
  __syncthreads();
  store_pieces<FULL>(shared, y, tile);
}

// batch, rows, cols: of all matrices.
__device__ __forceinline__ void transpose_pack_tiles(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y,
                                                     unsigned batch, unsigned rows, unsigned cols, const Order& order) {
  extern __shared__ uint4 packs[];
  ELEMENT* shared = reinterpret_cast<ELEMENT*>(packs);
  const Place place = place_of(blockIdx.x, order);
  PackTile tile;
  tile.rows = rows, tile.cols = cols;
  tile.row = place.down * TILE_HEIGHT, tile.col = place.across * TILE_WIDTH;
  const long long size = static_cast<long long>(rows) * cols;
  tile.matrix = place.matrix * size, tile.end = batch * size;
  tile.x_at = elements_past_a_sector(x + tile.matrix), tile.y_at = elements_past_a_sector(y + tile.matrix);
  // If rows of y are whole sectors, all of their pieces begin in the same row of x, and need no line twice.
  const bool alike = rows % GRAIN == 0;
  tile.above = alike ? tile.y_at : GRAIN - 1;
  tile.lines = alike ? TILE_HEIGHT : MOST_LINES;
  const long long first_row = tile.row_of(0);
  if (first_row >= rows) return;

  const long long first = tile.matrix + first_row * cols + tile.col;
  const long long last = first + static_cast<long long>(tile.lines - 1) * cols + TILE_WIDTH;
  const bool full = first_row >= 0 && first_row + tile.lines <= rows && TILE_WIDTH <= cols - tile.col &&
                    first >= PER_PACK && last + PER_PACK <= tile.end;
  if (full) {
    move_tile<true>(shared, x, y, tile);
  } else {
    move_tile<false>(shared, x, y, tile);
  }
}
