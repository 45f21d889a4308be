// Memory that is asked for before it is needed.
#pragma once

// Asks for a range of memory to come to the L2: whole 16 bytes from an aligned address. Before compute capability 9.0
// nothing does that for a range.
__device__ __forceinline__ void fetch_to_l2(const void* from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes));
#endif
}
