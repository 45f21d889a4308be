// A transpose of a batch of matrices (rows, COLS) of cells of CELL halves, through a tile in shared memory, for any
// sizes and addresses: device memory is read and written by aligned packs of 16 bytes. It is for cells of at least a
// sector, and for rows of which shared memory has room for several.
//
// Macros: ELEMENT (unsigned short), COLS, CELL (16 or more), CELL_LINES (rows of a tile: a multiple of 16), KEPT_IN_L1
// (see copies.cuh), THREADS (of a block), RESIDENT (threads that a multiprocessor is to hold at least).
#pragma once

#include "copies.cuh"
#include "warp.cuh"

// A tile has whole rows of x, so its memory is one piece. Of each row of y it has a piece that begins and ends with
// whole sectors of 32 bytes. Such a piece begins up to 15 halves above the tile, so the line above is read, too, unless
// all rows of y begin with whole sectors. Lines are counted from the one above the tile.
constexpr unsigned LINE = COLS * CELL, MOST_LINES = CELL_LINES + 1;  // halves, lines
// One more than the tile touches, since a pack is read with the word behind it.
constexpr unsigned SHARED_PACKS = (MOST_LINES * LINE + PER_PACK - 2) / PER_PACK + 2;

// Packs of y within a cell are read by words, and shifted together. Neighbouring threads have the packs of a cell, and
// then of the next line's. A thread stays with its line and goes through columns, so half of its index arithmetic is
// done once. A cell has CELL_PACKS at most; where it has one less, a thread is idle.
constexpr unsigned CELL_PACKS = CELL / PER_PACK, COLUMN_PACKS = CELL_LINES * CELL_PACKS;
constexpr unsigned COLS_AT_ONCE = COLUMN_PACKS < THREADS ? THREADS / COLUMN_PACKS : 1;
// Lines of a multiple of 64 halves begin in the same bank, and of 32 in one of two. Then threads of the next line have
// the next column, unless those cells begin in the same bank, too.
constexpr bool SLANTED = LINE % 32 == 0 && (LINE + CELL) % 64 != 0;
__device__ __forceinline__ unsigned slanted(unsigned col, unsigned line) { return SLANTED ? (col + line) % COLS : col; }

static_assert(CELL >= GRAIN && CELL_LINES % GRAIN == 0);

struct CellTile {
  long long matrix;               // its first element
  unsigned row, rows;             // the tile's first row, which is line 1, and the matrix's rows
  unsigned y_at;                  // where the matrix begins in y, in elements past a whole sector
  unsigned above;                 // 1 if line 0 is read, where there is one; else 0
  unsigned first_line, end_line;  // lines that the matrix has and the tile needs: from the one up to before the other
  unsigned shift;                 // where the first line that may be read begins in shared memory

  // Elements of a row of y.
  __device__ __forceinline__ long long run() const { return static_cast<long long>(rows) * CELL; }
  __device__ __forceinline__ bool has(unsigned line) const { return line - first_line < end_line - first_line; }
  // How many elements above line 1 the tile's piece of a row of y begins.
  __device__ __forceinline__ unsigned rise(unsigned col) const { return (y_at + col * (rows * CELL)) % GRAIN; }
  // Where a line begins in shared memory, and where a cell is in y.
  __device__ __forceinline__ unsigned place(unsigned line) const { return shift + (line + above - 1) * LINE; }
  __device__ __forceinline__ long long target(unsigned line, unsigned col) const {
    const long long col_begins = static_cast<long long>(col * CELL) * rows;
    return matrix + col_begins + (static_cast<long long>(row) - 1) * CELL + line * CELL;
  }
};

// end: elements of x.
__device__ __forceinline__ void load_cells(ELEMENT* shared, const ELEMENT* x, const CellTile& tile, long long end) {
  const unsigned begin = tile.place(tile.first_line) / PER_PACK * PER_PACK, behind = tile.place(tile.end_line);
  const long long corner = tile.matrix + (static_cast<long long>(tile.row) - tile.above) * LINE - tile.shift;
  // Only the first and the last tile have packs that reach out of the tensor.
  if (corner + begin >= 0 && corner + behind + PER_PACK <= end) {
#pragma unroll 1
    for (unsigned j = begin + threadIdx.x * PER_PACK; j < behind; j += THREADS * PER_PACK) {
      copy_pack(shared + j, x + corner + j);
    }
  } else {
#pragma unroll 1
    for (unsigned j = begin + threadIdx.x * PER_PACK; j < behind; j += THREADS * PER_PACK) {
      load_one<false>(shared + j, x, corner + j, end);
    }
  }
}

