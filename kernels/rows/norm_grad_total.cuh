// The last step of the norms' gradients: the partial sums of columns, which ColumnSums of norm_grad.cuh has left, become
// dgamma and dbeta.
#pragma once

#include "norm_grad.cuh"

// A team of threads of a block adds the parts of TOTAL_COLUMNS columns: few columns, so that teams are many where a row is
// short. A thread starts to load up to TOTAL_AHEAD parts before it adds them, so that it waits for memory once. A
// multiprocessor runs TOTAL_RESIDENT of the largest blocks: more than 32 registers a thread would leave room for one.
constexpr unsigned TOTAL_BLOCK = 1024, TOTAL_COLUMNS = 8, TOTAL_AHEAD = 8, TOTAL_RESIDENT = 2;
// Adds the values of the threads of a warp that have the same column.
__device__ __forceinline__ float sum_of_column(float sum) {
#pragma unroll
  for (unsigned step = TOTAL_COLUMNS; step < WARP; step *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
  return sum;
}
// team: threads of a team, whole warps. A block has whole teams.
template <typename Element>
__device__ __forceinline__ void column_total(const float* __restrict__ partial, Element* __restrict__ to,
                                             unsigned which, unsigned parts, unsigned columns, unsigned team) {
  const unsigned lane = threadIdx.x % WARP, own = lane % TOTAL_COLUMNS, number = threadIdx.x / team;
  const unsigned place = (blockIdx.x * (blockDim.x / team) + number) * TOTAL_COLUMNS + own;
  const float* from = partial + static_cast<long long>(which) * parts * columns + place;
  const unsigned step = team / TOTAL_COLUMNS;
  float sum = 0.0f;
  for (unsigned part = threadIdx.x % team / TOTAL_COLUMNS; part < parts; part += TOTAL_AHEAD * step) {
    float ahead[TOTAL_AHEAD];
#pragma unroll
    for (unsigned k = 0; k < TOTAL_AHEAD; ++k) {
      const unsigned at = part + k * step;
      ahead[k] = at < parts && place < columns ? from[static_cast<long long>(at) * columns] : 0.0f;
    }
#pragma unroll
    for (float value : ahead) sum += value;
  }
  sum = sum_of_column(sum);
  if (team > WARP) {
    __shared__ float sums[TOTAL_BLOCK / WARP][TOTAL_COLUMNS];
    const unsigned warp = threadIdx.x / WARP, warps = team / WARP;
    if (lane < TOTAL_COLUMNS) sums[warp][own] = sum;
    __syncthreads();
    if (warp % warps > 0) return;
    sum = 0.0f;
    for (unsigned w = lane / TOTAL_COLUMNS; w < warps; w += WARP / TOTAL_COLUMNS) sum += sums[warp + w][own];
    sum = sum_of_column(sum);
  }
  if (lane < TOTAL_COLUMNS && place < columns) to[order_of<Element>(columns).column(place)] = Element(sum);
}
