// Pieces of tensors: a table on the device has a row for each, of this type or another. The first `whole` blocks take a
// row each, and all of their threads work on it. In the other blocks each warp takes a row of its own, an eighth as
// long: the ends of tensors, and small tensors. The table is made by harness/collection/ops/lists/_tables.py.
#pragma once

#include "../include/warp.cuh"

constexpr unsigned WARPS = 8;
constexpr unsigned BLOCK = WARP * WARPS;

// The threads that share a row: how many they are, and which of them this one is.
struct Team {
  unsigned size, rank;
  unsigned long long row;

  __device__ __forceinline__ explicit Team(unsigned whole) {
    const bool together = blockIdx.x < whole;
    size = together ? BLOCK : WARP;
    rank = together ? threadIdx.x : threadIdx.x % WARP;
    row = together ? blockIdx.x : whole + static_cast<unsigned long long>(blockIdx.x - whole) * WARPS + threadIdx.x / WARP;
  }
};
