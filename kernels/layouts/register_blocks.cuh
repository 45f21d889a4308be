// A transpose of a batch of matrices (rows, cols) of floats in registers, without shared memory: a thread loads a block
// of four rows of four, and stores its columns as packs of 16 bytes. It is for few elements: without a barrier, few blocks
// end earlier.
//
// Macros: ELEMENT (unsigned), THREADS, WARPS_ACROSS (warps of a block that lie side by side), BAND (see order.cuh).
#pragma once

#include "order.cuh"
#include "pack.cuh"
#include "warp.cuh"

// A warp has 8 of its 32 threads side by side: they read 128 bytes of a row, which is a whole line. The 4 below each
// other write 64 bytes of a row of y, which are whole sectors.
constexpr unsigned LANES_ACROSS = 8, LANES_DOWN = WARP / LANES_ACROSS;
constexpr unsigned WARPS_DOWN = THREADS / WARP / WARPS_ACROSS;
constexpr unsigned BLOCK_SIDE = Pack<ELEMENT>::SIZE;
static_assert(BLOCK_SIDE == 4);

// With a constant `word` this is a register, and no comparison is left.
__device__ __forceinline__ unsigned word_of(const uint4& pack, unsigned word) {
  return word == 0 ? pack.x : word == 1 ? pack.y : word == 2 ? pack.z : pack.w;
}

// rows and cols are whole packs, and both tensors begin on 16 bytes: so blocks are whole, too. A thread's 64 bytes
// are in flight together.
__device__ __forceinline__ void transpose_register_blocks(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y,
                                                          unsigned rows, unsigned cols, const Order& order) {
  const Place place = place_of(blockIdx.x, order);
  const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const unsigned lane_across = (place.across * WARPS_ACROSS + warp % WARPS_ACROSS) * LANES_ACROSS + lane % LANES_ACROSS;
  const unsigned lane_down = (place.down * WARPS_DOWN + warp / WARPS_ACROSS) * LANES_DOWN + lane / LANES_ACROSS;
  const unsigned row = lane_down * BLOCK_SIDE, col = lane_across * BLOCK_SIDE;
  if (row >= rows || col >= cols) return;

  const long long offset = static_cast<long long>(place.matrix) * rows * cols;
  const ELEMENT* from = x + offset + static_cast<long long>(row) * cols + col;
  uint4 block[BLOCK_SIDE];
#pragma unroll
  for (unsigned r = 0; r < BLOCK_SIDE; ++r) {
    block[r] = __ldg(reinterpret_cast<const uint4*>(from + static_cast<long long>(r) * cols));
  }
  ELEMENT* to = y + offset + static_cast<long long>(col) * rows + row;
#pragma unroll
  for (unsigned c = 0; c < BLOCK_SIDE; ++c) {
    const uint4 column =
        make_uint4(word_of(block[0], c), word_of(block[1], c), word_of(block[2], c), word_of(block[3], c));
    *reinterpret_cast<uint4*>(to + static_cast<long long>(c) * rows) = column;
  }
}
