// The backward of a residual connection and RMSNorm for few rows, whose tensors fit into the L2. The work is spread over
// the whole GPU, and no partial sums of columns go through memory: a first kernel makes the sums of rows, and fetches dsum
// to the L2. A second one makes dx and dgamma: a block has few columns and all rows, so its sums of columns are the result.
// It reads dy and x once more, and dsum, all from the L2. Rows are whole packs, and tensors are aligned.
//
// Macros: PARTS (of a row, which warps sum apart; a multiple of 4), WIDE (packs of columns of a block of the second kernel;
// a power of two up to 32).
#pragma once

#include "norm_grad.cuh"

// Threads of blocks; as in add_rms_norm_grad.py.
constexpr unsigned FEW_SUM_BLOCK = 128, FEW_BLOCK = 256;
constexpr unsigned FEW_AT_ONCE = 4;  // packs of each tensor that a thread has under way

// Makes the sums of rows, with a warp for each part of a row. row_sums: (rows, PARTS).
template <typename Element>
__device__ __forceinline__ void sum_few_rows(const Element* __restrict__ dy, const Element* __restrict__ dsum,
                                             const Element* __restrict__ x, const Element* __restrict__ gamma,
                                             const float* __restrict__ rstd, float* __restrict__ row_sums,
                                             unsigned rows, unsigned columns) {
  using Packs = Pack<Element>;
  const unsigned number = blockIdx.x * (FEW_SUM_BLOCK / WARP) + threadIdx.x / WARP;
  const unsigned row = number / PARTS, part = number % PARTS, packs = columns / Packs::SIZE;
  if (row >= rows) return;
  const unsigned a_part = (packs + PARTS - 1) / PARTS, end = min(packs, (part + 1) * a_part);
  const WarpTeam<WARP> team;
  const auto of = NormRow<false>::load(nullptr, rstd, row);
  const long long begin = static_cast<long long>(row) * columns;
  float sums[1] = {};
#pragma unroll 1
  for (unsigned k = part * a_part + team.rank; k < end; k += FEW_AT_ONCE * WARP) {
    Packs a[FEW_AT_ONCE], b[FEW_AT_ONCE], c[FEW_AT_ONCE];
#pragma unroll
    for (unsigned i = 0; i < FEW_AT_ONCE; ++i) {
      a[i] = b[i] = c[i] = Packs{};
      const unsigned at = k + i * WARP;
      if (at >= end) continue;
      a[i] = load_pack(dy + begin + at * Packs::SIZE);
      b[i] = load_pack(x + begin + at * Packs::SIZE);
      c[i] = load_pack(gamma + at * Packs::SIZE);
      asm volatile("prefetch.global.L2 [%0];" ::"l"(dsum + begin + at * Packs::SIZE));
    }
#pragma unroll
    for (unsigned i = 0; i < FEW_AT_ONCE; ++i) {
      float unused[Packs::SIZE][1] = {};
      add_chunk(of, a[i], b[i], c[i], sums, unused);
    }
  }
  team.template all<Sum>(sums);
  if (team.rank == 0) row_sums[number] = sums[0];
}

// The sum of the parts of a row.
__device__ __forceinline__ float row_sum(const float* __restrict__ row_sums, unsigned row) {
  float sum = 0.0f;
#pragma unroll
  for (unsigned p = 0; p < PARTS; p += 4) {
    const float4 four = *reinterpret_cast<const float4*>(row_sums + static_cast<long long>(row) * PARTS + p);
    sum += four.x, sum += four.y, sum += four.z, sum += four.w;
  }
  return sum;
}

