// The transpose of a batch of matrices (rows, cols) through shared memory, for any sizes and any addresses.
//
// Why: a plain transpose of elements of 2 bytes loads and stores 2 bytes a thread, so it needs twice as many accesses
// for the same bytes as with 4 bytes a thread. Here device memory is read and written by aligned words of 4 bytes, even
// where a row begins in the middle of a word; only the ends of such rows move by 2 bytes.
//
// Terms:
//   element  2 or 4 bytes, which are moved and never looked at; one of 2 bytes is called a half
//   cell     CELL elements that stay together: an entry of a matrix
//   tile     TILE_ROWS x TILE_COLS cells of one matrix, which one block moves
//   word     4 bytes of device memory, at a multiple of 4: one element of 4 bytes, or a low and a high half
//   run      a piece of the tile that is contiguous in device memory: in x a row of the tile, in y a column of the tile
//   side     all runs of the tile in x (the side that is loaded), or in y (the side that is stored)
//   line     a row of the array in shared memory
//
// A tile of 3 x 4 cells of one element (the dot is an element that is never used):
//
//     x in device memory             shared memory             y in device memory
//     run 0  a b c d                 line 0  a b c d .         run 0  a e i
//     run 1  e f g h   load_tile     line 1  e f g h .         run 1  b f j
//     run 2  i j k l   --------->    line 2  i j k l .   -->   run 2  c g k
//                                                store_tile    run 3  d h l
//
// The distance between lines is an odd number of elements, so that what the 32 lanes of a warp read of a column at a
// time lies in 32 banks: 32 neighbours if elements have 4 bytes, every second one of 64 neighbours if they are halves.
//
// SHIFTED: a run of halves may begin or end in the middle of a word. Its shift is then 1, else 0. Runs of 5 halves:
//
//     words     |  0  |  1  |  2  |
//     shift 0   |h0 h1|h2 h3|h4   |    word 0 begins with element 0 of the run; word 2 has only its low half
//     shift 1   |   h0|h1 h2|h3 h4|    word 0 begins with element -1, which isn't the run's: only its high half is
//
// FLAT_X: the tile has whole rows of x, so its rows follow each other in device memory, and the side is one long run.
// FLAT_Y: the tile has whole columns of x, which are whole rows of y. A matrix with few columns is flat in x, a matrix
// with few rows is flat in y: a thread has nothing to do at the end of a run, and one long run has one end. If both
// sides are flat, a tile is a whole matrix, and a block moves MATRICES of them as one run.
//
// Macros: ELEMENT (unsigned short or unsigned), MATRICES (of a block), TILE_ROWS, TILE_COLS, CELL, FLAT_X, FLAT_Y,
// SHIFTED, BAND (see order.cuh), THREADS (of a block), STREAM (0 or 1: whole words ask the caches to give their lines up
// first). _transpose_plan.py chooses them.
#pragma once

#include "order.cuh"

constexpr unsigned ROW_LENGTH = TILE_COLS * CELL, COLUMN_LENGTH = TILE_ROWS * CELL;  // of the tile, in elements
constexpr unsigned MATRIX_LENGTH = ROW_LENGTH * TILE_ROWS;
constexpr unsigned PER_WORD = 4 / sizeof(ELEMENT);
constexpr bool MAY_SHIFT = SHIFTED && PER_WORD == 2;

// ---- Places in shared memory.

// A line is a row of the tile. Only if y alone is flat, a line is a column: neighbours in the long run of the flat side
// then are neighbours in shared memory too, but where a line ends.
constexpr bool LINES_ARE_COLUMNS = FLAT_Y && !FLAT_X;
constexpr unsigned LINE_PITCH = (LINES_ARE_COLUMNS ? COLUMN_LENGTH : ROW_LENGTH) | 1;
constexpr unsigned LINES = LINES_ARE_COLUMNS ? TILE_COLS : MATRICES * TILE_ROWS;

