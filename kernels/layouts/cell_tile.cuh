// A transpose of a batch of matrices (rows, COLS) of cells of CELL halves, through a tile in shared memory, for any
// sizes and addresses: device memory is read and written by aligned packs of 16 bytes. It is for cells of at least a
// sector, and for rows of which shared memory has room for several.
//
// Macros: ELEMENT (unsigned short), COLS, CELL (16 or more), CELL_LINES (rows of a tile: a multiple of 16), KEPT_IN_L1
// (see copies.cuh), THREADS (of a block), RESIDENT (threads that a multiprocessor is to hold at least).
#pragma once

#include "copies.cuh"
#include "../include/warp.cuh"

// A tile has whole rows of x, so its memory is one piece. Of each row of y it has a piece that begins and ends with
// whole sectors of 32 bytes. Such a piece begins up to 15 halves above the tile, so the line above is read, too, unless
// all rows of y begin with whole sectors.
constexpr unsigned LINE = COLS * CELL, MOST_LINES = CELL_LINES + 1;  // halves, lines
constexpr unsigned SHARED_PACKS = (MOST_LINES * LINE + PER_PACK - 2) / PER_PACK + 1;
constexpr unsigned PIECE_PACKS = CELL_LINES * CELL / PER_PACK;

// A warp stores 8 packs of each of 4 rows of y at once. In shared memory, packs of a row are multiples of 16 bytes
// apart, which would be four in each bank; cells of neighbouring rows of y are CELL halves apart.
constexpr unsigned WARP_PACKS = 8, WARP_COLS = WARP / WARP_PACKS;
constexpr unsigned TASKS_DOWN = (PIECE_PACKS - 1) / WARP_PACKS + 1, TASKS = ((COLS - 1) / WARP_COLS + 1) * TASKS_DOWN;

static_assert(CELL >= GRAIN && CELL_LINES % GRAIN == 0);

// batch, rows: of all matrices. down: tiles of a matrix.
__device__ __forceinline__ void transpose_cell_tiles(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y,
                                                     unsigned batch, unsigned rows, unsigned down) {
  __shared__ uint4 packs[SHARED_PACKS];
  ELEMENT* shared = reinterpret_cast<ELEMENT*>(packs);
  const unsigned number = blockIdx.x / down, row = (blockIdx.x - number * down) * CELL_LINES;
  const long long run = static_cast<long long>(rows) * CELL, size = run * COLS, matrix = number * size;
  const unsigned y_at = elements_past_a_sector(y + matrix);
  const unsigned above = run % GRAIN || y_at;

  const long long corner = matrix + (static_cast<long long>(row) - above) * LINE;
  const unsigned shift = elements_past_a_sector(x + corner) % PER_PACK;
  const unsigned begin = row < above ? LINE : 0, lines = min(static_cast<unsigned>(CELL_LINES), rows - row) + above;
  for (unsigned j = threadIdx.x * PER_PACK; j < shift + lines * LINE; j += THREADS * PER_PACK) {
    if (j + PER_PACK > shift + begin) load_one<false>(shared + j, x, corner - shift + j, batch * size);
  }
  wait_for_copies();
  __syncthreads();

  const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll 4
  for (unsigned task = warp; task < TASKS; task += THREADS / WARP) {
    const unsigned col = task / TASKS_DOWN * WARP_COLS + lane / WARP_PACKS;
    const unsigned pack = task % TASKS_DOWN * WARP_PACKS + lane % WARP_PACKS;
    const unsigned rise = (y_at + col * static_cast<unsigned>(run)) % GRAIN;
    const long long first = static_cast<long long>(row) * CELL + pack * PER_PACK - rise;  // of the row of y
    if (col >= COLS || pack >= PIECE_PACKS || first >= run || first <= -static_cast<int>(PER_PACK)) continue;
    // Lines are counted from the one above the tile.
    const unsigned j = CELL + pack * PER_PACK - rise, line = j / CELL, in_cell = j - line * CELL;
    const ELEMENT* at = shared + shift + (line + above - 1) * LINE + col * CELL + in_cell;
    unsigned words[4];
#pragma unroll
    for (unsigned w = 0; w < 4; ++w) {
      // Behind the end of the cell, the pack goes on in the same cell of the next line.
      const unsigned low = at[2 * w + (in_cell + 2 * w < CELL ? 0 : LINE - CELL)];
      const unsigned high = at[2 * w + 1 + (in_cell + 2 * w + 1 < CELL ? 0 : LINE - CELL)];
      words[w] = low | high << 16;
    }
    ELEMENT* to = y + matrix + col * run + first;
    if (first >= 0 && first + PER_PACK <= run) {
      store_whole(to, make_uint4(words[0], words[1], words[2], words[3]));
    } else {
#pragma unroll
      for (unsigned k = 0; k < PER_PACK; ++k) {
        if (first + k >= 0 && first + k < run) to[k] = static_cast<ELEMENT>(words[k / 2] >> k % 2 * 16);
      }
    }
  }
}
