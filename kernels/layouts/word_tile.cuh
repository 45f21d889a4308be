// A transpose of a batch of matrices (rows, cols), whose entries are cells of CELL elements, through a tile in shared
// memory, for any sizes and addresses: device memory is read and written by aligned words of 4 bytes.
//
// Macros: ELEMENT (unsigned short or unsigned), MATRICES (of a block), TILE_ROWS, TILE_COLS, CELL, FLAT_X, FLAT_Y,
// SHIFTED (see below), BAND (see order.cuh), THREADS (of a block).
#pragma once

#include "order.cuh"

// A tile has TILE_ROWS rows of TILE_COLS cells. Its memory on either side consists of runs, which are pieces of rows of
// x, or of y. A run of one side is a column of cells on the other side.
// FLAT_X: the tile's rows are whole rows of x, so they follow each other in memory, and are one run. FLAT_Y: the same
// of its columns and y. A narrow matrix has one side flat, so that threads have no gaps where short rows end. If both
// are, the tile is a whole matrix, or MATRICES of them.
// SHIFTED: a run of halves may begin or end in the middle of a word.
constexpr unsigned X_RUN = TILE_COLS * CELL, Y_RUN = TILE_ROWS * CELL, MATRIX = X_RUN * TILE_ROWS;  // elements

// In shared memory elements lie in the order of x; in that of y if only y is flat. Lines of the tile are an odd number
// of elements apart, so that a column of it lies in 32 banks: of halves, the lanes of a warp access every second one. A
// flat side has its elements at next to consecutive addresses.
constexpr bool AS_Y = FLAT_Y && !FLAT_X;
constexpr unsigned LINE = (AS_Y ? Y_RUN : X_RUN) | 1;
constexpr unsigned LINES = AS_Y ? TILE_COLS : MATRICES * TILE_ROWS;

// Element j of run r of x has the place place_in_x(j) + r * X_STEP in shared memory; the same for y.
constexpr unsigned X_STEP = AS_Y ? CELL : LINE, Y_STEP = AS_Y ? LINE : CELL;

// The place of element j of lines of LENGTH elements, which in shared memory are LINE apart.
template <unsigned LENGTH>
__device__ __forceinline__ unsigned in_lines(unsigned j) {
  return LENGTH == LINE ? j : j / LENGTH * LINE + j % LENGTH;
}
__device__ __forceinline__ unsigned place_in_x(unsigned j) {
  if constexpr (FLAT_X) return in_lines<X_RUN>(j);
  return AS_Y ? in_lines<CELL>(j) : j;
}
__device__ __forceinline__ unsigned place_in_y(unsigned j) {
  if constexpr (AS_Y) return in_lines<Y_RUN>(j);
  if constexpr (!FLAT_Y) return in_lines<CELL>(j);
  const unsigned run = j / Y_RUN, matrix = run / TILE_COLS;
  return in_lines<CELL>(j - run * Y_RUN) + (run - matrix * TILE_COLS) * CELL + matrix * (TILE_ROWS * LINE);
}

constexpr unsigned PER_WORD = 4 / sizeof(ELEMENT);
constexpr bool MAY_SHIFT = SHIFTED && PER_WORD == 2;

__device__ constexpr unsigned power_of_2_from(unsigned n) { return n <= 1 ? 1 : 2 * power_of_2_from((n + 1) / 2); }

// One side of the tile. Short runs, up to half a block of words, are taken several at once, an even number of them,
// each by a power of two of threads: so a thread has the same place in all of its runs, of which it takes every second
// one at least, and all of them are shifted alike. Longer ones are taken one after the other, by all threads, in
// pieces.
template <bool FLAT, unsigned RUNS, unsigned RUN>
struct Side {
  static constexpr unsigned RUNS_OF_TILE = FLAT ? 1 : RUNS, LENGTH = FLAT ? MATRICES * MATRIX : RUN;
  // A run of halves that begins inside of a word may reach into one word more.
  static constexpr unsigned WORDS = MAY_SHIFT ? LENGTH / 2 + 1 : (LENGTH - 1) / PER_WORD + 1;
  static constexpr bool SHORT = WORDS <= THREADS / 2;
  static constexpr unsigned SLOTS = SHORT ? power_of_2_from(WORDS) : THREADS, AT_ONCE = THREADS / SLOTS;
  static constexpr unsigned PIECES = (WORDS - 1) / SLOTS + 1;
  static constexpr unsigned OF_THREAD = ((RUNS_OF_TILE - 1) / AT_ONCE + 1) * PIECES;