// Element j of run r of x has the place `place_in_x(j) + r * X_RUN_PITCH`; element j of run r of y has the place
// `place_in_y(j) + r * Y_RUN_PITCH`.
constexpr unsigned X_RUN_PITCH = LINES_ARE_COLUMNS ? CELL : LINE_PITCH;
constexpr unsigned Y_RUN_PITCH = LINES_ARE_COLUMNS ? LINE_PITCH : CELL;

// The place of element j of a sequence whose parts of PART elements begin LINE_PITCH places apart.
template <unsigned PART>
__device__ __forceinline__ unsigned place_in_parts(unsigned j) {
  return PART == LINE_PITCH ? j : j / PART * LINE_PITCH + j % PART;
}
__device__ __forceinline__ unsigned place_in_x(unsigned j) {
  if constexpr (FLAT_X) return place_in_parts<ROW_LENGTH>(j);             // the run is all rows
  if constexpr (LINES_ARE_COLUMNS) return place_in_parts<CELL>(j);        // each cell of a row is in another line
  return j;                                                               // the row is a line
}
__device__ __forceinline__ unsigned place_in_y(unsigned j) {
  if constexpr (LINES_ARE_COLUMNS) return place_in_parts<COLUMN_LENGTH>(j);  // the run is all columns
  if constexpr (!FLAT_Y) return place_in_parts<CELL>(j);                     // each cell of a column is in another line
  // Both sides are flat: the run is all columns of all matrices, and lines are rows.
  const unsigned column = j / COLUMN_LENGTH, matrix = column / TILE_COLS;
  return place_in_parts<CELL>(j - column * COLUMN_LENGTH) + (column - matrix * TILE_COLS) * CELL +
         matrix * (TILE_ROWS * LINE_PITCH);
}

// ---- Which words a thread takes.

__device__ constexpr unsigned power_of_2_from(unsigned n) { return n <= 1 ? 1 : 2 * power_of_2_from((n + 1) / 2); }

// One side of the tile, and how the threads of a block share its words.
//
// SHORT: a run has at most half as many words as the block has threads. Then the block takes RUNS_AT_ONCE runs, with
// THREADS_A_RUN threads for each run, and goes on to the next RUNS_AT_ONCE runs. Both numbers are powers of two and
// RUNS_AT_ONCE is even, so a thread has the same word in all of its runs, and all of its runs have the same shift:
// the thread computes the place and the comparisons once.
// Otherwise the block takes one run after the other, each in PIECES of one word a thread.
template <bool FLAT, unsigned RUNS_IF_NOT_FLAT, unsigned LENGTH_IF_NOT_FLAT>
struct Side {
  static constexpr unsigned RUNS = FLAT ? 1 : RUNS_IF_NOT_FLAT;
  static constexpr unsigned LENGTH = FLAT ? MATRICES * MATRIX_LENGTH : LENGTH_IF_NOT_FLAT;  // of a run, in elements
  // A shifted run may reach into one word more.
  static constexpr unsigned WORDS = MAY_SHIFT ? LENGTH / 2 + 1 : (LENGTH - 1) / PER_WORD + 1;  // of a run
  static constexpr bool SHORT = WORDS <= THREADS / 2;
  static constexpr unsigned THREADS_A_RUN = SHORT ? power_of_2_from(WORDS) : THREADS;
  static constexpr unsigned RUNS_AT_ONCE = THREADS / THREADS_A_RUN;
  static constexpr unsigned PIECES = (WORDS - 1) / THREADS_A_RUN + 1;
  static constexpr unsigned WORDS_A_THREAD = ((RUNS - 1) / RUNS_AT_ONCE + 1) * PIECES;

  // What this tile has, which at the edge of a matrix is less than RUNS and LENGTH.
  unsigned runs;
  unsigned length;
  unsigned pitch;  // elements from the begin of a run to the begin of the next run, in device memory
};
using SideX = Side<FLAT_X, TILE_ROWS, ROW_LENGTH>;
using SideY = Side<FLAT_Y, TILE_COLS, COLUMN_LENGTH>;

// How many halves the run begins behind the begin of a word.
__device__ __forceinline__ int shift_of(const ELEMENT* run) {
  return MAY_SHIFT ? static_cast<unsigned>(reinterpret_cast<unsigned long long>(run)) / 2 % 2 : 0;
}

