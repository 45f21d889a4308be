// Copies of packs from device memory to shared memory.
//
// Macros: ELEMENT (unsigned, or unsigned short for halves), KEPT_IN_L1 (0 or 1: copies go through the L1 cache).
#pragma once

#include "../include/pack.cuh"

constexpr unsigned PER_PACK = Pack<ELEMENT>::SIZE;
constexpr unsigned GRAIN = 32 / sizeof(ELEMENT);  // elements of a sector

__device__ __forceinline__ unsigned elements_past_a_sector(const ELEMENT* at) {
  return static_cast<unsigned>(reinterpret_cast<unsigned long long>(at)) / sizeof(ELEMENT) % GRAIN;
}

// 16 bytes to shared memory without a register in between, so a thread can wait for many of them. Rows of a tile that
// aren't whole sectors, or lines, are faster through L1, as long as shared memory leaves it enough room.
__device__ __forceinline__ void copy_pack(ELEMENT* to, const ELEMENT* from) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (KEPT_IN_L1) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  }
}

// A pack that begins with element `first` of x. FULL: it is inside of the tensor. Otherwise what is outside stays as it
// is.
template <bool FULL>
__device__ __forceinline__ void load_one(ELEMENT* to, const ELEMENT* x, long long first, long long end) {
  if (FULL || (first >= 0 && first + PER_PACK <= end)) {
    copy_pack(to, x + first);
  } else {
    for (unsigned e = 0; e < PER_PACK; ++e) {
      if (first + e >= 0 && first + e < end) to[e] = x[first + e];
    }
  }
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
