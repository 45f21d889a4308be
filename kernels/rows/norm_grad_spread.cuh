// The backward of LayerNorm and RMSNorm for few rows, or for rows of any length. The work is spread over the whole
// chip, and dy and x are read twice: a first kernel makes the sums of each row, in up to 32 parts, and a second one
// makes dx and the sums of columns.
#pragma once

#include "norm_grad.cuh"

constexpr unsigned SPREAD_BLOCK = 256, SPREAD_WARPS = SPREAD_BLOCK / WARP, SPREAD_ROWS = 4;
constexpr unsigned SUM_BLOCK = 128;

// Makes the sums of rows, with a warp for each part of a row. row_sums: (rows, parts, SUMS).
template <bool Centred, bool Singles, typename Element>
__device__ __forceinline__ void sum_rows(const Element* __restrict__ dy, const Element* __restrict__ x,
                                         const Element* __restrict__ gamma, const float* __restrict__ mean,
                                         const float* __restrict__ rstd, float* __restrict__ row_sums, long long rows,
                                         unsigned columns, unsigned parts) {
  using Chunk = typename ChunkOf<Element, Singles>::Type;
  const long long number = static_cast<long long>(blockIdx.x) * (SUM_BLOCK / WARP) + threadIdx.x / WARP;
  if (number >= rows * parts) return;
  const long long row = number / parts;
  const unsigned part = static_cast<unsigned>(number - row * parts), chunks = columns / Chunk::SIZE;
  const unsigned a_part = (chunks + parts - 1) / parts, end = min(chunks, (part + 1) * a_part);
  const WarpTeam<WARP> team;
  const auto of = NormRow<Centred>::load(mean, rstd, row);
  const Element *gradients = dy + row * columns, *values = x + row * columns;
  float sums[of.SUMS] = {};
#pragma unroll 4
  for (unsigned k = part * a_part + team.rank; k < end; k += WARP) {
    Chunk a, b, c;
    load_chunk(gradients + k * Chunk::SIZE, a);
    load_chunk(values + k * Chunk::SIZE, b);
    load_chunk(gamma + k * Chunk::SIZE, c);
    float unused[Chunk::SIZE][of.SUMS] = {};
    add_chunk(of, a, b, c, sums, unused);
  }
  team.template all<Sum>(sums);
  if (team.rank > 0) return;
#pragma unroll
  for (unsigned s = 0; s < of.SUMS; ++s) row_sums[number * of.SUMS + s] = sums[s];
}

// Makes dx and the sums of columns. A block has 32 chunks of columns, and the group of rows blockIdx.y. Each of its
// warps has other rows, SPREAD_ROWS at a time.
template <bool Centred, bool Singles, typename Element>
__device__ __forceinline__ void spread_gradients(const Element* __restrict__ dy, const Element* __restrict__ x,
                                                 const Element* __restrict__ gamma, const float* __restrict__ mean,
                                                 const float* __restrict__ rstd, const float* __restrict__ row_sums,
                                                 Element* __restrict__ dx, long long rows, unsigned parts,
                                                 const ColumnSums<Element>& to) {
  using Chunk = typename ChunkOf<Element, Singles>::Type;
  using Of = NormRow<Centred>;
  constexpr unsigned SUMS = Of::SUMS, SIZE = Chunk::SIZE;
  alignas(16) __shared__ float shared[SPREAD_WARPS * WARP * SIZE];
  const WarpTeam<WARP> team;
  const unsigned first = blockIdx.x * WARP * SIZE, column = first + team.rank * SIZE;
  const bool has = column < to.columns;
  const float share = 1.0f / to.columns;
  const long long step = gridDim.y * SPREAD_WARPS;
  Chunk scale{};
  if (has) load_chunk(gamma + column, scale);
  float sums[1][SIZE][SUMS] = {};
  for (long long row = blockIdx.y * SPREAD_WARPS + threadIdx.x / WARP; row < rows; row += SPREAD_ROWS * step) {
    Chunk a[SPREAD_ROWS], b[SPREAD_ROWS];
    Of of[SPREAD_ROWS];
    float means[SPREAD_ROWS * SUMS] = {};
#pragma unroll
    for (unsigned i = 0; i < SPREAD_ROWS; ++i) {
      const long long at = row + i * step;
      if (at >= rows) continue;
      of[i] = Of::load(mean, rstd, at);
      if (team.rank < parts) {
#pragma unroll
        for (unsigned s = 0; s < SUMS; ++s) means[i * SUMS + s] = row_sums[(at * parts + team.rank) * SUMS + s];
      }
      if (!has) continue;
      load_chunk(dy + at * to.columns + column, a[i]);
      load_chunk(x + at * to.columns + column, b[i]);
    }
    team.template all<Sum>(means);
#pragma unroll
    for (unsigned i = 0; i < SPREAD_ROWS; ++i) {
      const long long at = row + i * step;
      if (at >= rows || !has) continue;
      float row_means[SUMS], unused[SUMS] = {};
#pragma unroll
      for (unsigned s = 0; s < SUMS; ++s) row_means[s] = means[i * SUMS + s] * share;
      add_chunk(of[i], a[i], b[i], scale, unused, sums[0]);
      store_chunk(dx + at * to.columns + column, chunk_gradient(of[i], a[i], b[i], scale, row_means));
    }
  }
  put_team_sums<WARP>(shared, sums, first, min(WARP * SIZE, to.columns - first), to);
}
