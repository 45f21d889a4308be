// A transpose of a batch of matrices with few columns, or few rows, in registers: an odd number of them, NARROW, of
// which each thread takes whole packs of 16 bytes.
//
// Macros: ELEMENT (unsigned, or unsigned short for halves), NARROW (3, 5 or 7), TO_ROWS (1: x has NARROW columns; 0: it
// has NARROW rows), THREADS (of a block).
#pragma once

#include "../include/fastdiv.cuh"
#include "../include/pack.cuh"
#include "../include/warp.cuh"

// On one side, the long one, a thread has a pack of each of NARROW rows; on the other, the mixed one, NARROW packs that
// follow each other, in which the elements of these rows take turns.
constexpr unsigned PER_PACK = Pack<ELEMENT>::SIZE;

__device__ __forceinline__ unsigned word_of(const uint4& pack, unsigned word) {
  return word == 0 ? pack.x : word == 1 ? pack.y : word == 2 ? pack.z : pack.w;
}

// Where element e of one side's packs is among the other side's elements. e / NARROW is a place in a row.
__device__ constexpr unsigned source(unsigned e) {
  return TO_ROWS ? e % PER_PACK * NARROW + e / PER_PACK : e % NARROW * PER_PACK + e / NARROW;
}

// Word `word` of pack `number` of y's side. Indexes are constants where loops are unrolled.
__device__ __forceinline__ unsigned moved_word(const uint4 (&packs)[NARROW], unsigned number, unsigned word) {
  if constexpr (PER_PACK == 4) {
    const unsigned from = source(number * PER_PACK + word);
    return word_of(packs[from / PER_PACK], from % PER_PACK);
  } else {
    const unsigned low = source(number * PER_PACK + 2 * word), high = source(number * PER_PACK + 2 * word + 1);
    const unsigned selector = (low % 2 ? 0x32u : 0x10u) | (high % 2 ? 0x7600u : 0x5400u);
    return __byte_perm(word_of(packs[low / PER_PACK], low % PER_PACK / 2),
                       word_of(packs[high / PER_PACK], high % PER_PACK / 2), selector);
  }
}

// n: packs of a long row, times matrices: each is a thread's. by_row divides by the packs of a long row.
// On the mixed side a thread's packs follow each other, but lanes should access neighbours. So the packs of a warp
// change places in shared memory, where NARROW packs from a lane to the next are free of conflicts, since NARROW is odd.
__device__ __forceinline__ void transpose_narrow(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, unsigned n,
                                                 const Divisor<unsigned>& by_row) {
  __shared__ uint4 shared[THREADS * NARROW];
  const unsigned lane = threadIdx.x % WARP, first_thread = blockIdx.x * THREADS + threadIdx.x - lane;
  if (first_thread >= n) return;
  uint4* of_warp = shared + (threadIdx.x - lane) * NARROW;
  const unsigned thread = first_thread + lane, matrix = by_row.quotient(thread);
  const bool exists = thread < n;
  const unsigned mixed = min(n - first_thread, WARP) * NARROW;  // packs of the warp
  const long long first_mixed = static_cast<long long>(first_thread) * NARROW;
  const long long first_long = static_cast<long long>(matrix) * by_row.size * NARROW + (thread - matrix * by_row.size);
  const uint4* from = reinterpret_cast<const uint4*>(x) + (TO_ROWS ? first_mixed : first_long);
  uint4* to = reinterpret_cast<uint4*>(y) + (TO_ROWS ? first_long : first_mixed);

  uint4 packs[NARROW];
#pragma unroll
  for (unsigned k = 0; k < NARROW; ++k) {
    const unsigned at = k * WARP + lane;
    if (TO_ROWS ? at < mixed : exists) {
      packs[k] = __ldg(from + (TO_ROWS ? at : static_cast<long long>(k) * by_row.size));
    }
  }
  if constexpr (TO_ROWS) {
#pragma unroll
    for (unsigned k = 0; k < NARROW; ++k) of_warp[k * WARP + lane] = packs[k];
    __syncwarp();
#pragma unroll
    for (unsigned k = 0; k < NARROW; ++k) packs[k] = of_warp[lane * NARROW + k];
  }
  uint4 moved[NARROW];
#pragma unroll
  for (unsigned k = 0; k < NARROW; ++k) {
    moved[k] = make_uint4(moved_word(packs, k, 0), moved_word(packs, k, 1), moved_word(packs, k, 2),
                          moved_word(packs, k, 3));
  }
  if constexpr (!TO_ROWS) {
#pragma unroll
    for (unsigned k = 0; k < NARROW; ++k) of_warp[lane * NARROW + k] = moved[k];
    __syncwarp();
#pragma unroll
    for (unsigned k = 0; k < NARROW; ++k) moved[k] = of_warp[k * WARP + lane];
  }
#pragma unroll
  for (unsigned k = 0; k < NARROW; ++k) {
    const unsigned at = k * WARP + lane;
    if (TO_ROWS ? exists : at < mixed) to[TO_ROWS ? static_cast<long long>(k) * by_row.size : at] = moved[k];
  }
}