  unsigned runs;    // that this tile has
  unsigned length;  // of a run, in elements
  unsigned pitch;   // elements from a run to the next
};
using SideX = Side<FLAT_X, TILE_ROWS, X_RUN>;
using SideY = Side<FLAT_Y, TILE_COLS, Y_RUN>;

__device__ __forceinline__ int shift(const ELEMENT* run) {
  return MAY_SHIFT ? static_cast<unsigned>(reinterpret_cast<unsigned long long>(run)) / 2 % 2 : 0;
}

// A thread's word in a run begins with element j of the run: with -1 if the run begins inside of the word.
struct Spot {
  int j;
  bool low, high;  // whether the word's halves are elements of the run

  // inside: the whole word is known to be the run's. As an unsigned number, -1 isn't below a length either.
  __device__ __forceinline__ Spot(int j, unsigned length, bool inside)
      : j(j),
        low(inside || static_cast<unsigned>(j) < length),
        high(PER_WORD == 2 && (inside || static_cast<unsigned>(j + 1) < length)) {}
  __device__ __forceinline__ bool any() const { return low || high; }
  __device__ __forceinline__ bool whole() const { return MAY_SHIFT ? low && high : low; }
  // The run's first element of the word, and its last one. They are the same if one half is the run's; element 0 if
  // none.
  __device__ __forceinline__ int first() const { return low ? j : MAY_SHIFT && high ? j + 1 : 0; }
  __device__ __forceinline__ int last() const { return high ? j + 1 : first(); }
};

// Calls visit(k, at, run, spot, exists) for the thread's words, which k numbers. at: the address of the word, or, if
// FIRST, of the run's first element in it. exists: whether the tile has this run; which elements of the word exist, the
// spot says.
// FULL: the tile has all of its rows and columns, so the compiler knows the results of most comparisons. There is no
// branch, only predicates: behind a branch, a load would wait for the one before it.
template <bool FULL, bool FIRST, typename Side, typename Pointer, typename Visit>
__device__ __forceinline__ void for_words(const Side& side, Pointer tile, Visit visit) {
  const unsigned run = threadIdx.x / Side::SLOTS;
  const int slot = threadIdx.x % Side::SLOTS * PER_WORD;
  const unsigned runs = FULL ? Side::RUNS_OF_TILE : side.runs, length = FULL ? Side::LENGTH : side.length;
  if constexpr (Side::SHORT) {
    Pointer at = tile + static_cast<long long>(run) * side.pitch;
    const Spot spot(slot - shift(at), length, FULL && !MAY_SHIFT && Side::SLOTS * PER_WORD <= Side::LENGTH);
    const int left = runs - run;
    at += FIRST ? spot.first() : spot.j;
#pragma unroll
    for (unsigned k = 0; k < Side::OF_THREAD; ++k) {
      const bool all_exist = FULL && (k + 1) * Side::AT_ONCE <= Side::RUNS_OF_TILE;
      visit(k, at, run + k * Side::AT_ONCE, spot, all_exist || left > static_cast<int>(k * Side::AT_ONCE));
      at += static_cast<long long>(side.pitch) * Side::AT_ONCE;
    }
  } else {
#pragma unroll
    for (unsigned k = 0; k < Side::OF_THREAD; ++k) {
      const unsigned number = k / Side::PIECES, piece = k % Side::PIECES;
      const bool inside = FULL && (piece > 0 || !MAY_SHIFT) && (piece + 1) * THREADS * PER_WORD <= Side::LENGTH;
      Pointer at = tile + static_cast<long long>(number) * side.pitch;
      const int j = slot + static_cast<int>(piece * THREADS * PER_WORD) - shift(at);
      // A run that doesn't exist has no elements.
      const Spot spot(j, number < runs ? length : 0, inside);
      visit(k, at + (FIRST ? spot.first() : spot.j), number, spot, true);
    }
  }
}

