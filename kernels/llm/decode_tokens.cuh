// Steps of 16 tokens under way to a warp's shared memory, for decode_attention.cu, which has the story.
//
// A step has keys in rows, so that a copy takes whole rows, as memory likes it; a lane reads parts of rows that other lanes
// copied. The two rows that a quarter of a warp reads at a time lie in different banks. Values follow, where a lane finds
// what it copied itself.
#pragma once

#include "../rows/mbarrier.cuh"
#include "decode_softmax.cuh"

constexpr unsigned PITCH = 4 * CHUNKS;                     // packs from a key to the next
constexpr unsigned SLOT = KEYS * PITCH + 4 * WIDE * WARP;  // packs of a step

__device__ __forceinline__ unsigned place_of_key(unsigned row, unsigned pack) {
  return row * PITCH + (CHUNKS % 2 ? pack : pack ^ row % 2 * 4);
}

// Calls bring(to, which, token, element) for each pack of the step of tokens from `first` on that the lane copies to
// `slot`. which: 0 for keys, 1 for values.
template <typename Bring>
__device__ __forceinline__ void for_packs(uint4* slot, unsigned first, Bring bring) {
  const unsigned lane = threadIdx.x % WARP;
#pragma unroll
  for (unsigned i = 0; i < KEYS * PITCH / WARP; ++i) {
    const unsigned row = (i * WARP + lane) / PITCH, pack = (i * WARP + lane) % PITCH;
    bring(slot + place_of_key(row, pack), 0u, first + row, pack * SIZE);
  }
#pragma unroll
  for (unsigned i = 0; i < 4 * WIDE; ++i) {
    bring(slot + KEYS * PITCH + i * WARP + lane, 1u, Kept::value(first, i % 4), Kept::of_value(i / 4));
  }
}

// Begins to copy a step: all of it, or all but the last token of the sequence, which the kernel in front makes.
template <Tokens Which>
__device__ __forceinline__ void copy_step(uint4* slot, const Kept& kept, unsigned first) {
  for_packs(slot, first, [&](uint4* to, unsigned which, unsigned token, unsigned element) {
    const bool there = token < kept.end && element < HEAD;
    if (Which == BUT_LAST && there && token == kept.last) return;
    const T* const from = (which ? kept.values : kept.keys) + (there ? Kept::place(token, element) : 0);
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(16),
                 "r"(there ? 16 : 0)
                 : "memory");
  });
}

// Copies the last token to its step, if the step has it: the kernel in front has made it.
__device__ __forceinline__ void copy_last(uint4* slot, const Kept& kept, unsigned first) {
  if (first > kept.last || kept.last >= min(first + KEYS, kept.end)) return;
  for_packs(slot, first, [&](uint4* to, unsigned which, unsigned token, unsigned element) {
    if (token != kept.last || element >= HEAD) return;
    *to = load_fresh(reinterpret_cast<const uint4*>((which ? kept.values : kept.keys) + Kept::place(token, element)));
  });
}

// The lane's part of a step, as soon as the warp's copies are there. Afterwards the slot is free.
__device__ __forceinline__ Step take_step(const uint4* slot) {
  const unsigned lane = threadIdx.x % WARP;
  Step step;
  __syncwarp();
#pragma unroll
  for (unsigned j = 0; j < CHUNKS; ++j) {
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) step.keys[j][i] = slot[place_of_key(lane / 4 + i * 8, j * 4 + lane % 4)];
  }
#pragma unroll
  for (unsigned i = 0; i < 4 * WIDE; ++i) step.values[i / 4][i % 4] = slot[KEYS * PITCH + i * WARP + lane];
  __syncwarp();
  return step;
}
