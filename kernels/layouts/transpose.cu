// The transpose of a matrix: y[c, r] = x[r, c], x (rows, cols) and y (cols, rows) contiguous.
//
// Macros: ELEMENT (unsigned, or unsigned short for halves), since nothing is computed. INDEX for transpose_naive; the
// macros of register_blocks.cuh, narrow.cuh, pack_tile.cuh and word_tile.cuh for the kernels with their names.
//
// Nothing but bytes moves, so what counts is how wide accesses are, how much is in flight, and how much index
// arithmetic a byte costs. The rows of one side are the columns of the other, so neighbours can't be neighbours on both
// sides; where the change of order happens is what the steps differ in.
//
// What each step gained on an NVIDIA H200 (reports/h200/layouts), float16 M8192-N8192.
// At least 134.2 MB are read and 134.2 MB written. The ceiling is 64.45 us, by memory.
//   eager: PyTorch
//       429.7 us   15.0% of ceiling
//   naive: one element a thread, a division for its coordinates
//       406.3 us   15.9% of ceiling  moves 268.4 MB  1.06x the speed of eager
//   tiled: 32 x 32 elements through shared memory
//       114.8 us   56.1% of ceiling  moves 268.4 MB  3.54x the speed of naive
//   packed: 64 x 64 halves through shared memory, two an access
//       75.31 us   85.6% of ceiling  moves 268.4 MB  1.52x the speed of tiled
//   tuned: packs of 16 bytes through registers or shared memory, or words
//       67.73 us   95.2% of ceiling  moves 268.4 MB  1.11x the speed of packed

// Defaults for compiling this file alone.
#ifndef ELEMENT
#define ELEMENT unsigned
#endif

#include "coordinates.cuh"
#include "tile.cuh"
#include "transposes.cuh"

// 1. The text before: one element a thread, in the order of y, with all of its coordinates. It happens in the cache:
//    the lanes of a warp read from 32 rows of x, of which each access uses one element of a sector.
#ifdef INDEX
extern "C" __global__ void transpose_naive(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, INDEX n, INDEX rows,
                                           INDEX cols) {
  move_one(x, y, n, Coordinates<INDEX, 2>{{rows}, {1, cols}});
}
#else

// 2. The order changes in shared memory: a warp reads 32 neighbours of x, and writes 32 neighbours of y.
extern "C" __global__ void __launch_bounds__(TILE_LANES* TILE_LINES)
    transpose_tiled(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, unsigned rows, unsigned cols) {
  transpose_tile(x, y, rows, cols);
}

// 3. The text after, as far as it goes in a transpose: several small elements move as one wide one. In a matrix no
//    dimension stays, so a pack of x isn't a pack of y. A pair of halves is one access of device memory on both sides,
//    and is taken apart in shared memory. Four halves of a row would go to four different rows.
extern "C" __global__ void __launch_bounds__(TILE_LANES* TILE_LINES)
    transpose_packed(const unsigned short* __restrict__ x, unsigned short* __restrict__ y, unsigned rows,
                     unsigned cols) {
  transpose_tile_of_pairs(x, y, rows, cols);
}

// 4. A few megabytes, in rows of whole sectors, move in registers: 16 bytes an access on both sides, 8 of halves; no
//    barrier, and no division.
#ifdef WARPS_ACROSS
REGISTER_BLOCKS(transpose_register_blocks)
#endif

// 5. With three, five or seven rows or columns, of whole packs, it happens in registers, too. A warp puts the packs of
//    the side where elements of few rows take turns in order, in shared memory of its own.
#ifdef NARROW
NARROW_MATRICES(transpose_narrow)
#endif

// 6. Large matrices, and smaller matrices that fill whole tiles, go through shared memory in packs. Packs are aligned
//    on both sides, so a row of x begins anywhere in its first pack, and a tile begins in another row of x for each row
//    of y.
#ifdef PACKS_ACROSS
PACK_TILES(transpose_pack_tiles)
#endif

// 7. All other matrices go through shared memory in words of 4 bytes. If a matrix is narrow, a tile is one piece of
//    memory in x or in y, and is read or written as one piece.
#ifdef TILE_ROWS
WORD_TILES(transpose_word_tiles)
#endif

#endif  // INDEX
