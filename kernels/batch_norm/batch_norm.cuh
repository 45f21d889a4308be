// Sums over channels, as batch norm and its backward add them: without atomics, in an order that doesn't change. `Sums`
// is what is added, with add(another) and, over neighbouring lanes, add_lanes(how many).
#pragma once

#include "fastdiv.cuh"
#include "warp.cuh"

// Leaves in sums[i], for i below `across`, a power of two, what all threads have whose number is i modulo `across`.
template <unsigned BLOCK, typename Sums>
__device__ __forceinline__ void add_across(Sums (&sums)[BLOCK], const Sums& own, unsigned across) {
  sums[threadIdx.x] = own;
  for (unsigned half = BLOCK / 2; half >= across; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x].add(sums[threadIdx.x + half]);
  }
}

// The sum of a block of whole warps, in its first thread.
template <unsigned BLOCK, typename Sums>
__device__ __forceinline__ Sums sum_of_block(Sums sum) {
  __shared__ Sums warps[BLOCK / WARP];
  sum.add_lanes(WARP);
  if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned warp = 1; warp < BLOCK / WARP; ++warp) sum.add(warps[warp]);
  }
  return sum;
}

// The part of a row that lies in a tile, in elements that are counted as the tile's are. Its packs, from pack `from` of
// the tile to before `to`, are those that begin in it.
struct RowPart {
  unsigned row, begin, end, from, to;
};

// The sums of a tile's rows, of a pack or more each, from those of its packs: of each pack `own` for the row in which
// it begins, `next` for the one after. The tile is elements `tile` to `tile_end`. `lanes` threads, a power of two, add
// those of a row, and the first of them calls store(part, sum).
template <unsigned BLOCK, unsigned SIZE, typename Sums, typename OfPack, typename Store>
__device__ __forceinline__ void sum_rows(const OfPack (&own)[BLOCK], const OfPack (&next)[BLOCK], unsigned tile,
                                         unsigned tile_end, const Divisor<unsigned>& inner, unsigned lanes,
                                         Store store) {
  const unsigned last = inner.quotient(tile_end - 1), lane = threadIdx.x % lanes;
  // Every lane takes every turn, for the shuffles.
  for (unsigned turn = inner.quotient(tile); turn <= last; turn += BLOCK / lanes) {
    const unsigned row = turn + threadIdx.x / lanes, begin = row * inner.size, end = begin + inner.size;
    const unsigned from = begin > tile ? (begin - tile + SIZE - 1) / SIZE : 0;
    const unsigned to = (min(end, tile_end) - tile + SIZE - 1) / SIZE;
    Sums sum{};
    if (row <= last) {
      for (unsigned i = from + lane; i < to; i += lanes) sum.add(own[i]);
      if (lane == 0 && from > 0) sum.add(next[from - 1]);
    }
    sum.add_lanes(lanes);
    if (row <= last && lane == 0) store(RowPart{row, begin, end, from, to}, sum);
  }
}

// Writes the sum of a part of a row to its slot, one of the row's `count`. A row that begins well lies in one tile less
// than others, so that the slot behind its last one holds nothing.
template <typename Sums>
__device__ __forceinline__ void store_slot(Sums* __restrict__ slots, unsigned slot, unsigned count, bool ends,
                                           const Sums& sum) {
  slots[slot] = sum;
  if (ends && slot + 1 < count) slots[slot + 1] = {};
}
