// LayerNorm of a row by a block, an element a thread at a time. The variance is the mean of squares of distances from
// the mean, in a second sum, since a difference of two means would lose its places where the mean is large.
#pragma once

#include "few.cuh"

constexpr float EPSILON = 1e-5f;

// The sum over `Lanes` neighbours of a warp, for all of them.
template <unsigned Lanes>
__device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
  for (unsigned step = Lanes / 2; step; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
  return value;
}

// The sum over a block of whole warps, for all of its threads. Each call of a kernel must have its own `partial`: while
// one is read, the next one may be written.
__device__ __forceinline__ float sum_of_block(float value, float (&partial)[WARP]) {
  const unsigned lane = threadIdx.x % WARP;
  value = sum_of_lanes<WARP>(value);
  if (lane == 0) partial[threadIdx.x / WARP] = value;
  __syncthreads();
  return sum_of_lanes<WARP>(lane < blockDim.x / WARP ? partial[lane] : 0.0f);
}

// y = LayerNorm(from) * gamma + beta, times `factor`. sum: of the elements that this thread has. The thread reads the
// same elements here again.
template <typename T, typename Out>
__device__ __forceinline__ void normalise(const T* from, float sum, const T* gamma, const T* beta, float factor,
                                          Out* y, long long columns) {
  __shared__ float partial[2][WARP];
  const float mean = sum_of_block(sum, partial[0]) / columns;
  float squares = 0.0f;
  for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
    const float distance = to_float(from[c]) - mean;
    squares = fmaf(distance, distance, squares);
  }
  const float rstd = rsqrtf(sum_of_block(squares, partial[1]) / columns + EPSILON);
  for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
    const float normal = (to_float(from[c]) - mean) * rstd;
    y[c] = narrowed<Out>(fmaf(normal, to_float(gamma[c]), to_float(beta[c])) * factor);
  }
}
