// The backward of LayerNorm and RMSNorm for few rows, in one kernel: a block or a cluster makes dx of a row, while other
// blocks of the same grid make the sums of columns. Neither waits for the other, and no partial sums go through memory.
// Both read dy and x, one of them from the L2. Rows are whole packs, and tensors are aligned. What a single row adds to
// columns are the results, so its block or cluster writes them, and there are no other blocks.
//
// Macros: WIDE (packs of columns of a block that sums columns; a power of two up to 32, or 0 for a single row), PACKS (packs
// of a row that a thread has), THREADS (of a block), CLUSTER (blocks of a row).
#pragma once

#ifdef WIDE

#include "norm_grad.cuh"

// Blocks that a multiprocessor is to hold. A thread that has more packs takes more registers.
constexpr unsigned BESIDE_BLOCKS = (PACKS <= 2 ? 1024 : 512) / THREADS;
constexpr unsigned BESIDE_AT_ONCE = 2;  // rows of a thread that sums columns, whose loads are under way together

// dx of the row of the block's cluster; dgamma and dbeta, too, if there is no other row.
template <bool Centred, typename Team, typename Element>
__device__ __forceinline__ void beside_row(const Element* __restrict__ dy, const Element* __restrict__ x,
                                           const Element* __restrict__ gamma, const float* __restrict__ mean,
                                           const float* __restrict__ rstd, Element* __restrict__ dx,
                                           Element* __restrict__ dgamma, Element* __restrict__ dbeta,
                                           unsigned columns) {
  using Packs = Pack<Element>;
  Team team;
  const auto of = NormRow<Centred>::load(mean, rstd, team.row());
  const long long begin = team.row() * columns;
  Packs gradients[PACKS], values[PACKS], scale[PACKS];
#pragma unroll
  for (unsigned j = 0; j < PACKS; ++j) {
    const unsigned column = team.template part<PACKS>(j) * Packs::SIZE;
    if (column >= columns) continue;
    gradients[j] = load_pack(dy + begin + column);
    values[j] = load_pack(x + begin + column);
    scale[j] = load_pack(gamma + column);
  }
  float sums[of.SUMS] = {};
#pragma unroll
  for (unsigned j = 0; j < PACKS; ++j) {
    float of_columns[Packs::SIZE][of.SUMS] = {};
    const unsigned column = team.template part<PACKS>(j) * Packs::SIZE;
    if (column >= columns) continue;
    add_chunk(of, gradients[j], values[j], scale[j], sums, of_columns);
#pragma unroll
    for (unsigned s = 0; s < of.SUMS && WIDE == 0; ++s) {
      float chosen[Packs::SIZE];
      Packs results;
      sums_of(of_columns, s, chosen);
      narrow(chosen, results);
      store_chunk((s ? dbeta : dgamma) + column, results);
    }
  }
#pragma unroll
  for (float& sum : sums) sum *= 1.0f / columns;
  team.template all<Sum>(sums);
#pragma unroll
  for (unsigned j = 0; j < PACKS; ++j) {
    const unsigned column = team.template part<PACKS>(j) * Packs::SIZE;
    if (column >= columns) continue;
    store_chunk(dx + begin + column, chunk_gradient(of, gradients[j], values[j], scale[j], sums));
  }
}

#if WIDE
// Adds up the sums of the threads that have the same pack of columns, and writes the results. first: of the block's
// columns. Warps' sums are added in the same order in every run.
template <typename Element, unsigned Size, unsigned Sums>
__device__ __forceinline__ void put_beside(float (&sums)[Size][Sums], unsigned first, unsigned columns,
                                           Element* __restrict__ dgamma, Element* __restrict__ dbeta) {
  constexpr unsigned WARPS = THREADS / WARP, OWN = WIDE * Size;
  __shared__ float of_warps[Sums][WARPS][OWN];
  const unsigned lane = threadIdx.x % WARP;
#pragma unroll
  for (unsigned s = 0; s < Sums; ++s) {
#pragma unroll
    for (unsigned e = 0; e < Size; ++e) {
#pragma unroll
      for (unsigned step = WIDE; step < WARP; step *= 2) sums[e][s] += __shfl_xor_sync(ALL_LANES, sums[e][s], step);
      if (lane < WIDE) of_warps[s][threadIdx.x / WARP][lane * Size + e] = sums[e][s];
    }
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < Sums * OWN; i += THREADS) {
    const unsigned s = i / OWN, own = i % OWN;
    if (first + own >= columns) continue;
    float sum = 0.0f;
#pragma unroll
    for (unsigned w = 0; w < WARPS; ++w) sum += of_warps[s][w][own];
    (s ? dbeta : dgamma)[first + own] = Element(sum);
  }
}

// dgamma and dbeta of the columns of a block.
template <bool Centred, typename Element>
__device__ __forceinline__ void beside_columns(const Element* __restrict__ dy, const Element* __restrict__ x,
                                               const float* __restrict__ mean, const float* __restrict__ rstd,
                                               Element* __restrict__ dgamma, Element* __restrict__ dbeta, unsigned rows,
                                               unsigned columns, unsigned block) {
  using Of = NormRow<Centred>;
  using Packs = Pack<Element>;
  constexpr unsigned STEP = THREADS / WIDE;  // rows that the block has at a time
  const unsigned first = block * WIDE * Packs::SIZE, column = first + threadIdx.x % WIDE * Packs::SIZE;
  float sums[Packs::SIZE][Of::SUMS] = {};
#pragma unroll 1
  for (unsigned begin = threadIdx.x / WIDE; begin < rows && column < columns; begin += BESIDE_AT_ONCE * STEP) {
    Packs gradients[BESIDE_AT_ONCE], values[BESIDE_AT_ONCE];
    Of of[BESIDE_AT_ONCE];
#pragma unroll
    for (unsigned r = 0; r < BESIDE_AT_ONCE; ++r) {
      // The thread's first row stands for rows behind the last one, so that no load needs a condition.
      const unsigned row = begin + r * STEP < rows ? begin + r * STEP : begin;
      const long long at = static_cast<long long>(row) * columns + column;
      gradients[r] = load_pack(dy + at);
      values[r] = load_pack(x + at);
      of[r] = Of::load(mean, rstd, row);
    }
#pragma unroll
    for (unsigned r = 0; r < BESIDE_AT_ONCE; ++r) {
      float unused[Of::SUMS] = {};
      if (begin + r * STEP < rows) add_chunk(of[r], gradients[r], values[r], Packs{}, unused, sums);
    }
  }
  put_beside(sums, first, columns, dgamma, dbeta);
}
#endif

// The grid: clusters for all rows, then blocks for all columns, which fill up clusters.
template <bool Centred, typename Element>
__device__ __forceinline__ void beside_gradients(const Element* __restrict__ dy, const Element* __restrict__ x,
                                                 const Element* __restrict__ gamma, const float* __restrict__ mean,
                                                 const float* __restrict__ rstd, Element* __restrict__ dx,
                                                 Element* __restrict__ dgamma, Element* __restrict__ dbeta,
                                                 unsigned rows, unsigned columns) {
#if CLUSTER > 1 && __CUDA_ARCH__ >= 900
  using Team = ClusterTeam<THREADS>;
#else
  using Team = BlockTeam<THREADS>;  // the host asks for no clusters on other devices
#endif
#if WIDE
  if (blockIdx.x >= rows * CLUSTER) {
    beside_columns<Centred>(dy, x, mean, rstd, dgamma, dbeta, rows, columns, blockIdx.x - rows * CLUSTER);
    return;
  }
#endif
  beside_row<Centred, Team>(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, columns);
}
#endif  // WIDE
