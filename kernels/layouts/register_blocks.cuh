// A transpose of a batch of matrices (rows, cols) in registers, without shared memory: a thread loads a block of four
// rows of four, and stores its columns. It is for few elements: without a barrier, few blocks end earlier.
//
// Macros: ELEMENT (unsigned, or unsigned short for halves), THREADS, WARPS_ACROSS (warps of a block that lie side by
// side).
#pragma once

#include "../include/warp.cuh"

// A warp has 8 of its 32 threads side by side, and 4 below each other. It reads 128 bytes of a row, which is a whole
// line, and writes 64 bytes of a row of y; half as much of halves. All of these are whole sectors of 32 bytes.
constexpr unsigned LANES_ACROSS = 8, LANES_DOWN = WARP / LANES_ACROSS;
constexpr unsigned WARPS_DOWN = THREADS / WARP / WARPS_ACROSS;
constexpr unsigned BLOCK_SIDE = 4;
constexpr unsigned WORDS = BLOCK_SIDE * sizeof(ELEMENT) / 4;

// Four elements, which are one access: 16 bytes of floats, 8 of halves. Constant indices make its words registers.
struct Quad {
  unsigned at[WORDS];
};

// Every element is read once, so the L1 needn't keep its line. The compiler keeps volatile loads in order, so all of a
// thread's loads are ahead of its stores.
__device__ __forceinline__ Quad load_quad(const ELEMENT* from) {
  Quad quad;
  if constexpr (WORDS == 4) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(quad.at[0]), "=r"(quad.at[1]), "=r"(quad.at[WORDS - 2]), "=r"(quad.at[WORDS - 1])
                 : "l"(from));
  } else {
    asm volatile("ld.global.nc.L1::no_allocate.v2.b32 {%0, %1}, [%2];"
                 : "=r"(quad.at[0]), "=r"(quad.at[1])
                 : "l"(from));
  }
  return quad;
}

// Streaming stores, whose lines may leave the L2 before other lines: faster for floats on an H200. With both, a
// transpose of 1024 x 1024 is within 3% of the ceiling there (reports/h200/transposes).
__device__ __forceinline__ void store_quad(ELEMENT* to, const Quad& quad) {
  if constexpr (WORDS == 4) {
    __stcs(reinterpret_cast<uint4*>(to), make_uint4(quad.at[0], quad.at[1], quad.at[WORDS - 2], quad.at[WORDS - 1]));
  } else {
    __stcs(reinterpret_cast<uint2*>(to), make_uint2(quad.at[0], quad.at[1]));
  }
}

// Column `c` of a block. A word of halves has the halves of two rows. Both lie in the same half of their words, and
// PRMT joins them.
__device__ __forceinline__ Quad column_of(const Quad (&block)[BLOCK_SIDE], unsigned c) {
  Quad column;
#pragma unroll
  for (unsigned w = 0; w < WORDS; ++w) {
    if constexpr (WORDS == BLOCK_SIDE) {
      column.at[w] = block[w].at[c];
    } else {
      column.at[w] = __byte_perm(block[2 * w].at[c / 2], block[2 * w + 1].at[c / 2], c % 2 ? 0x7632u : 0x5410u);
    }
  }
  return column;
}

// rows and cols are multiples of four, and both tensors begin on 16 bytes: so blocks are whole. The grid's dimensions
// are tiles across, tiles down and matrices, so that no block divides to find its place.
__device__ __forceinline__ void transpose_in_registers(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y,
                                                       unsigned rows, unsigned cols) {
  const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const unsigned lane_across = (blockIdx.x * WARPS_ACROSS + warp % WARPS_ACROSS) * LANES_ACROSS + lane % LANES_ACROSS;
  const unsigned lane_down = (blockIdx.y * WARPS_DOWN + warp / WARPS_ACROSS) * LANES_DOWN + lane / LANES_ACROSS;
  const unsigned row = lane_down * BLOCK_SIDE, col = lane_across * BLOCK_SIDE;
  if (row >= rows || col >= cols) return;

  const long long offset = static_cast<long long>(blockIdx.z) * rows * cols;
  const ELEMENT* from = x + offset + static_cast<long long>(row) * cols + col;
  Quad block[BLOCK_SIDE];
#pragma unroll
  for (unsigned r = 0; r < BLOCK_SIDE; ++r) block[r] = load_quad(from + static_cast<long long>(r) * cols);
  ELEMENT* to = y + offset + static_cast<long long>(col) * rows + row;
#pragma unroll
  for (unsigned c = 0; c < BLOCK_SIDE; ++c) {
    store_quad(to + static_cast<long long>(c) * rows, column_of(block, c));
  }
}
