// Sums over channels, as batch norm and its backward add them: without atomics, in a fixed order. `Sums` is the type of
// what is added. It has add(other), and add_lanes(n), which leaves the sum of n neighbouring lanes in the first of
// them.
#pragma once

#include "../include/fastdiv.cuh"
#include "../include/warp.cuh"

// Leaves in sums[i] the sum over all threads whose number is i modulo `across`, a power of two; i is below `across`.
template <unsigned BLOCK, typename Sums>
__device__ __forceinline__ void add_across(Sums (&sums)[BLOCK], const Sums& own, unsigned across) {
  sums[threadIdx.x] = own;
  for (unsigned half = BLOCK / 2; half >= across; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x].add(sums[threadIdx.x + half]);
  }
}

// The sum over a block of whole warps; only its first thread gets it.
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

// A row that lies in a tile, wholly or in part. begin, end: its elements, counted as the tile's are. from, to: the
// packs of the tile that begin in it, `from` included.
struct RowPart {
  unsigned row, begin, end, from, to;
};

// Adds up the rows of a tile, each of a pack or more, from the sums of its packs. own[i]: what pack i adds to the row
// in which it begins. next[i]: what it adds to the row after that. The tile is elements `tile` to `tile_end`. `lanes`
// threads, a power of two, add up a row, and the first of them calls store(part, sum).
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

// Writes the sum of a part of a row to its slot, one of the row's `count`. ends: the row ends in this part. Some rows
// lie in one tile less than other rows, and have a slot too many: this slot gets a zero.
template <typename Sums>
__device__ __forceinline__ void store_slot(Sums* __restrict__ slots, unsigned slot, unsigned count, bool ends,
                                           const Sums& sum) {
  slots[slot] = sum;
  if (ends && slot + 1 < count) slots[slot + 1] = {};
}
