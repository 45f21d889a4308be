// Threads and warps.
#pragma once

constexpr unsigned WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// The thread's number in a grid of one dimension.
template <typename Index = long long>
__device__ __forceinline__ Index thread_index() {
  return static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
}
