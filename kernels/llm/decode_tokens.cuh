// Steps of 16 tokens under way to a warp's shared memory, for decode_attention.cu, which has the story.
//
// A step has rows of keys, in order, and then rows of values. Neighbours copy neighbouring packs, so that memory sees
// whole lines. ldmatrix reads one pack of each of eight rows at a time. These would share banks, so packs change places
// within their row, by a function of the row. Only packs that lie in different banks change places, so that a copy of
// eight neighbours has all banks as well.
#pragma once

#include "../rows/mbarrier.cuh"
#include "decode_softmax.cuh"

constexpr unsigned STRIDE = WARPS * KEYS;                      // tokens from a step of a warp to its next one
constexpr unsigned PACKED = KEYS * PACKS * PACK_BYTES;         // bytes of keys of a step, and of values
constexpr unsigned SLOT = 2 * PACKED;                          // bytes of a step
constexpr unsigned COPIES = (KEYS * PACKS + WARP - 1) / WARP;  // of keys, by a lane, and of values

// The largest power of 2 that divides PACKS, at most 8: so many neighbours change places.
constexpr unsigned CHANGING = PACKS % 8 == 0 ? 8 : PACKS % 4 == 0 ? 4 : PACKS % 2 == 0 ? 2 : 1;

// Where a pack of a row lies, in bytes.
__device__ __forceinline__ unsigned place_of(unsigned row, unsigned pack) {
  return (row * PACKS + (pack ^ row / (8 / CHANGING) % CHANGING)) * PACK_BYTES;
}

// Copies 16 bytes from global memory, past the L1, or writes zeros. The address must be one that can be read anyway.
__device__ __forceinline__ void copy_or_clear(unsigned address, const T* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(16), "r"(there ? 16 : 0)
               : "memory");
}

// Tokens of a step: the last one of all is another kernel's, and comes when that kernel has ended.
enum Tokens { ALL, BUT_LAST };

// The steps that a warp hasn't asked for yet, from token `first` on. Tokens before `end` are the block's. `last`: the
// last token of all.
struct Coming {
  const T *keys, *values;  // the lane's first packs of a step
  unsigned first, end, last;
  unsigned places[COPIES] = {};

  __device__ __forceinline__ Coming(const T* keys, const T* values, unsigned first, unsigned end, unsigned last)
      : keys(keys + lane() * SIZE), values(values + lane() * SIZE), first(first), end(end), last(last) {
#pragma unroll
    for (unsigned i = 0; i < COPIES; ++i) {
      places[i] = place_of(row_of(i), (i * WARP + lane()) % PACKS);
      asm("" : "+r"(places[i]));  // else the compiler computes it anew in each step
    }
  }

  // Begins to copy a step: all of it, or all but the last token of the sequence, which the kernel in front makes.
  template <Tokens Which>
  __device__ __forceinline__ void copy_step(unsigned slot) {
    if (first + KEYS <= (Which == BUT_LAST ? min(end, last) : end)) {
#pragma unroll
      for (unsigned i = 0; i < COPIES; ++i) {
        const unsigned to = slot + places[i];
        if (row_of(i) >= KEYS) continue;
        copy_async_16(to, keys + i * WARP * SIZE);
        copy_async_16(to + PACKED, values + i * WARP * SIZE);
      }
    } else if (first < end) {
      copy_some<Which>(slot);
    }
    first += STRIDE, keys += STRIDE * HEAD, values += STRIDE * HEAD;
  }

 private:
  static __device__ __forceinline__ unsigned lane() { return threadIdx.x % WARP; }
  static __device__ __forceinline__ unsigned row_of(unsigned i) { return (i * WARP + lane()) / PACKS; }

  // Tokens behind the end are zeros, since they are multiplied by shares of 0.
  template <Tokens Which>
  __device__ __forceinline__ void copy_some(unsigned slot) const {
#pragma unroll
    for (unsigned i = 0; i < COPIES; ++i) {
      const unsigned to = slot + places[i], token = first + row_of(i);
      if (row_of(i) >= KEYS || (Which == BUT_LAST && token == last)) continue;
      const bool there = token < end;
      const int from = there ? static_cast<int>(i * WARP * SIZE) : -static_cast<int>(lane() * SIZE);
      copy_or_clear(to, keys + from, there);
      copy_or_clear(to + PACKED, values + from, there);
    }
  }
};

// Copies the last token to the step from `first` on, if it's there: the kernel in front has made it. keys, values: the
// first ones of the sequence.
__device__ __forceinline__ void copy_last(uint4* slot, const T* keys, const T* values, unsigned first, unsigned end,
                                          unsigned last) {
  const unsigned pack = threadIdx.x % 16, is_value = threadIdx.x % WARP / 16;
  if (pack >= PACKS || first > last || last >= min(first + KEYS, end)) return;
  const T* const from = (is_value ? values : keys) + static_cast<long long>(last) * HEAD + pack * SIZE;
  slot[(is_value * PACKED + place_of(last - first, pack)) / PACK_BYTES] =
      load_fresh(reinterpret_cast<const uint4*>(from));
}

// Where a lane's parts of a step lie.
struct Places {
  unsigned keys[TILES], values[TILES];

  __device__ __forceinline__ Places() {
    const unsigned lane = threadIdx.x % WARP;
#pragma unroll
    for (unsigned n = 0; n < TILES; ++n) {
      keys[n] = place_of(lane % 16, min(2 * n + lane / 16, PACKS - 1));
      values[n] = place_of(lane % 8 + lane / 16 * 8, min(2 * n + lane / 8 % 2, PACKS - 1)) + PACKED;
    }
  }
};

// The lane's part of a step, as soon as the warp's copies are there. Afterwards the slot is free.
__device__ __forceinline__ Step take_step(unsigned slot, const Places& places) {
  Step step;
  __syncwarp();
#pragma unroll
  for (unsigned n = 0; n < TILES; ++n) load_matrices(step.keys[n], slot + places.keys[n]);
#pragma unroll
  for (unsigned n = 0; n < TILES; ++n) load_matrices_transposed(step.values[n], slot + places.values[n]);
  __syncwarp();
  return step;
}
