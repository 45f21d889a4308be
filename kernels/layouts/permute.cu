// The permutation (0, 2, 1, 3): y[b, h, s, d] = x[b, s, h, d]. x (B, S, H, D) and y (B, H, S, D) are contiguous. The
// heads of attention need it. The last dimension stays, so rows of D elements move as they are.
//
// Memory bounds it: each byte is read once and written once, and nothing is computed but addresses. Neighbours within a
// head stay neighbours, so wide accesses are possible without shared memory. What costs is the address of each access:
// three divisions, which a wide access shares among its elements.
//
// Macros: ELEMENT (unsigned, or unsigned short for halves), since nothing is computed; for permute_packs uint4, uint2
// or unsigned, the pack. INDEX (unsigned, or unsigned long long from 2^31 elements on) for all but the last three
// kernels. UNROLL (packs of a thread) for permute_packs, ROW_THREADS (of a block) for permute_heads; the macros of
// cell_tile.cuh for permute_cell_tiles, and of word_tile.cuh for permute_word_tiles.
//
// What each step gained on an NVIDIA H200 (reports/h200/layouts), float16 B256-S512-H12-D64.
// At least 201.3 MB are read and 201.3 MB written. The ceiling is 96.01 us, by memory.
//   eager: PyTorch
//       271.8 us   35.3% of ceiling
//   naive: one element a thread, three divisions for its coordinates
//       374.1 us   25.7% of ceiling  moves 402.7 MB  0.73x the speed of eager
//   packed: four halves or two floats as one element
//       121.4 us   79.1% of ceiling  moves 402.7 MB  3.08x the speed of naive
//   tiled: 32 x 32 elements through shared memory
//       151.7 us   63.3% of ceiling  moves 402.7 MB  0.80x the speed of packed
//   tuned: the widest pack that divides rows, or packs or words through shared memory
//       97.77 us   98.2% of ceiling  moves 402.7 MB  1.55x the speed of tiled

// Defaults for compiling this file alone: kernels 1 to 4.
#if !defined(INDEX) && !defined(CELL_LINES) && !defined(TILE_ROWS) && !defined(ROW_THREADS)
#define INDEX unsigned
#define UNROLL 4
#endif
#ifndef ELEMENT
#define ELEMENT uint4
#endif

#include "coordinates.cuh"
#include "../include/fastdiv.cuh"
#include "tile.cuh"
#include "transposes.cuh"

#ifdef INDEX

// 1. The text before: one element a thread, with all of its coordinates: three divisions.
// 2. The text after is the same kernel, for which four halves, or two floats, are an element: a quarter of the index
//    arithmetic in halves, half of it in floats. D is then counted in packs.
extern "C" __global__ void permute_naive(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, INDEX n, INDEX S,
                                         INDEX H, INDEX D) {
  move_one(x, y, n, Coordinates<INDEX, 4>{{H, S, D}, {S * H * D, D, H * D, 1}});
}

// 3. Through a tile in shared memory: TILE_LANES elements of TILE_LANES rows (b, s) of H * D elements. It shows that
//    there is nothing to gain by one: neighbours in x are neighbours in y already, as long as they are of one head.
extern "C" __global__ void __launch_bounds__(TILE_LANES* TILE_LINES)
    permute_tiled(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, INDEX S, INDEX H, INDEX D) {
  __shared__ ELEMENT tile[TILE_LANES][TILE_LANES + 1];
  const INDEX across = (H * D - 1) / TILE_LANES + 1, down = (S - 1) / TILE_LANES + 1, row = blockIdx.x / across;
  const INDEX b = row / down, first_s = row % down * TILE_LANES;
  const INDEX column = blockIdx.x % across * TILE_LANES + threadIdx.x % TILE_LANES;
  const INDEX h = column / D, d = column - h * D;
  const unsigned lane = threadIdx.x % TILE_LANES, line = threadIdx.x / TILE_LANES;
#pragma unroll
  for (unsigned k = 0; k < TILE_LANES; k += TILE_LINES) {
    const INDEX s = first_s + line + k;
    if (s < S && column < H * D) tile[line + k][lane] = x[(b * S + s) * H * D + column];
  }
  __syncthreads();
#pragma unroll
  for (unsigned k = 0; k < TILE_LANES; k += TILE_LINES) {
    const INDEX s = first_s + line + k;
    if (s < S && column < H * D) y[((b * H + h) * S + s) * D + d] = tile[line + k][lane];
  }
}

// 4. The widest pack that divides rows, UNROLL of them a thread, and multiplications in place of divisions. All loads
//    of a thread are under way before the first store. n and D are counted in packs.
#ifdef UNROLL
extern "C" __global__ void permute_packs(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, INDEX n, INDEX S,
                                         INDEX S_multiplier, unsigned S_shift, INDEX H, INDEX H_multiplier,
                                         unsigned H_shift, INDEX D, INDEX D_multiplier, unsigned D_shift) {
  const Divisor<INDEX> by_S{S, S_multiplier, S_shift}, by_H{H, H_multiplier, H_shift}, by_D{D, D_multiplier, D_shift};
  const INDEX first = static_cast<INDEX>(blockIdx.x) * blockDim.x * UNROLL + threadIdx.x;
  ELEMENT pack[UNROLL];
#pragma unroll
  for (unsigned k = 0; k < UNROLL; ++k) {
    const INDEX i = first + k * blockDim.x;
    if (i < n) {
      const INDEX row = by_D.quotient(i), bh = by_S.quotient(row), b = by_H.quotient(bh);
      const INDEX s = row - bh * S, h = bh - b * H;
      pack[k] = __ldg(x + ((b * S + s) * H + h) * D + (i - row * D));
    }
  }
#pragma unroll
  for (unsigned k = 0; k < UNROLL; ++k) {
    const INDEX i = first + k * blockDim.x;
    if (i < n) y[i] = pack[k];
  }
}
#endif

#endif  // INDEX

// 5. The same packs, one a thread, where a block has a part of a head, as in row_part.cuh: blockIdx.y is h, blockIdx.z
//    is b. So one division is left, and no jump comes before the load. `packs` is S * D.
#ifdef ROW_THREADS
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    permute_heads(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, unsigned packs, unsigned D,
                  unsigned D_multiplier, unsigned D_shift, unsigned H) {
  const unsigned own = min(blockIdx.x * ROW_THREADS + threadIdx.x, packs - 1);
  const unsigned s = Divisor<unsigned>{D, D_multiplier, D_shift}.quotient(own);
  const unsigned of_b = blockIdx.z * H * packs;
  const unsigned from = of_b + own + (s * (H - 1) + blockIdx.y) * D;
  y[of_b + blockIdx.y * packs + own] = __ldg(x + from);
}
#endif

// 6. Rows of halves that aren't whole words, or begin inside of one: through shared memory, by packs of 16 bytes. S and
//    H are the rows and columns of B matrices, with cells of D elements.
#ifdef CELL_LINES
CELL_TILES(permute_cell_tiles)
#endif

// 7. By words of 4 bytes, where H rows are too long for that. Very short rows go this way, too.
#ifdef TILE_ROWS
WORD_TILES(permute_word_tiles)
#endif