// Puts the sums of a block's columns, which its threads have of their rows: of a warp's rows first, then of all warps, in
// the same order in every run.
template <typename Element, unsigned Size>
__device__ __forceinline__ void put_columns(float (&sums)[Size][1], Element* __restrict__ dgamma, unsigned columns) {
  constexpr unsigned WARPS = FEW_BLOCK / WARP, OWN = WIDE * Size;
  __shared__ float of_warps[WARPS][OWN];
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = blockIdx.x * OWN;
#pragma unroll
  for (unsigned step = WIDE; step < WARP; step *= 2) {
#pragma unroll
    for (unsigned e = 0; e < Size; ++e) sums[e][0] += __shfl_xor_sync(ALL_LANES, sums[e][0], step);
  }
  if (lane < WIDE) {
#pragma unroll
    for (unsigned e = 0; e < Size; ++e) of_warps[warp][lane * Size + e] = sums[e][0];
  }
  __syncthreads();
  for (unsigned c = threadIdx.x; c < OWN && first + c < columns; c += FEW_BLOCK) {
    float sum = 0.0f;
#pragma unroll
    for (unsigned w = 0; w < WARPS; ++w) sum += of_warps[w][c];
    dgamma[first + c] = Element(sum);
  }
}

// A thread's columns of all rows.
template <typename Element>
struct FewColumns {
  using Packs = Pack<Element>;
  static constexpr unsigned SIZE = Packs::SIZE, STEP = FEW_BLOCK / WIDE;  // STEP: rows that a block has at a time
  const Element *dy, *dsum, *x;
  const float *rstd, *row_sums;
  Element* dx;
  unsigned rows, columns, column;
  float share;  // of a column in a mean
  Packs scale;  // gamma
  float sums[SIZE][1];

  // Makes dx of FEW_AT_ONCE rows. Whole: all of them are there, so that no branch stands between their loads.
  template <bool Whole>
  __device__ __forceinline__ void add(unsigned row) {
    Packs a[FEW_AT_ONCE], b[FEW_AT_ONCE], c[FEW_AT_ONCE];
    NormRow<false> of[FEW_AT_ONCE];
    float means[FEW_AT_ONCE][1];
#pragma unroll
    for (unsigned i = 0; i < FEW_AT_ONCE; ++i) {
      const unsigned at = row + i * STEP;
      if (!Whole && at >= rows) continue;
      const long long place = static_cast<long long>(at) * columns + column;
      a[i] = load_pack(dy + place);
      b[i] = load_pack(x + place);
      c[i] = load_pack(dsum + place);
      of[i] = NormRow<false>::load(nullptr, rstd, at);
      means[i][0] = row_sum(row_sums, at) * share;
    }
#pragma unroll
    for (unsigned i = 0; i < FEW_AT_ONCE; ++i) {
      const unsigned at = row + i * STEP;
      if (!Whole && at >= rows) continue;
      float unused[1] = {}, slope[SIZE], value[SIZE], factor[SIZE], added[SIZE];
      add_chunk(of[i], a[i], b[i], scale, unused, sums);
      widen(a[i], slope);
      widen(b[i], value);
      widen(c[i], added);
      widen(scale, factor);
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) added[e] += of[i].gradient(slope[e], value[e], factor[e], means[i]);
      Packs result;
      narrow(added, result);
      store_chunk(dx + static_cast<long long>(at) * columns + column, result);
    }
  }
};

// Makes dx and dgamma. A block has WIDE packs of columns; WIDE of its threads have a row.
template <typename Element>
__device__ __forceinline__ void spread_few_rows(const Element* __restrict__ dy, const Element* __restrict__ dsum,
                                                const Element* __restrict__ x, const Element* __restrict__ gamma,
                                                const float* __restrict__ rstd, const float* __restrict__ row_sums,
                                                Element* __restrict__ dx, Element* __restrict__ dgamma, unsigned rows,
                                                unsigned columns) {
  using Own = FewColumns<Element>;
  const unsigned column = (blockIdx.x * WIDE + threadIdx.x % WIDE) * Own::SIZE;
  Own own{dy, dsum, x, rstd, row_sums, dx, rows, columns, column, 1.0f / columns, {}, {}};
  if (column < columns) {
    own.scale = load_pack(gamma + column);
    unsigned row = threadIdx.x / WIDE;
#pragma unroll 1
    for (; row + (FEW_AT_ONCE - 1) * Own::STEP < rows; row += FEW_AT_ONCE * Own::STEP) own.template add<true>(row);
    if (row < rows) own.template add<false>(row);
  }
  put_columns(own.sums, dgamma, columns);
}
