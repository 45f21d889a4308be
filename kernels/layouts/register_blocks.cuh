// A transpose of a batch of matrices (rows, cols) in registers, without shared memory: a thread loads a square block, a
// pack of each of its rows, and stores its columns as packs. It is for few elements: without a barrier, few blocks end
// earlier.
//
// Macros: ELEMENT (unsigned, or unsigned short for halves), PACK_WORDS (words of 4 bytes of a pack: 2 or 4), THREADS,
// WARPS_ACROSS (warps of a block that lie side by side), BAND (see order.cuh).
#pragma once

#include "order.cuh"
#include "warp.cuh"

// A warp has 8 of its 32 threads side by side, and 4 below each other. With packs of 16 bytes it reads 128 bytes of a
// row, which is a whole line, and writes 64 bytes of a row of y; with packs of 8 bytes, half as much. All of these are
// whole sectors of 32 bytes.
constexpr unsigned LANES_ACROSS = 8, LANES_DOWN = WARP / LANES_ACROSS;
constexpr unsigned WARPS_DOWN = THREADS / WARP / WARPS_ACROSS;
constexpr unsigned PER_WORD = 4 / sizeof(ELEMENT), BLOCK_SIDE = PACK_WORDS * PER_WORD;

// A pack as words: an index that is known to the compiler makes it registers.
struct alignas(PACK_WORDS * 4) Words {
  unsigned at[PACK_WORDS];
};

template <unsigned COUNT>
struct Vector;
template <>
struct Vector<2> {
  using Type = uint2;
};
template <>
struct Vector<4> {
  using Type = uint4;
};

// One load and one store of a whole pack.
__device__ __forceinline__ Words load_words(const ELEMENT* from) {
  const auto raw = __ldg(reinterpret_cast<const Vector<PACK_WORDS>::Type*>(from));
  return reinterpret_cast<const Words&>(raw);
}
__device__ __forceinline__ void store_words(ELEMENT* to, const Words& words) {
  using Raw = Vector<PACK_WORDS>::Type;
  *reinterpret_cast<Raw*>(to) = reinterpret_cast<const Raw&>(words);
}

// Column `c` of a block. A word of halves has those of two rows, which lie in one half of their words: PRMT joins them.
__device__ __forceinline__ Words column_of(const Words (&block)[BLOCK_SIDE], unsigned c) {
  Words column;
#pragma unroll
  for (unsigned w = 0; w < PACK_WORDS; ++w) {
    if constexpr (PER_WORD == 1) {
      column.at[w] = block[w].at[c];
    } else {
      column.at[w] = __byte_perm(block[2 * w].at[c / 2], block[2 * w + 1].at[c / 2], c % 2 ? 0x7632u : 0x5410u);
    }
  }
  return column;
}

// rows and cols are whole packs, and both tensors begin on 16 bytes: so blocks are whole, too. All of a thread's packs
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
  Words block[BLOCK_SIDE];
#pragma unroll
  for (unsigned r = 0; r < BLOCK_SIDE; ++r) block[r] = load_words(from + static_cast<long long>(r) * cols);
  ELEMENT* to = y + offset + static_cast<long long>(col) * rows + row;
#pragma unroll
  for (unsigned c = 0; c < BLOCK_SIDE; ++c) {
    store_words(to + static_cast<long long>(c) * rows, column_of(block, c));
  }
}