// From x into the tile. Of a FULL tile words are read as a whole: what lies before and after its runs is in the tensor,
// too. Otherwise a word of which one half is the run's is read as this half alone. All loads of a thread are under way
// before the first one is used.
template <bool FULL>
__device__ __forceinline__ void load_tile(ELEMENT* tile, const ELEMENT* from, const SideX& x) {
  unsigned loaded[SideX::OF_THREAD];
  for_words<FULL, !FULL>(x, from, [&](unsigned k, const ELEMENT* at, unsigned, const Spot& spot, bool exists) {
    if (exists && (FULL ? spot.any() : spot.whole())) loaded[k] = *reinterpret_cast<const unsigned*>(at);
    if (!FULL && exists && spot.any() && !spot.whole()) loaded[k] = *at;
  });
  for_words<FULL, !FULL>(x, from, [&](unsigned k, const ELEMENT*, unsigned run, const Spot& spot, bool exists) {
    ELEMENT* line = tile + run * X_STEP;
    if (exists && spot.low) line[place_in_x(spot.j)] = static_cast<ELEMENT>(loaded[k]);
    const unsigned high = FULL || spot.low ? loaded[k] >> 16 : loaded[k];
    if (exists && spot.high) line[place_in_x(spot.j + 1)] = static_cast<ELEMENT>(high);
  });
}

// From the tile to y. What a thread without a word reads lies inside of the shared memory, and isn't stored.
template <bool FULL>
__device__ __forceinline__ void store_tile(const ELEMENT* tile, ELEMENT* to, const SideY& y) {
  unsigned stored[SideY::OF_THREAD];
  for_words<FULL, true>(y, to, [&](unsigned k, ELEMENT*, unsigned run, const Spot& spot, bool) {
    const ELEMENT* line = tile + run * Y_STEP;
    stored[k] = line[place_in_y(spot.first())];
    if constexpr (PER_WORD == 2) stored[k] |= static_cast<unsigned>(line[place_in_y(spot.last())]) << 16;
  });
  for_words<FULL, true>(y, to, [&](unsigned k, ELEMENT* at, unsigned, const Spot& spot, bool exists) {
    if (exists && spot.whole()) *reinterpret_cast<unsigned*>(at) = stored[k];
    if (MAY_SHIFT && exists && spot.any() && !spot.whole()) *at = static_cast<ELEMENT>(stored[k]);
  });
}

// batch, rows, cols: of all matrices, in cells.
__device__ __forceinline__ void transpose_word_tiles(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y,
                                                     unsigned batch, unsigned rows, unsigned cols, const Order& order) {
  // Threads that are left over where runs of y are taken at once read behind the tile.
  __shared__ ELEMENT tile[LINES * LINE + (SideY::AT_ONCE - 1) * Y_STEP];
  const Place place = place_of(blockIdx.x, order);
  const unsigned first_matrix = place.matrix * MATRICES, row = place.down * TILE_ROWS, col = place.across * TILE_COLS;
  const unsigned matrices = min(static_cast<unsigned>(MATRICES), batch - first_matrix);
  const unsigned tile_rows = min(static_cast<unsigned>(TILE_ROWS), rows - row);
  const unsigned tile_cols = min(static_cast<unsigned>(TILE_COLS), cols - col);
  const unsigned all = matrices * tile_rows * tile_cols * CELL;
  const SideX side_x{FLAT_X ? 1 : tile_rows, FLAT_X ? all : tile_cols * CELL, cols * CELL};
  const SideY side_y{FLAT_Y ? 1 : tile_cols, FLAT_Y ? all : tile_rows * CELL, rows * CELL};

  const long long matrix = static_cast<long long>(rows) * cols * CELL, offset = first_matrix * matrix;
  const long long first = offset + (static_cast<long long>(row) * cols + col) * CELL;
  const long long end = first + static_cast<long long>(side_x.runs - 1) * side_x.pitch + side_x.length;
  ELEMENT* to = y + offset + (static_cast<long long>(col) * rows + row) * CELL;
  const bool full = matrices == MATRICES && tile_rows == TILE_ROWS && tile_cols == TILE_COLS;
  if (full && (!MAY_SHIFT || (first > 0 && end < batch * matrix))) {
    load_tile<true>(tile, x + first, side_x);
    __syncthreads();
    store_tile<true>(tile, to, side_y);
  } else {
    load_tile<false>(tile, x + first, side_x);
    __syncthreads();
    store_tile<false>(tile, to, side_y);
  }
}