// Packs of one cell. Those of line 0 are left to store_across(): no piece has more than one.
__device__ __forceinline__ void store_inside(const uint4* packs, ELEMENT* y, const CellTile& tile) {
  const unsigned* words = reinterpret_cast<const unsigned*>(packs);
#pragma unroll 1
  for (unsigned slot = threadIdx.x; slot < COLS_AT_ONCE * COLUMN_PACKS; slot += THREADS) {
    const unsigned cell = slot / CELL_PACKS, number = slot - cell * CELL_PACKS;
    const unsigned line = cell % CELL_LINES + 1, first_col = cell / CELL_LINES;
    if (!tile.has(line)) continue;
    const unsigned place = tile.place(line);
#pragma unroll 1
    for (unsigned turn = first_col; turn < COLS; turn += COLS_AT_ONCE) {
      const unsigned col = slanted(turn, line), rise = tile.rise(col);
      const unsigned in_cell = number * PER_PACK + (0 - rise - (line - 1) * CELL) % PER_PACK;
      // The piece ends as many elements before the end of the last line as it rises above line 1.
      if (in_cell + (line == CELL_LINES ? rise : 0) > CELL - PER_PACK) continue;
      const unsigned at = place + col * CELL + in_cell, bits = at * 16;  // a shift counts modulo 32
      const unsigned* from = words + at / 2;
      const unsigned w[5] = {from[0], from[1], from[2], from[3], from[4]};
      store_whole(y + tile.target(line, col) + in_cell,
                  make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                             __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits)));
    }
  }
}

// Packs of two cells: `head` elements of one, and the others of the next line's. Among the packs above, nearly every
// warp would have some; in a loop of their own all lanes do. It begins with the last threads, since the first ones have
// more to do above. Number 0 of a column is the pack of line 0, if its piece rises so far.
__device__ __forceinline__ void store_across(const ELEMENT* shared, ELEMENT* y, const CellTile& tile) {
#pragma unroll 1
  for (unsigned slot = THREADS - 1 - threadIdx.x; slot < COLS * MOST_LINES; slot += THREADS) {
    const unsigned turn = slot / MOST_LINES, number = slot - turn * MOST_LINES, line = max(number, 1u);
    const unsigned col = slanted(turn, number);
    const unsigned rise = tile.rise(col), last = (rise + (line - 1) * CELL) % PER_PACK;
    const unsigned head = number > 0 ? last : rise < PER_PACK ? 0 : rise;
    if (head == 0) continue;
    unsigned here = (tile.place(line) + col * CELL - head) * sizeof(ELEMENT);
    unsigned before = here - (LINE - CELL) * sizeof(ELEMENT);
    // The compiler would multiply again for each element, if it knew that these are products.
    asm("" : "+r"(here), "+r"(before));
    const auto element = [&](unsigned k) {
      const char* from = reinterpret_cast<const char*>(shared) + (k < head ? before : here);
      return reinterpret_cast<const ELEMENT*>(from)[k];
    };
    ELEMENT* to = y + tile.target(line, col) - head;
    const bool begins = tile.has(line - 1), goes_on = tile.has(line);
    if (begins && goes_on) {
      Pack<ELEMENT> pack;
#pragma unroll
      for (unsigned k = 0; k < PER_PACK; ++k) pack.at[k] = element(k);
      store_whole(to, reinterpret_cast<const uint4&>(pack));
    } else if (begins || goes_on) {
      // At the ends of a row of y.
      const unsigned first = begins ? 0 : head, end = begins ? min(head, PER_PACK) : PER_PACK;
#pragma unroll 1
      for (unsigned k = first; k < end; ++k) to[k] = element(k);
    }
  }
}

// batch, rows: of all matrices. down: tiles of a matrix.
__device__ __forceinline__ void transpose_cell_tiles(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y,
                                                     unsigned batch, unsigned rows, unsigned down) {
  __shared__ uint4 packs[SHARED_PACKS];
  ELEMENT* shared = reinterpret_cast<ELEMENT*>(packs);
  const unsigned number = blockIdx.x / down;
  CellTile tile;
  tile.row = (blockIdx.x - number * down) * CELL_LINES, tile.rows = rows;
  tile.matrix = number * tile.run() * COLS;
  tile.y_at = elements_past_a_sector(y + tile.matrix);
  tile.above = tile.run() % GRAIN || tile.y_at;
  tile.first_line = tile.above && tile.row > 0 ? 0 : 1;
  tile.end_line = min(static_cast<unsigned>(CELL_LINES), rows - tile.row) + 1;
  const long long corner = tile.matrix + (static_cast<long long>(tile.row) - tile.above) * LINE;
  tile.shift = elements_past_a_sector(x + corner) % PER_PACK;

  load_cells(shared, x, tile, batch * tile.run() * COLS);
  wait_for_copies();
  __syncthreads();
  store_inside(packs, y, tile);
  store_across(shared, y, tile);
}