// One word of a run, which begins with element j of the run (j is -1 in the first word of a shifted run).
struct Word {
  unsigned run;
  int j;
  bool run_exists;
  bool low_in_run, high_in_run;  // whether element j, and the half after it, lie between the ends of the run

  // inside: the compiler knows that the whole word is inside of the run, so nothing is compared. The comparisons are of
  // unsigned numbers, where -1 is the largest number, and not below a length.
  __device__ __forceinline__ Word(unsigned run, int j, unsigned length, bool inside)
      : run(run),
        j(j),
        run_exists(true),
        low_in_run(inside || static_cast<unsigned>(j) < length),
        high_in_run(PER_WORD == 2 && (inside || static_cast<unsigned>(j + 1) < length)) {}

  __device__ __forceinline__ bool any_in_run() const { return low_in_run || high_in_run; }
  __device__ __forceinline__ bool all_in_run() const { return MAY_SHIFT ? low_in_run && high_in_run : low_in_run; }

  // The first and the last element of the run that are in this word; element 0 if there is none, so that a thread
  // without a word still has an address to compute with.
  __device__ __forceinline__ int first() const { return low_in_run ? j : MAY_SHIFT && high_in_run ? j + 1 : 0; }
  __device__ __forceinline__ int last() const { return high_in_run ? j + 1 : first(); }
};

// Calls visit(k, word, address) for the thread's words k = 0, 1, .. on one side.
//
// FULL: the tile has all TILE_ROWS rows and all TILE_COLS columns, so the compiler knows the results of most
// comparisons. AT_WORD: `address` is where the word begins; otherwise where word.first() is, the first half that is the
// run's. visit is called for each k, also where the thread has no word: what follows is predicated, not branched, since
// a load behind a branch would wait for the load before the branch.
template <bool FULL, bool AT_WORD, typename Side, typename Pointer, typename Visit>
__device__ __forceinline__ void for_words_of_short_runs(const Side& side, Pointer tile, Visit visit) {
  const unsigned first_run = threadIdx.x / Side::THREADS_A_RUN;
  const int in_run = threadIdx.x % Side::THREADS_A_RUN * PER_WORD;
  const unsigned runs = FULL ? Side::RUNS : side.runs, length = FULL ? Side::LENGTH : side.length;
  constexpr bool inside = FULL && !MAY_SHIFT && Side::THREADS_A_RUN * PER_WORD <= Side::LENGTH;
  Pointer address = tile + static_cast<long long>(first_run) * side.pitch;
  Word word(first_run, in_run - shift_of(address), length, inside);
  const int runs_left = runs - first_run;
  address += AT_WORD ? word.j : word.first();
#pragma unroll
  for (unsigned k = 0; k < Side::WORDS_A_THREAD; ++k) {
    const bool all_exist = FULL && (k + 1) * Side::RUNS_AT_ONCE <= Side::RUNS;
    word.run = first_run + k * Side::RUNS_AT_ONCE;
    word.run_exists = all_exist || runs_left > static_cast<int>(k * Side::RUNS_AT_ONCE);
    visit(k, word, address);
    address += static_cast<long long>(side.pitch) * Side::RUNS_AT_ONCE;
  }
}
template <bool FULL, bool AT_WORD, typename Side, typename Pointer, typename Visit>
__device__ __forceinline__ void for_words_of_long_runs(const Side& side, Pointer tile, Visit visit) {
  const int in_piece = threadIdx.x % Side::THREADS_A_RUN * PER_WORD;
  const unsigned runs = FULL ? Side::RUNS : side.runs, length = FULL ? Side::LENGTH : side.length;
#pragma unroll
  for (unsigned k = 0; k < Side::WORDS_A_THREAD; ++k) {
    const unsigned run = k / Side::PIECES, piece = k % Side::PIECES;
    const bool inside = FULL && (piece > 0 || !MAY_SHIFT) && (piece + 1) * THREADS * PER_WORD <= Side::LENGTH;
    Pointer address = tile + static_cast<long long>(run) * side.pitch;
    const int j = in_piece + static_cast<int>(piece * THREADS * PER_WORD) - shift_of(address);
    const Word word(run, j, run < runs ? length : 0, inside);  // a run that doesn't exist has no elements
    visit(k, word, address + (AT_WORD ? word.j : word.first()));
  }
}
template <bool FULL, bool AT_WORD, typename Side, typename Pointer, typename Visit>
__device__ __forceinline__ void for_words(const Side& side, Pointer tile, Visit visit) {
  if constexpr (Side::SHORT) {
    for_words_of_short_runs<FULL, AT_WORD>(side, tile, visit);
  } else {
    for_words_of_long_runs<FULL, AT_WORD>(side, tile, visit);
  }
}

