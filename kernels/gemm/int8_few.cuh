// y = (x weight^T) * scales for few rows of x, as fast as the weight comes. The story is in int8_linear.cu.
//
// Macros: as in int8_rows.cuh, and
//   ROWS   rows of x, rounded up to a multiple of 8.
//   TILES  of 16 rows of the weight, of a block.
//   STEPS  of 64 bytes of a row that a warp has under way.
//   WARPS  of a block, which take parts of the rows in turn.
//   SPLIT  blocks that share the same rows of the weight, in turn as well. They are a cluster.
#pragma once

#include "int8_rows.cuh"

constexpr unsigned THREADS = WARPS * WARP;
constexpr unsigned EIGHTS = ROWS / 8;         // of the rows of x
constexpr unsigned OUTPUTS = TILES * 16;      // columns of y, of a block
constexpr unsigned STEP = 4 * CHUNK;          // bytes of a row that four lanes load
constexpr unsigned SUMS_PITCH = OUTPUTS + 4;  // so that the lanes of a warp have all banks

using Sums = int[TILES][EIGHTS][4];

// The chunk at column k of a row, zeros where there is none.
template <bool Once>
__device__ __forceinline__ uint4 load_row(const Matrix& of, long long row, unsigned k) {
  return load_chunk<Once>(of, of.row(row) + k, row < of.rows ? of.filled_at(k) : 0);
}

// A lane's chunks of columns [first, first + STEPS * STEP). The order of columns in a product doesn't matter if both
// operands have the same. So lane l takes 16 bytes from 16 * (l % 4) on as columns of two products, and loads them from
// memory as they are: neither shared memory nor a shuffle comes between.
struct Chunks {
  uint4 a[STEPS][TILES][2], b[STEPS][EIGHTS];

  __device__ __forceinline__ void load(const Matrix& x, const Matrix& weight, long long output, unsigned first) {
    const unsigned lane = threadIdx.x % WARP;
#pragma unroll
    for (unsigned s = 0; s < STEPS; ++s) {
      const unsigned k = first + s * STEP + lane % 4 * CHUNK;
#pragma unroll
      for (unsigned i = 0; i < 2 * TILES; ++i) {
        a[s][i / 2][i % 2] = load_row<true>(weight, output + lane / 4 + i * 8, k);
      }
#pragma unroll
      for (unsigned j = 0; j < EIGHTS; ++j) b[s][j] = load_row<false>(x, lane / 4 + j * 8, k);
    }
  }
  __device__ __forceinline__ void multiply(Sums& sums) const {
#pragma unroll
    for (unsigned s = 0; s < STEPS; ++s) {
#pragma unroll
      for (unsigned i = 0; i < TILES; ++i) {
        const uint4 &up = a[s][i][0], &low = a[s][i][1];
#pragma unroll
        for (unsigned j = 0; j < EIGHTS; ++j) {
          multiply_add(sums[i][j], up.x, low.x, up.y, low.y, b[s][j].x, b[s][j].y);
          multiply_add(sums[i][j], up.z, low.z, up.w, low.w, b[s][j].z, b[s][j].w);
        }
      }
    }
  }
};

// The sums of a warp as a matrix, [row of x][column of y].
__device__ __forceinline__ void keep(int (&to)[ROWS * SUMS_PITCH], const Sums& sums) {
  const unsigned lane = threadIdx.x % WARP;
#pragma unroll
  for (unsigned i = 0; i < TILES; ++i) {
#pragma unroll
    for (unsigned j = 0; j < EIGHTS; ++j) {
#pragma unroll
      for (unsigned e = 0; e < 4; ++e) {
        const unsigned row = j * 8 + lane % 4 * 2 + e % 2, column = i * 16 + lane / 4 + e / 2 * 8;
        to[row * SUMS_PITCH + column] = sums[i][j][e];
      }
    }
  }
}

// Where the sum with number i of a block belongs, and what it is multiplied with.
struct Place {
  unsigned row;
  long long column;
  __device__ __forceinline__ Place(unsigned i, long long output) : row(i / OUTPUTS), column(output + i % OUTPUTS) {}
  __device__ __forceinline__ const float* x_scale(const Result& result) const {
    return result.x_scale + (PER_ROW ? min(static_cast<long long>(row), result.rows - 1) : 0);
  }
  __device__ __forceinline__ const float* weight_scale(const Result& result) const {
    return result.weight_scale + (PER_CHANNEL ? min(column, result.columns - 1) : 0);
  }
  __device__ __forceinline__ float scale(const Result& result) const {
    return *x_scale(result) * *weight_scale(result);
  }
  __device__ __forceinline__ void store(int sum, float scale, const Result& result) const {
    if (row < result.rows && column < result.columns) result.y[row * result.columns + column] = scaled(sum, scale);
  }
};

__device__ __forceinline__ void multiply_few(const Matrix& x, const Matrix& weight, const Result& result) {
  __shared__ int parts[WARPS][ROWS * SUMS_PITCH];
  const long long output = static_cast<long long>(blockIdx.x / SPLIT) * OUTPUTS;
  const unsigned rank = rank_in_split(), warp = threadIdx.x / WARP;
  Sums sums = {};
  unsigned first = (rank * WARPS + warp) * STEPS * STEP;
  Chunks chunks;
  chunks.load(x, weight, output, first);
  // The scales of the thread's first sum come with the weights. A product of both would wait here, so it comes later.
  const unsigned own = rank * THREADS + threadIdx.x;
  const Place first_place(own, output);
  const float x_scale = *first_place.x_scale(result), of_weight = *first_place.weight_scale(result);
#pragma unroll 1
  while (first < x.columns) {
    first += SPLIT * WARPS * STEPS * STEP;
    Chunks next;  // is under way while the products of the part before are made
    next.load(x, weight, output, first);
    chunks.multiply(sums);
    chunks = next;
  }
  keep(parts[warp], sums);
  __syncthreads();
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < ROWS * OUTPUTS; i += THREADS) {
    const unsigned row = i / OUTPUTS, column = i % OUTPUTS, place = row * SUMS_PITCH + column;
    int sum = 0;
#pragma unroll
    for (unsigned part = 0; part < WARPS; ++part) sum += parts[part][place];
    if constexpr (SPLIT > 1) {
      parts[0][place] = sum;  // which this thread alone reads
    } else {
      const Place to(i, output);
      to.store(sum, i == own ? x_scale * of_weight : to.scale(result), result);
    }
  }
  if constexpr (SPLIT > 1) {
    meet_split();
#pragma unroll 1
    for (unsigned i = own; i < ROWS * OUTPUTS; i += SPLIT * THREADS) {
      const unsigned row = i / OUTPUTS, column = i % OUTPUTS;
      const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(&parts[0][row * SUMS_PITCH + column]));
      int sum = 0;
#pragma unroll
      for (unsigned other = 0; other < SPLIT; ++other) sum += load_remote(address_in(other, from));
      const Place to(i, output);
      to.store(sum, i == own ? x_scale * of_weight : to.scale(result), result);
    }
    meet_split();  // the others may still read here
  }
}