// ---- The two halves of the work.

// Copies the tile from x to shared memory. All loads of a thread are under way before the first loaded word is used.
// A FULL tile is read by whole words: the half of a word that isn't the run's is still an element of the tensor.
// Otherwise such a word is read as the one half that is the run's.
template <bool FULL>
__device__ __forceinline__ void load_tile(ELEMENT* tile, const ELEMENT* from, const SideX& x) {
  unsigned loaded[SideX::WORDS_A_THREAD];
  for_words<FULL, FULL>(x, from, [&](unsigned k, const Word& word, const ELEMENT* address) {
    if (word.run_exists && (FULL ? word.any_in_run() : word.all_in_run())) {
      const unsigned* from_word = reinterpret_cast<const unsigned*>(address);
      loaded[k] = STREAM ? __ldcs(from_word) : *from_word;
    }
    if (!FULL && word.run_exists && word.any_in_run() && !word.all_in_run()) loaded[k] = *address;
  });
  for_words<FULL, FULL>(x, from, [&](unsigned k, const Word& word, const ELEMENT*) {
    ELEMENT* run = tile + word.run * X_RUN_PITCH;
    if (word.run_exists && word.low_in_run) run[place_in_x(word.j)] = static_cast<ELEMENT>(loaded[k]);
    const unsigned high = FULL || word.low_in_run ? loaded[k] >> 16 : loaded[k];
    if (word.run_exists && word.high_in_run) run[place_in_x(word.j + 1)] = static_cast<ELEMENT>(high);
  });
}

// Copies the tile from shared memory to y. A thread without a word reads shared memory too, at a place that exists, and
// stores nothing.
template <bool FULL>
__device__ __forceinline__ void store_tile(const ELEMENT* tile, ELEMENT* to, const SideY& y) {
  unsigned stored[SideY::WORDS_A_THREAD];
  for_words<FULL, false>(y, to, [&](unsigned k, const Word& word, ELEMENT*) {
    const ELEMENT* run = tile + word.run * Y_RUN_PITCH;
    stored[k] = run[place_in_y(word.first())];
    if constexpr (PER_WORD == 2) stored[k] |= static_cast<unsigned>(run[place_in_y(word.last())]) << 16;
  });
  for_words<FULL, false>(y, to, [&](unsigned k, const Word& word, ELEMENT* address) {
    if (word.run_exists && word.all_in_run()) {
      unsigned* to_word = reinterpret_cast<unsigned*>(address);
      if constexpr (STREAM) {
        __stcs(to_word, stored[k]);
      } else {
        *to_word = stored[k];
      }
    }
    if (MAY_SHIFT && word.run_exists && word.any_in_run() && !word.all_in_run()) {
      *address = static_cast<ELEMENT>(stored[k]);
    }
  });
}

// The kernel: a block moves one tile. batch: the number of matrices; rows, cols: of a matrix, in cells.
__device__ __forceinline__ void transpose_word_tiles(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y,
                                                     unsigned batch, unsigned rows, unsigned cols, const Order& order) {
  // The runs that store_tile takes at once may be more than there are: the rest is read behind the tile.
  __shared__ ELEMENT tile[LINES * LINE_PITCH + (SideY::RUNS_AT_ONCE - 1) * Y_RUN_PITCH];
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
  // Whole words of a shifted run reach one half over its ends: the tensor must have elements there.
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
